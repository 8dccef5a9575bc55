"""Operators' calls on a tenant's API keys. A secret is in the answer that makes it, and nowhere else."""

from contextlib import suppress

from gateway import entity_tags
from gateway.admin_bodies import KeyBody, KeyChange, Nothing, PageQuery, RotateBody
from gateway.admin_call import Call
from gateway.admin_shapes import KeyView, NewKeyView, Page
from gateway.admin_tenants import TRIES, difference, the_tenant
from gateway.admin_views import key_view, new_key_view, page
from quotas.api_keys import ApiKey, KeyNotFound
from quotas.tenants import Tenant, VersionConflict


async def create_key(call: Call, body: KeyBody) -> NewKeyView:
    """A new key. Raises TenantNotFound, FieldError."""
    tenant = await the_tenant(call)
    new = await call.parts.keys.create(tenant, body.model_dump(exclude_none=True))
    await call.note("key.create", f"{tenant.id}/{new.key.id}", None, key_view(new.key))
    return new_key_view(new)


async def list_keys(call: Call, query: PageQuery) -> Page[KeyView]:
    """A tenant's keys by creation, revoked ones too. Raises TenantNotFound."""
    found = await call.parts.keys.list(await the_tenant(call), query.limit + 1, query.after)
    return page(found, query.limit, key_view, lambda key: key.id)


async def get_key(call: Call, _: Nothing) -> KeyView:
    """One key. Raises TenantNotFound, KeyNotFound."""
    return _shown(call, await the_key(call, await the_tenant(call)))


async def change_key(call: Call, body: KeyChange) -> KeyView:
    """Change what is stated of a key that is not revoked. Raises TenantNotFound, KeyNotFound, FieldError."""
    tenant, changes = await the_tenant(call), body.model_dump(exclude_unset=True)
    for _ in range(TRIES):
        before = await _as_seen(call, tenant)
        if before.changed(changes) == before:
            return _shown(call, before)
        with suppress(VersionConflict):
            after = await call.parts.keys.update(tenant, before, changes)
            noted = difference(key_view(before), key_view(after))
            await call.note("key.update", f"{tenant.id}/{after.id}", *noted)
            return _shown(call, after)
    raise VersionConflict(tenant.id)


async def the_key(call: Call, tenant: Tenant) -> ApiKey:
    """The tenant's key that the path names. Raises KeyNotFound."""
    key = await call.parts.keys.get(tenant, call.path["key"])
    if key is None:
        raise KeyNotFound(call.path["key"])
    return key


async def _as_seen(call: Call, tenant: Tenant) -> ApiKey:
    """The key, as the caller expects it. Raises KeyNotFound, ApiError `precondition_failed`."""
    key = await the_key(call, tenant)
    call.expected.check(entity_tags.of_version(key.version))
    return key


def _shown(call: Call, key: ApiKey) -> KeyView:
    call.tag(entity_tags.of_version(key.version))
    return key_view(key)


async def revoke_key(call: Call, _: Nothing) -> KeyView:
    """End a key; again is no error and no change. Raises TenantNotFound, KeyNotFound."""
    tenant = await the_tenant(call)
    before = await _as_seen(call, tenant)
    if before.state == "revoked":
        return key_view(before)
    after = await call.parts.keys.revoke(tenant, before.id)
    await call.note("key.revoke", f"{tenant.id}/{before.id}", {"state": before.state}, {"state": after.state})
    return key_view(after)


async def rotate_key(call: Call, body: RotateBody) -> NewKeyView:
    """A new key like this one, which ends after the overlap. Raises TenantNotFound, KeyNotFound, FieldError."""
    tenant = await the_tenant(call)
    before = await _as_seen(call, tenant)
    new = await call.parts.keys.rotate(tenant, before.id, body.overlap_s)
    after = {"replaced_by": key_view(new.key), "overlap_s": body.overlap_s}
    await call.note("key.rotate", f"{tenant.id}/{before.id}", key_view(before), after)
    call.tag(entity_tags.of_version(new.key.version))
    return new_key_view(new)
