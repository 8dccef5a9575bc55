"""Operators' calls on a tenant's API keys. A secret is in the answer that makes it, and nowhere else."""

from gateway.admin_bodies import KeyBody, Nothing, PageQuery, RotateBody
from gateway.admin_call import Call
from gateway.admin_shapes import KeyView, NewKeyView, Page
from gateway.admin_tenants import the_tenant
from gateway.admin_views import key_view, new_key_view, page
from quotas.api_keys import KeyNotFound


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


async def revoke_key(call: Call, _: Nothing) -> KeyView:
    """End a key; again is no error and no change. Raises TenantNotFound, KeyNotFound."""
    tenant, key_id = await the_tenant(call), call.path["key"]
    before = await call.parts.keys.get(tenant, key_id)
    if before is None:
        raise KeyNotFound(key_id)
    after = await call.parts.keys.revoke(tenant, key_id)
    if after.state != before.state:
        await call.note("key.revoke", f"{tenant.id}/{key_id}", {"state": before.state}, {"state": after.state})
    return key_view(after)


async def rotate_key(call: Call, body: RotateBody) -> NewKeyView:
    """A new key like this one, which ends after the overlap. Raises TenantNotFound, KeyNotFound, FieldError."""
    tenant, key_id = await the_tenant(call), call.path["key"]
    before = await call.parts.keys.get(tenant, key_id)
    if before is None:
        raise KeyNotFound(key_id)
    new = await call.parts.keys.rotate(tenant, key_id, body.overlap_s)
    after = {"replaced_by": key_view(new.key), "overlap_s": body.overlap_s}
    await call.note("key.rotate", f"{tenant.id}/{key_id}", key_view(before), after)
    return new_key_view(new)
