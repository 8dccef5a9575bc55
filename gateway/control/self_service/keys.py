"""`/v1/keys`: a tenant's own keys, where its operator allows self-service.

Only keys that an operator made manage keys: those they make cannot. A key with limits of its own cannot either, since
several keys with the same limits could use a multiple of them."""

import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial

from starlette.requests import Request

from fairlane.gateway.control.admin.call import Document, address_of, changes_of, retried
from fairlane.gateway.control.admin.inputs import OwnKeyBody, PageQuery, RotateBody
from fairlane.gateway.control.admin.router import MAX_BODY_BYTES, refusal_of
from fairlane.gateway.control.admin.views import KeyView, key_view, page
from fairlane.gateway.control.self_service.scopes import exceeding
from fairlane.gateway.dialects.openai.batches import read_query
from fairlane.gateway.dialects.openai.reading import checked
from fairlane.gateway.errors import ApiError, invalid, not_found
from fairlane.gateway.http.sse import Headers, send_json
from fairlane.gateway.identity.auth import Caller
from fairlane.gateway.pipeline.context import Endpoint, RequestContext
from fairlane.quotas.api_keys import ApiKey, KeyNotFound, KeyStore, NewKey, Scopes
from fairlane.quotas.audit import Note
from fairlane.quotas.field_checks import FieldError
from fairlane.quotas.tenants import VersionConflict

PATH = "/v1/keys"
ONE_PATH = PATH + "/{key}"
ROTATE_PATH = ONE_PATH + "/rotate"
# With revoked and expired ones, so that no tenant fills the store or the audit log.
MOST_KEYS = 1_000
_BODY_BYTES = MAX_BODY_BYTES // 16
_ID = re.compile(r"[a-z2-7]{16}")
_NOT_CACHED: Headers = [(b"cache-control", b"no-store")]
_not_allowed = partial(ApiError, code="endpoint_not_allowed")


def refusal_to_manage(caller: Caller) -> ApiError | None:
    """Return why a caller may not manage keys, or None."""
    key = caller.identity.key
    if caller.identity.tenant.self_service != "keys":
        return _not_allowed("Keys of this tenant are made by its operator, who can set `self_service: keys`.")
    if key.via:
        return _not_allowed("Keys are managed with an API key, not with a token or through a gateway in front.")
    if key.made_by:
        return _not_allowed("A key that another key made cannot manage keys: use one that your operator made.")
    if key.limits.as_dict():
        return _not_allowed("A key with limits of its own cannot manage keys: use one without limits.")
    return None


@dataclass(eq=False)
class OwnKeys:
    """The endpoints. Each change is in the audit log, with the calling key as its actor."""

    keys: KeyStore
    body_timeout_s: float
    # Call it before answering a call that has changed a key.
    changed: Callable[[], None]

    def routes(self) -> list[tuple[str, str, Endpoint]]:
        calls: list[tuple[str, str, Endpoint]] = [
            ("GET", PATH, self.list),
            ("POST", PATH, self.create),
            ("DELETE", ONE_PATH, self.revoke),
            ("POST", ROTATE_PATH, self.rotate),
        ]
        return [(method, path, partial(_refusing, endpoint)) for method, path, endpoint in calls]

    async def list(self, context: RequestContext) -> None:
        query = read_query(PageQuery, context.scope["query_string"])
        found = await self.keys.list(context.caller.identity.tenant, query.limit + 1, query.after)
        await send_json(context.send, page(found, query.limit, key_view, lambda key: key.id), _NOT_CACHED)

    async def create(self, context: RequestContext) -> None:
        maker, tenant = context.caller.identity.key, context.caller.identity.tenant
        body = checked(OwnKeyBody, {}, await self._body(context))
        document = body.model_dump(exclude_none=True) | {"scopes": _scopes(body, maker.scopes)}
        if maker.expires_at is not None and body.expires_at is None:
            document["expires_at"] = maker.expires_at
        wanted = maker.changed(document)
        if scope := exceeding(wanted.scopes, maker.scopes):
            raise invalid(f"scopes.{scope}", f"`scopes.{scope}` may only allow what the calling key may do.")
        if _outlives(wanted, maker):
            raise invalid("expires_at", "`expires_at` must not be later than that of the calling key.")
        await self._check_room(context)
        note = partial(_note, context, "key.create", None)
        new = await self.keys.create(tenant, document, lambda key: note(key, key_view(key)), maker.id)
        await self._answer(context, new.key, new.secret)

    async def revoke(self, context: RequestContext) -> None:
        key = await self._managed(context)
        if key.state != "revoked":
            note = _note(context, "key.revoke", {"state": "active"}, key, {"state": "revoked"})
            key = await self.keys.revoke(context.caller.identity.tenant, key.id, note)
        await self._answer(context, key)

    async def rotate(self, context: RequestContext) -> None:
        overlap_s = checked(RotateBody, {}, await self._body(context) or b"{}").overlap_s
        await self._check_room(context)

        async def rotated() -> NewKey:
            old = await self._managed(context)
            if _outlives(old, context.caller.identity.key):
                raise _not_allowed("This key expires later than the calling key, which cannot renew it.")

            def note(new: ApiKey) -> Note:
                after = {"replaced_by": key_view(new), "overlap_s": overlap_s}
                return _note(context, "key.rotate", key_view(old), old, after)

            tenant = context.caller.identity.tenant
            return await self.keys.rotate(tenant, old.id, overlap_s, version=old.version, note=note)

        new = await retried(rotated)
        await self._answer(context, new.key, new.secret)

    async def _body(self, context: RequestContext) -> bytes:
        return await context.read_body(max_bytes=_BODY_BYTES, timeout_s=self.body_timeout_s)

    async def _check_room(self, context: RequestContext) -> None:
        if await self.keys.count(context.caller.identity.tenant) >= MOST_KEYS:
            message = f"The tenant has had {MOST_KEYS} keys, the most of self-service: ask your operator for more."
            raise ApiError(message, "request_exceeds_limit")

    async def _managed(self, context: RequestContext) -> ApiKey:
        """Return the key of the path. Raises ApiError if the calling key may not do all that it may."""
        caller, name = context.caller.identity, context.path_params["key"]
        key = await self.keys.get(caller.tenant, name) if _ID.fullmatch(name) else None
        if key is None:
            raise not_found("key")
        if key.via or exceeding(key.scopes, caller.key.scopes):
            raise _not_allowed("This key may do what the calling key may not: ask your operator to change it.")
        return key

    async def _answer(self, context: RequestContext, key: ApiKey, secret: str | None = None) -> None:
        self.changed()
        shown: KeyView = key_view(key)
        await send_json(context.send, shown if secret is None else {**shown, "key": secret}, _NOT_CACHED)


def _scopes(body: OwnKeyBody, own: Scopes) -> dict[str, object]:
    """Return the scopes of a new key: those that are not stated are the calling key's, except `act_as`."""
    stated = {} if body.scopes is None else body.scopes.model_dump(exclude_none=True)
    return {name: getattr(own, name) for name in ("models", "lanes", "endpoints", "cidrs")} | stated


def _outlives(key: ApiKey, maker: ApiKey) -> bool:
    return maker.expires_at is not None and (key.expires_at is None or key.expires_at > maker.expires_at)


def _note(context: RequestContext, action: str, before: Document | None, key: ApiKey, after: Document) -> Note:
    caller = context.caller
    return Note(
        actor=f"key:{caller.key_id}",
        address=address_of(Request(context.scope)),
        action=action,
        target=f"{caller.tenant_id}/{key.id}",
        changes=changes_of(before, after),
    )


async def _refusing(endpoint: Callable[[RequestContext], Awaitable[None]], context: RequestContext) -> None:
    """Serve a call of a caller that may manage keys, and convert errors of the store's documents."""
    if refusal := refusal_to_manage(context.caller):
        raise refusal
    try:
        await endpoint(context)
    except (FieldError, KeyNotFound, VersionConflict) as error:
        raise refusal_of(error) from None
