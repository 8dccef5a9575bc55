"""Operators' calls on tenants and their limits. Each change takes its entry of the audit log with it."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar, cast

from fairlane.gateway.admin import router
from fairlane.gateway.admin.inputs import LimitsBody, Nothing, QuotaBody, TenantBody, TenantChange, TenantsQuery
from fairlane.gateway.admin.router import Call, Document
from fairlane.gateway.admin.views import Deleted, Page, QuotaView, TenantView, page, tenant_view
from fairlane.gateway.openai import rate_limits
from fairlane.quotas.audit import Note
from fairlane.quotas.limits import LIMIT_NAMES
from fairlane.quotas.tenants import Tenant, TenantNotFound, VersionConflict
from fairlane.store.errors import STORE_ERRORS

Done = TypeVar("Done")

TRIES = 10
QUOTAS_AT_ONCE = 50
"""Of a page; the store's other callers come in between."""
_DEFAULTS = tenant_view(Tenant(id="", root=""))
_OF_THE_REST = ("default_lane", "limits")
"""Fields whose null depends on the tenant's other fields."""


async def create_tenant(call: Call, body: TenantBody) -> TenantView:
    """A new tenant. Raises FieldError, TenantExists."""
    stated = {name: value for name, value in _stated(body).items() if value is not None}

    def note(made: Tenant) -> Note:
        return call.note("tenant.create", made.id, None, tenant_view(made))

    return _shown(call, await call.parts.tenants.create(stated, note))


async def list_tenants(call: Call, query: TenantsQuery) -> Page[TenantView]:
    """Tenants by id."""
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
    """One tenant. Raises TenantNotFound."""
    return _shown(call, await the_tenant(call))


async def change_tenant(call: Call, body: TenantChange) -> TenantView:
    """Change what is stated: null is the default, limits are merged. Raises TenantNotFound, FieldError."""
    defaults: Document = _DEFAULTS
    stated = _stated(body)
    cleared = {name: defaults[name] for name in stated if stated[name] is None and name not in _OF_THE_REST}
    return _shown(call, await _change(call, "tenant.update", {**stated, **cleared}))


async def delete_tenant(call: Call, _: Nothing) -> Deleted:
    """End a tenant and its keys, and have its data erased; its ledger stays.

    Raises TenantNotFound, TenantHasChildren.
    """

    async def delete(before: Tenant) -> None:
        note = call.note("tenant.delete", before.id, tenant_view(before), None)
        await call.parts.tenants.delete(before.id, version=before.version, note=note)

    await _as_seen(call, delete)
    call.parts.erasure.wake()
    return {"id": call.path["tenant"], "deleted": True}


async def suspend_tenant(call: Call, _: Nothing) -> TenantView:
    """Let none of its requests in until it is resumed. Raises TenantNotFound."""
    return _shown(call, await _enter(call, "tenant.suspend", "suspended", call.parts.tenants.suspend))


async def resume_tenant(call: Call, _: Nothing) -> TenantView:
    """Let its requests in again. Raises TenantNotFound."""
    return _shown(call, await _enter(call, "tenant.resume", "active", call.parts.tenants.resume))


async def get_quota(call: Call, _: Nothing) -> QuotaView:
    """Every limit of the tenant itself, as it stands. Raises TenantNotFound."""
    return await _its_quota(call, await the_tenant(call))


async def put_quota(call: Call, body: QuotaBody) -> QuotaView:
    """Replace all limits. Raises TenantNotFound."""
    limits = {**dict.fromkeys(LIMIT_NAMES), **body.limits.model_dump()}
    return await _its_quota(call, await _change(call, "quota.replace", {"limits": limits}))


async def patch_quota(call: Call, body: QuotaBody) -> QuotaView:
    """Merge limits: null takes one away. Raises TenantNotFound."""
    return await _its_quota(call, await _change(call, "quota.update", {"limits": _stated(body.limits)}))


async def the_tenant(call: Call) -> Tenant:
    """The tenant that the path names. Raises TenantNotFound."""
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
    """Bring the tenant into a state, if it is not there already."""

    async def change(before: Tenant) -> Tenant:
        if before.state == state:
            return before
        note = call.note(action, before.id, {"state": before.state}, {"state": state})
        return await enter(before.id, version=before.version, note=note)

    return await _as_seen(call, change)


async def _as_seen(call: Call, change: Callable[[Tenant], Awaitable[Done]]) -> Done:
    """Do something to exactly the version that the audit log calls `before`, and that the caller expects.

    Raises ApiError `precondition_failed`, TenantNotFound, VersionConflict.
    """
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
    """Of two views of one thing, the fields that differ, before and after."""
    names = [name for name in after if after[name] != before[name]]
    return {name: before[name] for name in names}, {name: after[name] for name in names}


async def _its_quota(call: Call, tenant: Tenant) -> QuotaView:
    """The answer to a call on one tenant's quota."""
    call.tag(router.of_version(tenant.version))
    return await _quota(call, tenant)


async def _known_quota(call: Call, tenant: Tenant) -> QuotaView | None:
    """None: a store that says something of it does not answer."""
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
    """The fields that the caller sent, those that are null too."""
    return body.model_dump(exclude_unset=True)
