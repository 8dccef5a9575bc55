"""Admin calls on a tenant's API keys. Only the response that creates a key contains its secret."""

from fairlane.gateway.control.admin.call import Call, difference, retried
from fairlane.gateway.control.admin.inputs import KeyBody, KeyChange, PageQuery, RotateBody
from fairlane.gateway.control.admin.operation import Operations
from fairlane.gateway.control.admin.tenants import the_tenant
from fairlane.gateway.control.admin.views import KeyView, NewKeyView, Page, key_view, page
from fairlane.gateway.control.operators.operator import Role
from fairlane.quotas.api_keys import ApiKey, KeyNotFound, NewKey, checked_overlap_ms
from fairlane.quotas.audit import Note
from fairlane.quotas.tenants import Tenant

operations = Operations()


@operations.add("POST /tenants/{tenant}/keys", role=Role.OPERATOR, status=201, codes=("already_exists",))
async def create_key(call: Call, body: KeyBody) -> NewKeyView:
    """Create a key; only this response contains its secret."""
    tenant, keys = await the_tenant(call), call.parts.keys
    document = body.model_dump(exclude_none=True, exclude={"sha256"})

    def note(key: ApiKey) -> Note:
        return call.note("key.create", f"{tenant.id}/{key.id}", None, key_view(key))

    if body.sha256 is None:
        new = await keys.create(tenant, document, note)
        return {**key_view(new.key), "key": new.secret}
    return {**key_view(await keys.adopt(tenant, body.sha256, document, note)), "key": None}


@operations.add("GET /tenants/{tenant}/keys")
async def list_keys(call: Call, query: PageQuery) -> Page[KeyView]:
    """List a tenant's keys by creation time."""
    found = await call.parts.keys.list(await the_tenant(call), query.limit + 1, query.after)
    return page(found, query.limit, key_view, lambda key: key.id)


@operations.add("GET /tenants/{tenant}/keys/{key}", tagged=True)
async def get_key(call: Call) -> KeyView:
    """Return a key."""
    return _shown(call, await _the_key(call, await the_tenant(call)))


@operations.add("PATCH /tenants/{tenant}/keys/{key}", role=Role.OPERATOR, tagged=True)
async def change_key(call: Call, body: KeyChange) -> KeyView:
    """Change a key's stated fields, unless it is revoked."""
    tenant, changes = await the_tenant(call), body.model_dump(exclude_unset=True)

    async def change() -> ApiKey:
        before = await _as_seen(call, tenant)
        after = before.changed(changes)
        if after == before:
            return before
        note = call.note("key.update", f"{tenant.id}/{before.id}", *difference(key_view(before), key_view(after)))
        return await call.parts.keys.update(tenant, before, changes, note)

    return _shown(call, await retried(change))


async def _the_key(call: Call, tenant: Tenant) -> ApiKey:
    key = await call.parts.keys.get(tenant, call.path["key"])
    if key is None:
        raise KeyNotFound(call.path["key"])
    return key


async def _as_seen(call: Call, tenant: Tenant) -> ApiKey:
    key = await _the_key(call, tenant)
    call.expect(key.version)
    return key


def _shown(call: Call, key: ApiKey) -> KeyView:
    call.tag(key.version)
    return key_view(key)


@operations.add("DELETE /tenants/{tenant}/keys/{key}", role=Role.OPERATOR, tagged=True)
async def revoke_key(call: Call) -> KeyView:
    """Revoke a key, within a second on all gateways."""
    tenant = await the_tenant(call)
    before = await _as_seen(call, tenant)
    if before.state == "revoked":
        return key_view(before)
    note = call.note("key.revoke", f"{tenant.id}/{before.id}", {"state": "active"}, {"state": "revoked"})
    return key_view(await call.parts.keys.revoke(tenant, before.id, note))


@operations.add("POST /tenants/{tenant}/keys/{key}/rotate", role=Role.OPERATOR, status=201, tagged=True)
async def rotate_key(call: Call, body: RotateBody) -> NewKeyView:
    """Replace a key by a copy with a new secret; the old one expires after the overlap."""
    checked_overlap_ms(body.overlap_s)  # before `If-Match`: an invalid overlap is an error regardless of the version
    tenant = await the_tenant(call)

    async def rotate() -> NewKey:
        before = await _as_seen(call, tenant)

        def note(made: ApiKey) -> Note:
            after = {"replaced_by": key_view(made), "overlap_s": body.overlap_s}
            return call.note("key.rotate", f"{tenant.id}/{before.id}", key_view(before), after)

        return await call.parts.keys.rotate(tenant, before.id, body.overlap_s, version=before.version, note=note)

    new = await retried(rotate)
    call.tag(new.key.version)
    return {**key_view(new.key), "key": new.secret}
