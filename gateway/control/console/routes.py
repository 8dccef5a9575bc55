"""The operators' console at `/`: its files, under a strict content security policy, and its session."""

from functools import cache
from pathlib import Path

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from fairlane.gateway import errors
from fairlane.gateway.control.admin.call import NOT_CACHED, AdminParts, address_of
from fairlane.gateway.control.admin.operation import JSON
from fairlane.gateway.control.admin.router import refusal_of, showing
from fairlane.gateway.control.console.sign_in import begin_session, provider_of
from fairlane.gateway.control.operators.sessions import Sessions, check_origin, cookie, session_of
from fairlane.gateway.control.static_files import file_route
from fairlane.gateway.errors import ApiError
from fairlane.gateway.middleware.paths import root_path_of
from fairlane.store.errors import STORE_ERRORS

FOLDER = Path(__file__).parent
PAGE = "static/index.html"
TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}


def _url(name: str) -> str:
    return "/" if name == PAGE else f"/console/{name.removeprefix('static/')}"


# Name in this package and media type of the served files, by URL path.
FILES = {
    _url(file.relative_to(FOLDER).as_posix()): (file.relative_to(FOLDER).as_posix(), TYPES[file.suffix])
    for folder in ("static", "vendor")
    for file in sorted((FOLDER / folder).rglob("*"))
    if file.suffix in TYPES
}


@cache
def routes(root_path: str = "") -> tuple[Route, ...]:
    """Return one route per file, shared by all applications of this process. Files are read once."""
    return tuple(
        file_route(path, (FOLDER / name).read_bytes(), media_type, root_path=root_path)
        for path, (name, media_type) in FILES.items()
    )


def session_route(parts: AdminParts) -> Route:
    """Return the route `/console/session`: GET returns the operator, POST signs in, DELETE signs out."""
    sessions = parts.operators.sessions

    async def serve(request: Request) -> Response:
        scope, session = request.scope, session_of(request.scope)
        try:
            check_origin(scope)
            if request.method in ("GET", "HEAD"):
                operator = None if session is None else await _signed_in(sessions, session)
                told: dict[str, object] = {"operator": operator, "oidc": provider_of(parts, root_path_of(scope))}
                if operator is not None:
                    told["installation"] = {"currency": parts.currency, "links": parts.links}
                return Response(msgspec.json.encode(told), 200, NOT_CACHED, JSON)
            begun = None
            if request.method == "POST":
                begun = await begin_session(parts, await showing(parts.operators, request), address_of(request))
            if session is not None:
                await sessions.end(session)
        except (ApiError, *STORE_ERRORS) as error:
            return errors.response(refusal_of(error))
        return Response(status_code=204, headers={"set-cookie": cookie(scope, begun), "cache-control": "no-store"})

    return Route("/console/session", serve, methods=["GET", "POST", "DELETE"], name="session")


async def _signed_in(sessions: Sessions, session: str) -> dict[str, str] | None:
    try:
        operator = await sessions.operator(session)
    except ApiError:
        return None
    return {"name": operator.name, "role": operator.role.value, "kind": operator.kind}
