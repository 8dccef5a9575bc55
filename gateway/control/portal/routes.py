"""The portal's files, under the console's content security policy."""

from functools import cache
from pathlib import Path

from starlette.routing import Route

from fairlane.gateway.control.console.routes import FOLDER as CONSOLE
from fairlane.gateway.control.console.routes import TYPES
from fairlane.gateway.control.static_files import file_route

FOLDER = Path(__file__).parent / "static"
PAGE = "index.html"
# Of the console, which may be on another port: below `/portal/console/`, so that their own imports lead to each other.
SHARED = (
    "icon.svg",
    *[f"{name}.css" for name in ("parts", "style", "views")],
    *[f"{name}.js" for name in ("api", "dom", "format", "live", "session", "theme")],
    *[f"parts/{name}.js" for name in ("bars", "dialog", "links", "money", "pieces", "sse", "table", "tenant_form")],
    *[f"parts/{name}.js" for name in ("timeline", "usage", "waterfall")],
    *[f"views/{name}.js" for name in ("playground", "request", "tenant_keys")],
)
# The served files by URL path.
FILES = {
    "/portal": FOLDER / PAGE,
    **{f"/portal/{file.name}": file for file in sorted(FOLDER.glob("*.js"))},
    **{f"/portal/console/{name}": CONSOLE / "static" / name for name in SHARED},
}


@cache
def routes(root_path: str = "") -> tuple[Route, ...]:
    """Return one route per file, shared by all applications of this process. Files are read once."""
    return tuple(
        file_route(path, file.read_bytes(), TYPES[file.suffix], root_path=root_path) for path, file in FILES.items()
    )
