"""Admin calls on operator tokens, and on the calling operator."""

from typing import Annotated, Literal

from typing_extensions import TypedDict

from fairlane.common.views import about, view_of
from fairlane.gateway.control.admin.call import Call
from fairlane.gateway.control.admin.inputs import PageQuery, TokenBody
from fairlane.gateway.control.admin.operation import Operations
from fairlane.gateway.control.admin.views import Deleted, Page, page
from fairlane.gateway.control.operators.operator import Role
from fairlane.gateway.errors import not_found
from fairlane.quotas.field_checks import moment
from fairlane.store.errors import STORE_ERRORS


class MeView(TypedDict):
    """The calling operator."""

    name: Annotated[str, about("Name of the token or user; `admin` for the admin key")]
    role: Annotated[Literal["viewer", "operator", "owner"], about("`viewer`, `operator` or `owner`")]
    kind: Annotated[
        Literal["key", "token", "user"],
        about("The credential: the admin `key`, a `token`, or a `user` of the identity provider"),
    ]


class TokenView(TypedDict):
    """An operator token, without its secret."""

    id: Annotated[str, about("Identifier")]
    name: Annotated[str, about("Name")]
    role: Annotated[Literal["viewer", "operator", "owner"], about("`viewer`, `operator` or `owner`")]
    created_at: Annotated[float, about("Unix seconds")]
    created_by: Annotated[str, about("Who created it, as in the audit log")]
    expires_at: Annotated[float | None, about("Unix seconds; null: never")]


class NewTokenView(TokenView):
    """A new operator token, with its secret, which is shown only once."""

    token: Annotated[str, about("The token itself, shown only once")]


operations = Operations()


@operations.add("GET /me")
async def get_me(call: Call) -> MeView:
    """Return the calling operator and its role."""
    return {"name": call.operator.name, "role": call.operator.role.value, "kind": call.operator.kind}


@operations.add("POST /tokens", status=201, codes=("request_exceeds_limit",))
async def create_token(call: Call, body: TokenBody) -> NewTokenView:
    """Create a named token with a role, for an operator or a program."""
    expires_at = None if body.expires_at is None else moment(body.expires_at, "expires_at")
    tokens = call.parts.operators.tokens
    token, secret = await tokens.create(body.name, Role(body.role), call.operator, expires_at)
    view = view_of(TokenView, token)
    try:
        await call.record(call.note("token.create", token.id, None, dict(view)))
    except STORE_ERRORS:
        await tokens.end(token.id)
        await tokens.forget(token.id)
        raise
    return {**view, "token": secret}


@operations.add("GET /tokens", role=Role.OWNER)
async def list_tokens(call: Call, query: PageQuery) -> Page[TokenView]:
    """List operator tokens by id."""
    tokens = await call.parts.operators.tokens.list()
    following = [token for token in tokens if token.id > (query.after or "")]
    return page(following, query.limit, lambda token: view_of(TokenView, token), lambda token: token.id)


@operations.add("DELETE /tokens/{token}")
async def revoke_token(call: Call) -> Deleted:
    """Revoke a token and its sessions."""
    tokens = call.parts.operators.tokens
    token = await tokens.end(call.path["token"])
    if token is None:
        raise not_found("token")
    await call.record(call.note("token.revoke", token.id, dict(view_of(TokenView, token)), None))
    await tokens.forget(token.id)
    return {"id": token.id, "deleted": True}
