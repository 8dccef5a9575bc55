"""Operators' calls on tenants and their limits. Each writes what it changed into the audit log; no change, no entry."""

from collections.abc import Mapping

from gateway import limits_headers
from gateway.admin_bodies import LimitsBody, Nothing, PageQuery, QuotaBody, TenantBody, TenantChange
from gateway.admin_call import Call, Document
from gateway.admin_shapes import Deleted, Page, TenantView
from gateway.admin_views import page, tenant_view
from quotas.limits import LIMIT_NAMES
from quotas.tenants import Tenant, TenantNotFound, VersionConflict

_TRIES = 10
_DEFAULTS = tenant_view(Tenant(id="", root=""))
_OF_THE_REST = ("default_lane", "limits")
"""Fields whose null depends on the tenant's other fields."""


async def create_tenant(call: Call, body: TenantBody) -> TenantView:
    """A new tenant. Raises FieldError, TenantExists."""
    stated = {name: value for name, value in _stated(body).items() if value is not None}
    made = tenant_view(await call.parts.tenants.create(stated))
    await call.note("tenant.create", made["id"], None, made)
    return made


async def list_tenants(call: Call, query: PageQuery) -> Page[TenantView]:
    """Tenants by id."""
    found = await call.parts.tenants.list(query.limit + 1, query.after)
    return page(found, query.limit, tenant_view, lambda tenant: tenant.id)


async def get_tenant(call: Call, _: Nothing) -> TenantView:
    """One tenant. Raises TenantNotFound."""
    return tenant_view(await the_tenant(call))


async def change_tenant(call: Call, body: TenantChange) -> TenantView:
    """Change what is stated: null is the default, limits are merged. Raises TenantNotFound, FieldError."""
    defaults: Document = _DEFAULTS
    stated = _stated(body)
    cleared = {name: defaults[name] for name in stated if stated[name] is None and name not in _OF_THE_REST}
    return tenant_view(await _change(call, "tenant.update", {**stated, **cleared}))


async def delete_tenant(call: Call, _: Nothing) -> Deleted:
    """End a tenant and its keys; its ledger stays. Raises TenantNotFound, TenantHasChildren."""
    before = await the_tenant(call)
    await call.parts.tenants.delete(before.id)
    await call.note("tenant.delete", before.id, tenant_view(before), None)
    return {"id": before.id, "deleted": True}


async def suspend_tenant(call: Call, _: Nothing) -> TenantView:
    """Let none of its requests in until it is resumed. Raises TenantNotFound."""
    before = await the_tenant(call)
    after = await call.parts.tenants.suspend(before.id)
    if after.state != before.state:
        await call.note("tenant.suspend", before.id, {"state": before.state}, {"state": after.state})
    return tenant_view(after)


async def resume_tenant(call: Call, _: Nothing) -> TenantView:
    """Let its requests in again. Raises TenantNotFound."""
    before = await the_tenant(call)
    after = await call.parts.tenants.resume(before.id)
    if after.state != before.state:
        await call.note("tenant.resume", before.id, {"state": before.state}, {"state": after.state})
    return tenant_view(after)


async def get_quota(call: Call, _: Nothing) -> Document:
    """Every limit of the tenant itself, as it stands. Raises TenantNotFound."""
    return await _quota(call, await the_tenant(call))


async def put_quota(call: Call, body: QuotaBody) -> Document:
    """Replace all limits. Raises TenantNotFound."""
    limits = {**dict.fromkeys(LIMIT_NAMES), **body.limits.model_dump()}
    return await _quota(call, await _change(call, "quota.replace", {"limits": limits}))


async def patch_quota(call: Call, body: QuotaBody) -> Document:
    """Merge limits: null takes one away. Raises TenantNotFound."""
    return await _quota(call, await _change(call, "quota.update", {"limits": _stated(body.limits)}))


async def the_tenant(call: Call) -> Tenant:
    """The tenant that the path names. Raises TenantNotFound."""
    tenant = await call.parts.tenants.get(call.path["tenant"])
    if tenant is None:
        raise TenantNotFound(call.path["tenant"])
    return tenant


async def _change(call: Call, action: str, changes: Mapping[str, object]) -> Tenant:
    """Apply a change to exactly the version that the audit entry calls `before`."""
    for _ in range(_TRIES):
        before = await the_tenant(call)
        if before.changed(changes) == before:
            return before
        try:
            after = await call.parts.tenants.update(before.id, changes, version=before.version)
        except VersionConflict:
            continue
        await call.note(action, after.id, *_difference(tenant_view(before), tenant_view(after)))
        return after
    raise VersionConflict(call.path["tenant"])


def _difference(before: Document, after: Document) -> tuple[Document, Document]:
    names = [name for name in after if after[name] != before[name] and name != "version"]
    return {name: before[name] for name in names}, {name: after[name] for name in names}


async def _quota(call: Call, tenant: Tenant) -> Document:
    standing = await call.parts.budgets.statuses(tenant.root, tenant.id)
    statuses = [status for status in standing if status.scope == "tenant"]
    return limits_headers.as_json(await limits_headers.with_queue(statuses, tenant.id, call.parts.fleet.waiting))


def _stated(body: TenantChange | LimitsBody) -> dict[str, object]:
    """The fields that the caller sent, those that are null too."""
    return body.model_dump(exclude_unset=True)
