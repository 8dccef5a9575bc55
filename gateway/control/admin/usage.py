"""Admin calls on usage and the audit log.

The ledger's export is streamed: a few hundred entries are in memory at a time."""

import csv
import io
import json
import math
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, date, datetime, time, timedelta
from zoneinfo import ZoneInfo

import msgspec
from starlette.responses import Response, StreamingResponse

from fairlane.common.views import view_of
from fairlane.gateway.control.admin.call import NOT_CACHED, Call
from fairlane.gateway.control.admin.inputs import AuditQuery, DaysQuery, LedgerQuery, OfIncarnation, UsageQuery
from fairlane.gateway.control.admin.operation import JSON, Operations
from fairlane.gateway.control.admin.views import AuditView, OwnUsageView, Page, UsageView, page, usage_line
from fairlane.quotas import field_checks, keyspace
from fairlane.quotas.audit import AuditEntry, AuditFilter
from fairlane.quotas.field_checks import FieldError
from fairlane.quotas.ledger import Ledger, LedgerEntry
from fairlane.quotas.tenants import TenantNotFound

# The default span of a report without a start.
DAYS = timedelta(days=30)
# Entries of an exported audit log that are in memory at a time.
AUDIT_PART = 500
AUDIT_FIELDS = ("id", "at", "actor", "address", "action", "target", "changes")
UTC_ZONE = ZoneInfo("UTC")
Lines = Iterable[Mapping[str, object]]
CSV, JSON_LINES = "text/csv", "application/jsonl"

operations = Operations()


@operations.add("GET /tenants/{tenant}/usage")
async def get_usage(call: Call, query: UsageQuery) -> UsageView:
    """Return a tenant's usage from the ledger, also of a deleted tenant."""
    root, zone, accounts = await the_ledger(call)
    account = _chosen(call, query, accounts)
    found = await usage_of(call.parts.ledger, call.parts.currency, root, account, zone, query)
    return {
        **found,
        "incarnation": keyspace.incarnation_of(account),
        "earlier": [keyspace.incarnation_of(each) for each in accounts if each != account],
    }


async def usage_of(
    ledger: Ledger,
    currency: str,
    root: str,
    account: str,
    zone: ZoneInfo,
    query: DaysQuery,
    most_rows: float = math.inf,
) -> OwnUsageView:
    """Return an account's usage. Raises FieldError."""
    last = datetime.now(zone).date() if query.last is None else _day(query.last, "to", zone)
    first = max(last, date.min + DAYS) - DAYS if query.first is None else _day(query.first, "from", zone)
    groups = [name.strip() for name in query.group_by.split(",")] if query.group_by else []
    if len(set(groups)) != len(groups):
        raise FieldError("group_by", "names a group twice")
    report = await ledger.usage(root, account, first, last, groups, most_rows)
    return {
        "data": [usage_line(row.usage, row.group) for row in report.rows],
        "total": usage_line(report.total, {}),
        "currency": currency,
        "entries_from": await ledger.reaches_back(root, account),
    }


async def the_ledger(call: Call) -> tuple[str, ZoneInfo, Sequence[str]]:
    """Return root, time zone (UTC for a deleted tenant) and all accounts of the tenant's id, newest first.

    Raise TenantNotFound."""
    tenant_id = call.path["tenant"]
    root, tenant = await call.parts.tenants.root(tenant_id), await call.parts.tenants.get(tenant_id)
    accounts = [] if root is None else await call.parts.tenants.accounts(tenant_id, root)
    if root is None or not accounts:
        raise TenantNotFound(tenant_id)
    await call.parts.report(root)
    return root, ZoneInfo(tenant.timezone if tenant is not None else "UTC"), accounts


def _chosen(call: Call, query: OfIncarnation, accounts: Sequence[str]) -> str:
    if query.incarnation is None:
        return accounts[0]
    account = keyspace.account(call.path["tenant"], query.incarnation)
    if account not in accounts:
        raise TenantNotFound(account)
    return account


@operations.add("GET /audit", media=(JSON, CSV, JSON_LINES))
async def list_audit(call: Call, query: AuditQuery) -> Page[AuditView] | Response:
    """List the audit log, newest first, or export what matches.

    A page may be shorter than its limit, even empty, while there are more: each call reads 10,000 entries at most."""
    wanted = AuditFilter(
        actor=query.actor,
        action=query.action,
        target=query.target,
        first_s=None if query.first is None else _edge_ms(query.first, "from", UTC_ZONE) / 1e3,
        last_s=None if query.last is None else _edge_ms(query.last, "to", UTC_ZONE, is_end=True) / 1e3,
    )
    if query.format != "json":
        return await _audit_file(call, wanted, query)
    found, place = await call.parts.audit.search(wanted, query.limit + 1, query.after)
    shown = page(found, query.limit, _entry, lambda entry: entry.id)
    if len(found) > query.limit or place is None:
        return shown
    return {**shown, "has_more": True, "last_id": place}


async def _audit_file(call: Call, wanted: AuditFilter, query: AuditQuery) -> Response:
    audit, is_csv = call.parts.audit, query.format == "csv"
    first = await audit.search(wanted, AUDIT_PART, query.after)  # an unavailable store is a 503, not half a file

    async def chunks() -> AsyncIterator[bytes]:
        found, place = first
        if is_csv:
            yield _csv([dict(zip(AUDIT_FIELDS, AUDIT_FIELDS, strict=True))])
        while True:
            lines = [_audit_line(entry) if is_csv else _entry(entry) for entry in found]
            yield _csv(lines) if is_csv else _json_lines(lines)
            if place is None:
                return
            found, place = await audit.search(wanted, AUDIT_PART, place)

    name = f'attachment; filename="audit.{query.format}"'
    kind = CSV if is_csv else JSON_LINES
    return StreamingResponse(chunks(), headers={**NOT_CACHED, "content-disposition": name}, media_type=kind)


def _entry(entry: AuditEntry) -> AuditView:
    return view_of(AuditView, entry)


def _audit_line(entry: AuditEntry) -> dict[str, object]:
    view = _entry(entry)
    at = datetime.fromtimestamp(entry.at, UTC).isoformat()
    return {**{name: view[name] for name in AUDIT_FIELDS}, "at": at, "changes": json.dumps(view["changes"])}  # type: ignore[literal-required]


def moment_or_day(text: str, name: str) -> float | date:
    """Parse a date, or a moment as Unix seconds. Raise FieldError."""
    with suppress(ValueError):
        return date.fromisoformat(text)
    try:
        return field_checks.moment(float(text) if text.replace(".", "", 1).isdecimal() else text, name)
    except (FieldError, ValueError, OverflowError):
        raise FieldError(name, "must be a date, seconds since 1970, or a time with its zone") from None


def _day(text: str, name: str, zone: ZoneInfo) -> date:
    stated = moment_or_day(text, name)
    if isinstance(stated, date):
        return stated
    try:
        return datetime.fromtimestamp(stated, UTC).astimezone(zone).date()
    except (ValueError, OverflowError):
        raise FieldError(name, "must be a date, seconds since 1970, or a time with its zone") from None


FIELDS = (
    "id",
    "at",
    "tenant",
    "key",
    "model",
    "lane",
    "prompt_tokens",
    "cached_tokens",
    "output_tokens",
    "preemptions",
    "outcome",
    "flight_id",
    "cost",
    "input_price",
    "cached_input_price",
    "output_price",
    "currency",
    "gpu_seconds",
    "kv_block_seconds",
)


@operations.add("GET /tenants/{tenant}/ledger", media=(CSV, JSON_LINES))
async def export_ledger(call: Call, query: LedgerQuery) -> Response:
    """Export a tenant's ledger entry by entry, also of a deleted tenant."""
    ledger, tenant = call.parts.ledger, call.path["tenant"]
    root, zone, accounts = await the_ledger(call)
    first_ms, last_ms = 0, await ledger.now_ms()  # entries settled from now on are left out
    if query.first is not None:
        first_ms = _edge_ms(query.first, "from", zone)
    if query.last is not None:
        last_ms = min(last_ms, _edge_ms(query.last, "to", zone, is_end=True))
    if first_ms > last_ms:
        raise FieldError("to", "must not be before `from`, nor `from` in the future")
    pages = ledger.pages(root, _chosen(call, query, accounts), first_ms, last_ms)
    first_page: list[LedgerEntry] = await anext(
        pages, []
    )  # read before the response starts: an unavailable store is a 503, not half a file
    write, kind = (_csv, CSV) if query.format == "csv" else (_json_lines, JSON_LINES)
    name = f'attachment; filename="ledger-{tenant}.{query.format}"'
    own = {"tenant": tenant, "currency": call.parts.currency}
    chunks = _chunks(write, own, first_page, pages, header=query.format == "csv")
    return StreamingResponse(chunks, headers={**NOT_CACHED, "content-disposition": name}, media_type=kind)


async def _chunks(
    write: Callable[[Lines], bytes],
    own: Mapping[str, str],
    page: list[LedgerEntry],
    following: AsyncIterator[list[LedgerEntry]],
    *,
    header: bool,
) -> AsyncIterator[bytes]:
    if header:
        yield write([dict(zip(FIELDS, FIELDS, strict=True))])
    while page:
        yield write(_line(own, entry) for entry in page)
        page = await anext(following, [])


def ledger_lines(account: str, currency: str, entries: Iterable[LedgerEntry]) -> list[bytes]:
    """Return ledger entries as JSON lines, each with the incarnation of the account's tenant."""
    own = {"tenant": keyspace.tenant_of(account), "currency": currency}
    incarnation = {"incarnation": keyspace.incarnation_of(account)}
    return [msgspec.json.encode(_line(own, entry) | incarnation) + b"\n" for entry in entries]


def audit_lines(_: str, entries: Iterable[AuditEntry]) -> list[bytes]:
    """Return entries of the audit log as JSON lines."""
    return [msgspec.json.encode(view_of(AuditView, entry)) + b"\n" for entry in entries]


def _line(own: Mapping[str, str], entry: LedgerEntry) -> dict[str, object]:
    shown: dict[str, object] = {
        **own,
        "flight_id": entry.reservation_id,
        "cost": entry.spend,
        "input_price": entry.prices.input,
        "cached_input_price": entry.prices.cached,
        "output_price": entry.prices.output,
        "gpu_seconds": entry.gpu_us / 1e6,
        "kv_block_seconds": entry.kv_block_ms / 1e3,
    }
    return {name: shown[name] if name in shown else getattr(entry, name) for name in FIELDS}


def _csv(lines: Lines) -> bytes:
    text = io.StringIO(newline="")
    csv.writer(text).writerows(line.values() for line in lines)
    return text.getvalue().encode()


def _json_lines(lines: Lines) -> bytes:
    return b"".join(msgspec.json.encode(line) + b"\n" for line in lines)


def _edge_ms(text: str, name: str, zone: ZoneInfo, *, is_end: bool = False) -> int:
    """Return the first or, with `is_end`, the last millisecond of a span; a date covers its whole day. Raise
    FieldError."""
    stated = moment_or_day(text, name)
    if not isinstance(stated, date):
        return int(stated * 1e3)
    try:
        midnight = datetime.combine(stated + timedelta(days=1 if is_end else 0), time(), zone).astimezone(UTC)
    except OverflowError:
        raise FieldError(name, "is out of range") from None
    return max(0, int(midnight.timestamp() * 1e3) - int(is_end))
