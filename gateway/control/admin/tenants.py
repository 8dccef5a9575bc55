"""Admin calls on tenants and their limits. Each change is stored together with its audit entry."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar, cast

from fairlane.gateway.control.admin import router
from fairlane.gateway.control.admin.inputs import LimitsBody, Nothing, QuotaBody, TenantBody, TenantChange, TenantsQuery
from fairlane.gateway.control.admin.router import Call, Document
from fairlane.gateway.control.admin.views import Deleted, Page, QuotaView, TenantView, page, tenant_view
from fairlane.gateway.dialects.openai import rate_limits
from fairlane.quotas.audit import Note
from fairlane.quotas.limits import LIMIT_NAMES
from fairlane.quotas.tenants import Tenant, TenantNotFound, VersionConflict
from fairlane.store.errors import STORE_ERRORS

Done = TypeVar("Done")

TRIES = 10
# Quotas of a page that are read concurrently, so that other callers of the store are served in between.
QUOTAS_AT_ONCE = 50
_DEFAULTS = tenant_view(Tenant(id="", root=""))
# Fields whose default depends on the tenant's other fields.
_OF_THE_REST = ("default_lane", "limits")


async def create_tenant(call: Call, body: TenantBody) -> TenantView:
    """Create a tenant. Raise FieldError or TenantExists."""
    stated = {name: value for name, value in _stated(body).items() if value is not None}

    def note(made: Tenant) -> Note:
        return call.note("tenant.create", made.id, None, tenant_view(made))

    return _shown(call, await call.parts.tenants.create(stated, note))


async def list_tenants(call: Call, query: TenantsQuery) -> Page[TenantView]:
    """List tenants by id."""
    found = await call.parts.tenants.list(query.limit + 1, query.after)
    shown = page(found, query.limit, tenant_view, lambda tenant: tenant.id)
    for start in range(0, len(shown["data"]) if query.quota else 0, QUOTAS_AT_ONCE):
        some = slice(start, start + QUOTAS_AT_ONCE)
        quotas = await asyncio.gather(*[_known_quota(call, tenant) for tenant in found[: query.limit][some]])
        for view, quota in zip(shown["data"][some], quotas, strict=True):
            if quota is not None:
                view["quota"] = quota
    return shown


async def get_tenant(call: Call, _: Nothing) -> TenantView:
    """Return one tenant. Raise TenantNotFound."""
    return _shown(call, await the_tenant(call))


async def change_tenant(call: Call, body: TenantChange) -> TenantView:
    """Change the stated fields: null resets to the default, limits are merged. Raise TenantNotFound or FieldError."""
    defaults: Document = _DEFAULTS
    stated = _stated(body)
    cleared = {name: defaults[name] for name in stated if stated[name] is None and name not in _OF_THE_REST}
    return _shown(call, await _change(call, "tenant.update", {**stated, **cleared}))


async def delete_tenant(call: Call, _: Nothing) -> Deleted:
    """Delete a tenant and its keys, and start the erasure of its data; the ledger is kept.

    Raise TenantNotFound or TenantHasChildren."""

    async def delete(before: Tenant) -> None:
        note = call.note("tenant.delete", before.id, tenant_view(before), None)
        await call.parts.tenants.delete(before.id, version=before.version, note=note)

    await _as_seen(call, delete)
    call.parts.erasure.wake()
    return {"id": call.path["tenant"], "deleted": True}


async def suspend_tenant(call: Call, _: Nothing) -> TenantView:
    """Refuse the tenant's requests until it is resumed. Raise TenantNotFound."""
    return _shown(call, await _enter(call, "tenant.suspend", "suspended", call.parts.tenants.suspend))


async def resume_tenant(call: Call, _: Nothing) -> TenantView:
    """Accept the tenant's requests again. Raise TenantNotFound."""
    return _shown(call, await _enter(call, "tenant.resume", "active", call.parts.tenants.resume))


async def get_quota(call: Call, _: Nothing) -> QuotaView:
    """Return every limit of the tenant itself and its current use. Raise TenantNotFound."""
    return await _its_quota(call, await the_tenant(call))


async def put_quota(call: Call, body: QuotaBody) -> QuotaView:
    """Replace all limits. Raise TenantNotFound."""
    limits = {**dict.fromkeys(LIMIT_NAMES), **body.limits.model_dump()}
    return await _its_quota(call, await _change(call, "quota.replace", {"limits": limits}))


async def patch_quota(call: Call, body: QuotaBody) -> QuotaView:
    """Merge limits; null removes one. Raise TenantNotFound."""
    return await _its_quota(call, await _change(call, "quota.update", {"limits": _stated(body.limits)}))


async def the_tenant(call: Call) -> Tenant:
    """Return the tenant that the path names. Raise TenantNotFound."""
    tenant = await call.parts.tenants.get(call.path["tenant"])
    if tenant is None:
        raise TenantNotFound(call.path["tenant"])
    return tenant


async def _change(call: Call, action: str, stated: Document) -> Tenant:
    async def change(before: Tenant) -> Tenant:
        after = before.changed(stated)
        if after == before:
            return before
        note = call.note(action, before.id, *difference(tenant_view(before), tenant_view(after)))
        return await call.parts.tenants.update(before.id, stated, version=before.version, note=note)

    return await _as_seen(call, change)


async def _enter(call: Call, action: str, state: str, enter: Callable[..., Awaitable[Tenant]]) -> Tenant:
    async def change(before: Tenant) -> Tenant:
        if before.state == state:
            return before
        note = call.note(action, before.id, {"state": before.state}, {"state": state})
        return await enter(before.id, version=before.version, note=note)

    return await _as_seen(call, change)


async def _as_seen(call: Call, change: Callable[[Tenant], Awaitable[Done]]) -> Done:
    """Apply a change to exactly the version that the audit entry calls `before` and that the caller expects.

    Raise ApiError `precondition_failed`, TenantNotFound or VersionConflict."""
    for _ in range(TRIES):
        before = await the_tenant(call)
        call.expected.check(router.of_version(before.version))
        try:
            return await change(before)
        except VersionConflict:
            continue
    raise VersionConflict(call.path["tenant"])


def _shown(call: Call, tenant: Tenant) -> TenantView:
    call.tag(router.of_version(tenant.version))
    return tenant_view(tenant)


def difference(before: Document, after: Document) -> tuple[Document, Document]:
    """Return the fields in which two views differ, before and after."""
    names = [name for name in after if after[name] != before[name]]
    return {name: before[name] for name in names}, {name: after[name] for name in names}


async def _its_quota(call: Call, tenant: Tenant) -> QuotaView:
    call.tag(router.of_version(tenant.version))
    return await _quota(call, tenant)


async def _known_quota(call: Call, tenant: Tenant) -> QuotaView | None:
    try:
        return await _quota(call, tenant)
    except STORE_ERRORS:
        return None


async def _quota(call: Call, tenant: Tenant) -> QuotaView:
    standing = await call.parts.budgets.statuses(tenant.root, tenant.account)
    statuses = [status for status in standing if status.scope == "tenant"]
    statuses += await call.parts.batches.standing(tenant, None)
    shown = rate_limits.as_json(await rate_limits.with_queue(statuses, tenant.id, call.parts.fleet.waiting))
    return cast(QuotaView, shown)


def _stated(body: TenantChange | LimitsBody) -> dict[str, object]:
    """Return the fields that the caller sent, including nulls."""
    return body.model_dump(exclude_unset=True)
