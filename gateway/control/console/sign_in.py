"""Sign-in with an identity provider: the redirect to it, and its callback."""

from html import escape

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from fairlane.gateway.control.admin.call import NOT_CACHED, AdminParts, address_of
from fairlane.gateway.control.admin.router import refusal_of
from fairlane.gateway.control.operators.operator import Operator
from fairlane.gateway.control.operators.sessions import cookie, cookie_of, session_of, sign_in_cookie
from fairlane.gateway.control.operators.settings import CALLBACK
from fairlane.gateway.control.static_files import HEADERS, policy_text
from fairlane.gateway.errors import ApiError, not_found
from fairlane.gateway.middleware.paths import root_path_of
from fairlane.quotas.audit import Note
from fairlane.store.errors import STORE_ERRORS

PATH = "/console/sign-in"


def routes(parts: AdminParts) -> list[Route]:
    """Return the routes of the redirect and the callback."""
    provider, sessions = parts.single_sign_on, parts.operators.sessions

    async def begin(request: Request) -> Response:
        try:
            if provider is None:
                raise not_found()
            url, kept = await provider.begin()
        except (ApiError, *STORE_ERRORS) as error:
            return _page(refusal_of(error), root_path_of(request.scope))
        answer = RedirectResponse(url, 303, NOT_CACHED)
        answer.headers.append("set-cookie", sign_in_cookie(request.scope, kept))
        return answer

    async def complete(request: Request) -> Response:
        scope, earlier = request.scope, session_of(request.scope)
        try:
            if provider is None:
                raise not_found()
            operator = await provider.complete(cookie_of(scope) or "", dict(request.query_params))
            begun = await begin_session(parts, operator, address_of(request))
            if earlier is not None:
                await sessions.end(earlier)
        except (ApiError, *STORE_ERRORS) as error:
            answer = _page(refusal_of(error), root_path_of(scope))
        else:
            answer = RedirectResponse(root_path_of(scope) + "/", 303, NOT_CACHED)
            answer.headers.append("set-cookie", cookie(scope, begun))
        answer.headers.append("set-cookie", sign_in_cookie(scope, None))
        return answer

    return [Route(PATH, begin, methods=["GET"]), Route(CALLBACK, complete, methods=["GET"])]


async def begin_session(parts: AdminParts, operator: Operator, address: str) -> str:
    """Start an operator's session and record it in the audit log. Return the session's id.

    Raises ApiError, redis.RedisError, StoreUnavailable."""
    begun = await parts.operators.sessions.begin(operator)
    changes = {"before": None, "after": {"role": operator.role.value, "kind": operator.kind}}
    note = Note(actor=operator.actor, address=address, action="session.create", target=operator.actor, changes=changes)
    await parts.audit.append(note)
    return begun


def provider_of(parts: AdminParts, root_path: str) -> dict[str, str] | None:
    """Return the provider's title and sign-in URL, if one is configured."""
    provider = parts.single_sign_on
    return None if provider is None else {"name": provider.section.title, "url": root_path + PATH}


def _page(error: ApiError, root_path: str) -> Response:
    text = (
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>Fairlane</title>'
        f"<h1>Signing in failed</h1><p>{escape(error.message)} (<code>{escape(error.code)}</code>)</p>"
        f'<p><a href="{root_path}/">Back to the console</a></p></html>'
    )
    headers = {**HEADERS, **NOT_CACHED, "content-security-policy": policy_text()}
    return Response(text, error.status, headers, "text/html")
