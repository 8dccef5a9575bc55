"""`GET /docs`: the document as a page for reading and trying calls, without external resources."""

from functools import cache
from importlib import resources

from starlette.routing import Route

from fairlane.gateway.control.static_files import POLICY, file_route

PATH = "/docs"
_FILES = {
    PATH: ("static/index.html", "text/html"),
    f"{PATH}/page.js": ("static/page.js", "text/javascript"),
    f"{PATH}/swagger-ui-bundle.js": ("vendor/swagger-ui/swagger-ui-bundle.js", "text/javascript"),
    f"{PATH}/swagger-ui.css": ("vendor/swagger-ui/swagger-ui.css", "text/css"),
}
# Swagger UI's style sheet embeds its icons.
_POLICY = {**POLICY, "img-src": "'self' data:"}


@cache
def routes() -> tuple[Route, ...]:
    """Return one route per file. Each file is read once per process."""
    folder = resources.files("fairlane.gateway.control.openapi")
    return tuple(
        file_route(path, (folder / name).read_bytes(), media_type, _POLICY)
        for path, (name, media_type) in _FILES.items()
    )
