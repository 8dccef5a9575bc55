"""Admin call that erases the retained data of deleted tenants: their ledgers, and their names in the audit log."""

from fairlane.gateway.control.admin.inputs import Nothing
from fairlane.gateway.control.admin.router import Call
from fairlane.gateway.control.admin.views import ErasedView
from fairlane.gateway.errors import ApiError
from fairlane.quotas.tenants import TenantNotFound


async def erase_tenant(call: Call, _: Nothing) -> ErasedView:
    """Erase all deleted tenants of an id; a live tenant with that id keeps its data.

    Raise TenantNotFound, or ApiError `tenant_not_deleted`."""
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
