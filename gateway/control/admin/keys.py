"""Admin calls on a tenant's API keys. Only the response that creates a key contains its secret."""

from collections.abc import Callable
from contextlib import suppress
from functools import partial

from fairlane.gateway.control.admin import router
from fairlane.gateway.control.admin.inputs import KeyBody, KeyChange, Nothing, PageQuery, RotateBody
from fairlane.gateway.control.admin.router import Call
from fairlane.gateway.control.admin.tenants import TRIES, difference, the_tenant
from fairlane.gateway.control.admin.views import (
    CreatedKeyView,
    KeyView,
    NewKeyView,
    Page,
    created_key_view,
    key_view,
    new_key_view,
    page,
)
from fairlane.quotas.api_keys import ApiKey, KeyNotFound, NewKey, checked_overlap_ms
from fairlane.quotas.audit import Note
from fairlane.quotas.tenants import Tenant, VersionConflict


async def create_key(call: Call, body: KeyBody) -> CreatedKeyView:
    """Create a key, or import one by its hash. Raise TenantNotFound, FieldError or KeyExists."""
    if body.sha256 is None:
        new = await make_key(call, body)
        return created_key_view(new.key, new.secret)
    tenant = await the_tenant(call)
    document = body.model_dump(exclude_none=True, exclude={"sha256"})
    return created_key_view(await call.parts.keys.adopt(tenant, body.sha256, document, _creation(call, tenant)), None)


async def make_key(call: Call, body: KeyBody) -> NewKey:
    """Create a key with a new secret. Raise TenantNotFound or FieldError."""
    tenant = await the_tenant(call)
    return await call.parts.keys.create(tenant, body.model_dump(exclude_none=True), _creation(call, tenant))


def _creation(call: Call, tenant: Tenant) -> Callable[[ApiKey], Note]:
    return lambda key: call.note("key.create", f"{tenant.id}/{key.id}", None, key_view(key))


async def list_keys(call: Call, query: PageQuery) -> Page[KeyView]:
    """List a tenant's keys by creation time, revoked ones included. Raise TenantNotFound."""
    found = await call.parts.keys.list(await the_tenant(call), query.limit + 1, query.after)
    return page(found, query.limit, key_view, lambda key: key.id)


async def get_key(call: Call, _: Nothing) -> KeyView:
    """Return one key. Raise TenantNotFound or KeyNotFound."""
    return _shown(call, await the_key(call, await the_tenant(call)))


async def change_key(call: Call, body: KeyChange) -> KeyView:
    """Change the stated fields of a key that is not revoked. Raise TenantNotFound, KeyNotFound or FieldError."""
    tenant, changes = await the_tenant(call), body.model_dump(exclude_unset=True)
    for _ in range(TRIES):
        before = await _as_seen(call, tenant)
        after = before.changed(changes)
        if after == before:
            return _shown(call, before)
        note = call.note("key.update", f"{tenant.id}/{before.id}", *difference(key_view(before), key_view(after)))
        with suppress(VersionConflict):
            return _shown(call, await call.parts.keys.update(tenant, before, changes, note))
    raise VersionConflict(tenant.id)


async def the_key(call: Call, tenant: Tenant) -> ApiKey:
    """Return the tenant's key that the path names. Raise KeyNotFound."""
    key = await call.parts.keys.get(tenant, call.path["key"])
    if key is None:
        raise KeyNotFound(call.path["key"])
    return key


async def _as_seen(call: Call, tenant: Tenant) -> ApiKey:
    """Return the key if it matches `If-Match`. Raise KeyNotFound, or ApiError `precondition_failed`."""
    key = await the_key(call, tenant)
    call.expected.check(router.of_version(key.version))
    return key


def _shown(call: Call, key: ApiKey) -> KeyView:
    call.tag(router.of_version(key.version))
    return key_view(key)


async def revoke_key(call: Call, _: Nothing) -> KeyView:
    """Revoke a key; repeating it has no effect. Raise TenantNotFound or KeyNotFound."""
    tenant = await the_tenant(call)
    before = await _as_seen(call, tenant)
    if before.state == "revoked":
        return key_view(before)
    note = call.note("key.revoke", f"{tenant.id}/{before.id}", {"state": "active"}, {"state": "revoked"})
    return key_view(await call.parts.keys.revoke(tenant, before.id, note))


async def rotate_key(call: Call, body: RotateBody) -> NewKeyView:
    """Create a copy of the key with a new secret, and let the old one expire after the overlap.

    Raise TenantNotFound, KeyNotFound or FieldError."""
    checked_overlap_ms(body.overlap_s)  # before `If-Match`: an invalid overlap is an error whatever the version
    tenant = await the_tenant(call)
    for _ in range(TRIES):
        before = await _as_seen(call, tenant)
        with suppress(VersionConflict):
            note = partial(_rotated, call, before, body.overlap_s)
            new = await call.parts.keys.rotate(tenant, before.id, body.overlap_s, version=before.version, note=note)
            call.tag(router.of_version(new.key.version))
            return new_key_view(new)
    raise VersionConflict(tenant.id)


def _rotated(call: Call, before: ApiKey, overlap_s: float, made: ApiKey) -> Note:
    after = {"replaced_by": key_view(made), "overlap_s": overlap_s}
    return call.note("key.rotate", f"{before.tenant}/{before.id}", key_view(before), after)
