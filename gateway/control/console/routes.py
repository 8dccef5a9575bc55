"""The operators' console at `/`: its files, under a strict content security policy, and its session."""

from collections.abc import Iterator
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable

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
from fairlane.gateway.errors import ApiError
from fairlane.gateway.http.static import file_route
from fairlane.store.errors import STORE_ERRORS

FOLDER = resources.files("fairlane.gateway.control.console")
PAGE = "static/index.html"
_TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}


def _files() -> Iterator[tuple[str, str, str]]:
    yield "/", PAGE, _TYPES[".html"]
    for folder, prefix in (("static", ""), ("vendor", "vendor/")):
        for name in _within(FOLDER / folder):
            suffix = name[name.rfind(".") :]
            if suffix in _TYPES and f"{folder}/{name}" != PAGE:
                yield f"/console/{prefix}{name}", f"{folder}/{name}", _TYPES[suffix]


def _within(folder: Traversable, prefix: str = "") -> Iterator[str]:
    for each in sorted(folder.iterdir(), key=lambda found: found.name):
        if each.is_dir():
            yield from _within(each, f"{prefix}{each.name}/")
        else:
            yield f"{prefix}{each.name}"


# Served files by URL path.
FILES = {path: (name, media_type) for path, name, media_type in _files()}


@cache
def routes() -> tuple[Route, ...]:
    """Return one route per file, shared by all applications of this process. Files are read once."""
    return tuple(
        file_route(path, (FOLDER / name).read_bytes(), media_type) for path, (name, media_type) in FILES.items()
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
                return Response(
                    msgspec.json.encode({"operator": operator, "oidc": provider_of(parts)}), 200, NOT_CACHED, JSON
                )
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
