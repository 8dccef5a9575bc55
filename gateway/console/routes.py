"""The operators' console at `/`: a handful of static files under a strict content policy, and who is signed in."""

import hashlib
from collections.abc import Awaitable, Callable
from importlib import resources

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from fairlane.gateway import errors
from fairlane.gateway.admin.router import AdminParts, refusal_of, with_key
from fairlane.gateway.errors import ApiError
from fairlane.gateway.operators import check_origin, cookie, session_of
from fairlane.store.errors import STORE_ERRORS

FILES = {
    "/": ("index.html", "text/html"),
    "/console/app.js": ("app.js", "text/javascript"),
    "/console/style.css": ("style.css", "text/css"),
    "/console/icon.svg": ("icon.svg", "image/svg+xml"),
}
POLICY = {
    "default-src": "'none'",
    "script-src": "'self'",
    "style-src": "'self'",
    "img-src": "'self'",
    "connect-src": "'self'",
    "base-uri": "'none'",
    "form-action": "'none'",
    "frame-ancestors": "'none'",
}
"""Nothing inline, nothing from elsewhere, in no frame: what a script injected into the page could use is not there."""
HEADERS = {
    "content-security-policy": "; ".join(f"{name} {value}" for name, value in POLICY.items()),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-cache",  # asked about each time, answered 304 while it is the same
}


def routes() -> list[Route]:
    """One route per file; each file is read here, once."""
    return [Route(path, _endpoint(*file), methods=["GET"], name=file[0]) for path, file in FILES.items()]


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


def _endpoint(name: str, media_type: str) -> Callable[[Request], Awaitable[Response]]:
    content = (resources.files("fairlane.gateway.console") / name).read_bytes()
    headers = {**HEADERS, "etag": f'"{hashlib.sha256(content).hexdigest()[:32]}"'}

    async def serve(request: Request) -> Response:
        if request.headers.get("if-none-match") == headers["etag"]:
            return Response(status_code=304, headers=headers)
        return Response(content, headers=headers, media_type=media_type)

    return serve
