"""Admin calls on tenants and their limits. Each change is stored together with its audit entry."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TypeVar, cast

from fairlane.gateway.control.admin.call import Call, Document, difference, retried
from fairlane.gateway.control.admin.inputs import QuotaBody, TenantBody, TenantChange, TenantsQuery
from fairlane.gateway.control.admin.operation import Operations
from fairlane.gateway.control.admin.views import Deleted, ErasedView, Page, QuotaView, TenantView, page, tenant_view
from fairlane.gateway.control.operators.operator import Role
from fairlane.gateway.dialects.openai import rate_limits
from fairlane.gateway.errors import ApiError
from fairlane.quotas.audit import Note
from fairlane.quotas.limits import LIMIT_NAMES
from fairlane.quotas.tenants import Tenant, TenantNotFound
from fairlane.store.errors import STORE_ERRORS

Done = TypeVar("Done")

# Quotas of a page that are read concurrently, so that other callers of the store are served in between.
QUOTAS_AT_ONCE = 50
_DEFAULTS = tenant_view(Tenant(id="", root=""))
# Fields whose default depends on the tenant's other fields.
_OF_THE_REST = ("default_lane", "limits")

operations = Operations()


@operations.add("POST /tenants", status=201, tagged=True, codes=("already_exists",))
async def create_tenant(call: Call, body: TenantBody) -> TenantView:
    """Create a tenant."""
    stated = {name: value for name, value in body.model_dump(exclude_unset=True).items() if value is not None}

    def note(made: Tenant) -> Note:
        return call.note("tenant.create", made.id, None, tenant_view(made))

    return _shown(call, await call.parts.tenants.create(stated, note))


@operations.add("GET /tenants")
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


@operations.add("GET /tenants/{tenant}", tagged=True)
async def get_tenant(call: Call) -> TenantView:
    """Return a tenant."""
    return _shown(call, await the_tenant(call))


@operations.add("PATCH /tenants/{tenant}", role=Role.OPERATOR, tagged=True)
async def change_tenant(call: Call, body: TenantChange) -> TenantView:
    """Change a tenant's stated fields: null resets to the default, limits are merged."""
    defaults: Document = _DEFAULTS
    stated = body.model_dump(exclude_unset=True)
    cleared = {name: defaults[name] for name in stated if stated[name] is None and name not in _OF_THE_REST}
    return _shown(call, await _change(call, "tenant.update", {**stated, **cleared}))


@operations.add("DELETE /tenants/{tenant}", tagged=True, codes=("tenant_has_children",))
async def delete_tenant(call: Call) -> Deleted:
    """Delete a tenant: its keys end at once, its data is erased within an hour, its ledger is kept."""

    async def delete(before: Tenant) -> None:
        note = call.note("tenant.delete", before.id, tenant_view(before), None)
        await call.parts.tenants.delete(before.id, version=before.version, note=note)

    await _as_seen(call, delete)
    call.parts.erasure.wake()
    return {"id": call.path["tenant"], "deleted": True}


@operations.add("POST /tenants/{tenant}/erase", codes=("tenant_not_deleted",))
async def erase_tenant(call: Call) -> ErasedView:
    """Erase the ledgers of the deleted tenants of an id, and their names in the audit log."""
    parts, tenant_id = call.parts, call.path["tenant"]
    root, living = await parts.tenants.root(tenant_id), await parts.tenants.get(tenant_id)
    accounts = [] if root is None else await parts.tenants.accounts(tenant_id, root)
    gone = [account for account in accounts if living is None or account != living.account]
    if living is not None and not gone:
        raise ApiError("The tenant is not deleted: delete it first.", "tenant_not_deleted")
    if root is None or not gone:
        raise TenantNotFound(tenant_id)
    await parts.audit.append(call.note("tenant.erase", tenant_id, None, None))
    erased = await parts.erasure.erase_ledgers(root, gone)
    return {"id": tenant_id, "tenants": len(gone), "erased": dict(erased.counts), "complete": erased.is_complete}


@operations.add("POST /tenants/{tenant}/suspend", role=Role.OPERATOR, tagged=True)
async def suspend_tenant(call: Call) -> TenantView:
    """Suspend a tenant: refuse its requests until it is resumed."""
    return _shown(call, await _enter(call, "tenant.suspend", "suspended", call.parts.tenants.suspend))


@operations.add("POST /tenants/{tenant}/resume", role=Role.OPERATOR, tagged=True)
async def resume_tenant(call: Call) -> TenantView:
    """Resume a suspended tenant."""
    return _shown(call, await _enter(call, "tenant.resume", "active", call.parts.tenants.resume))


@operations.add("GET /tenants/{tenant}/quota", tagged=True)
async def get_quota(call: Call) -> QuotaView:
    """Return every limit that is set, with its used and reserved amounts."""
    return await _quota_view(call, await the_tenant(call))


@operations.add("PUT /tenants/{tenant}/quota", role=Role.OPERATOR, tagged=True)
async def replace_quota(call: Call, body: QuotaBody) -> QuotaView:
    """Replace all limits."""
    limits = {**dict.fromkeys(LIMIT_NAMES), **body.limits.model_dump()}
    return await _quota_view(call, await _change(call, "quota.replace", {"limits": limits}))


@operations.add("PATCH /tenants/{tenant}/quota", role=Role.OPERATOR, tagged=True)
async def change_quota(call: Call, body: QuotaBody) -> QuotaView:
    """Change the stated limits; null removes one."""
    return await _quota_view(
        call, await _change(call, "quota.update", {"limits": body.limits.model_dump(exclude_unset=True)})
    )


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
    """Apply a change to exactly the version that the audit entry calls `before` and that the caller expects."""

    async def attempt() -> Done:
        before = await the_tenant(call)
        call.expect(before.version)
        return await change(before)

    return await retried(attempt)


def _shown(call: Call, tenant: Tenant) -> TenantView:
    call.tag(tenant.version)
    return tenant_view(tenant)


async def _quota_view(call: Call, tenant: Tenant) -> QuotaView:
    call.tag(tenant.version)
    return await _quota(call, tenant)


async def _known_quota(call: Call, tenant: Tenant) -> QuotaView | None:
    with suppress(*STORE_ERRORS):
        return await _quota(call, tenant)
    return None


async def _quota(call: Call, tenant: Tenant) -> QuotaView:
    standing = await call.parts.budgets.statuses(tenant.root, tenant.account)
    statuses = [status for status in standing if status.scope == "tenant"]
    statuses += await call.parts.batches.standing(tenant, None)
    shown = rate_limits.as_json(await rate_limits.with_queue(statuses, tenant.id, call.parts.fleet.waiting))
    return cast(QuotaView, shown)
