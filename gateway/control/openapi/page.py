"""`GET /docs`: the document as a page to browse and to try calls from, without anything from elsewhere."""

from functools import cache
from importlib import resources

from starlette.routing import Route

from fairlane.gateway.http.static import POLICY, file_route

PATH = "/docs"
_FILES = {
    PATH: ("static/index.html", "text/html"),
    f"{PATH}/page.js": ("static/page.js", "text/javascript"),
    f"{PATH}/swagger-ui-bundle.js": ("vendor/swagger-ui/swagger-ui-bundle.js", "text/javascript"),
    f"{PATH}/swagger-ui.css": ("vendor/swagger-ui/swagger-ui.css", "text/css"),
}
_POLICY = {**POLICY, "img-src": "'self' data:"}
"""Swagger UI's style sheet has its icons in it."""


@cache
def routes() -> tuple[Route, ...]:
    """One route per file, for every application of this process; each file is read here, once."""
    folder = resources.files("fairlane.gateway.control.openapi")
    return tuple(
        file_route(path, (folder / name).read_bytes(), media_type, _POLICY)
        for path, (name, media_type) in _FILES.items()
    )
