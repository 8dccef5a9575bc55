"""The operators' console at `/`: a handful of static files under a strict content policy, and who is signed in."""

from importlib import resources

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from fairlane.gateway import errors
from fairlane.gateway.admin.router import AdminParts, refusal_of, with_key
from fairlane.gateway.errors import ApiError
from fairlane.gateway.http.static import file_route
from fairlane.gateway.operators import check_origin, cookie, session_of
from fairlane.store.errors import STORE_ERRORS

FILES = {
    "/": ("index.html", "text/html"),
    "/console/app.js": ("app.js", "text/javascript"),
    "/console/style.css": ("style.css", "text/css"),
    "/console/icon.svg": ("icon.svg", "image/svg+xml"),
}


def routes() -> list[Route]:
    """One route per file; each file is read here, once."""
    folder = resources.files("fairlane.gateway.console")
    return [file_route(path, (folder / name).read_bytes(), media_type) for path, (name, media_type) in FILES.items()]


def session_route(parts: AdminParts) -> Route:
    """`/console/session`: signs in with the admin key, and out again."""

    async def serve(request: Request) -> Response:
        scope, session = request.scope, session_of(request.scope)
        try:
            check_origin(scope)
            begun = None
            if request.method == "POST":
                await with_key(parts.admin_keys, request)
                begun = await parts.sessions.begin()
            if session is not None:
                await parts.sessions.end(session)
        except (ApiError, *STORE_ERRORS) as error:
            return errors.response(refusal_of(error))
        return Response(status_code=204, headers={"set-cookie": cookie(scope, begun), "cache-control": "no-store"})

    return Route("/console/session", serve, methods=["POST", "DELETE"], name="session")
