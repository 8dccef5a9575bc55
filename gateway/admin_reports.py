"""What operators read: usage from the ledger, and who changed what."""

from contextlib import suppress
from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

from gateway.admin_bodies import AuditQuery, UsageQuery
from gateway.admin_call import Call
from gateway.admin_shapes import AuditView, Page, UsageView
from gateway.admin_views import audit_view, page, usage_view
from quotas import fields
from quotas.fields import FieldError
from quotas.tenants import TenantNotFound

DAYS = timedelta(days=30)
"""What a report without a beginning goes back to."""


async def get_usage(call: Call, query: UsageQuery) -> UsageView:
    """Usage of a tenant, of a deleted one too. Raises TenantNotFound, FieldError."""
    tenant_id, (root, zone) = call.path["tenant"], await the_ledger(call)
    last = datetime.now(zone).date() if query.last is None else _day(query.last, "to", zone)
    first = max(last, date.min + DAYS) - DAYS if query.first is None else _day(query.first, "from", zone)
    groups = [name.strip() for name in query.group_by.split(",")] if query.group_by else []
    if len(set(groups)) != len(groups):
        raise FieldError("group_by", "names a group twice")
    return usage_view(await call.parts.ledger.usage(root, tenant_id, first, last, groups))


async def the_ledger(call: Call) -> tuple[str, ZoneInfo]:
    """Root and zone of the tenant that the path names, of a deleted one too (UTC). Raises TenantNotFound."""
    tenant_id = call.path["tenant"]
    root, tenant = await call.parts.tenants.root(tenant_id), await call.parts.tenants.get(tenant_id)
    if root is None:
        raise TenantNotFound(tenant_id)
    return root, ZoneInfo(tenant.timezone if tenant is not None else "UTC")


async def list_audit(call: Call, query: AuditQuery) -> Page[AuditView]:
    """The audit log, newest first."""
    found = await call.parts.audit.list(query.limit + 1, query.after)
    return page(found, query.limit, audit_view, lambda entry: entry.id)


def moment_or_day(text: str, name: str) -> float | date:
    """A date, or a moment in Unix seconds. Raises FieldError."""
    with suppress(ValueError):
        return date.fromisoformat(text)
    try:
        return fields.moment(float(text) if text.replace(".", "", 1).isdecimal() else text, name)
    except (FieldError, ValueError, OverflowError):
        raise FieldError(name, "must be a date, seconds since 1970, or a time with its zone") from None


def _day(text: str, name: str, zone: ZoneInfo) -> date:
    """A date, or the day of a moment in the tenant's zone. Raises FieldError."""
    stated = moment_or_day(text, name)
    if isinstance(stated, date):
        return stated
    try:
        return datetime.fromtimestamp(stated, UTC).astimezone(zone).date()
    except (ValueError, OverflowError):
        raise FieldError(name, "must be a date, seconds since 1970, or a time with its zone") from None
