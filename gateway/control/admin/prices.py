"""Admin calls on prices: the price list, and a month's cost of each tenant."""

import asyncio
import csv
import io
from calendar import monthrange
from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta
from typing import cast

from starlette.responses import Response

from fairlane.common.views import view_of
from fairlane.gateway.control.admin.call import NOT_CACHED, Call, retried
from fairlane.gateway.control.admin.inputs import ChargebackQuery, PricesBody
from fairlane.gateway.control.admin.operation import JSON, Operations
from fairlane.gateway.control.admin.usage import CSV
from fairlane.gateway.control.admin.views import ChargebackLine, ChargebackView, PricesView, usage_line
from fairlane.quotas import keyspace
from fairlane.quotas.field_checks import FieldError
from fairlane.quotas.ledger import UsageReport, UsageSums
from fairlane.quotas.prices import PriceList
from fairlane.store.errors import StoreUnavailable

TENANTS_AT_ONCE = 32
_FIGURES = tuple(usage_line(UsageSums(), {}))

operations = Operations()


@operations.add("GET /prices", tagged=True)
async def get_prices(call: Call) -> PricesView:
    """Return the price list."""
    return _shown(call, await call.parts.prices.get())


@operations.add("PUT /prices", tagged=True)
async def replace_prices(call: Call, body: PricesBody) -> PricesView:
    """Replace the price list for new requests, within a second on all gateways."""
    wanted = PriceList.parse([row.model_dump() for row in body.prices])

    async def replace() -> PriceList:
        before = await call.parts.prices.get()
        call.expect(before.version)
        if before.rows == wanted.rows:
            return before
        note = call.note("prices.replace", "prices", {"prices": before.as_rows()}, {"prices": wanted.as_rows()})
        return await call.parts.prices.put(wanted, version=before.version, note=note)

    stored = await retried(replace)
    with suppress(StoreUnavailable):  # the list is stored; every gateway refreshes its copy soon
        await call.parts.known_prices.look()
    return _shown(call, stored)


def _shown(call: Call, prices: PriceList) -> PricesView:
    call.tag(prices.version)
    return view_of(PricesView, prices, currency=call.parts.currency, prices=prices.as_rows())


@operations.add("GET /chargeback", media=(JSON, CSV))
async def get_chargeback(call: Call, query: ChargebackQuery) -> ChargebackView | Response:
    """Return a month's usage by tenant and by organisation, including deleted ones."""
    groups = [name.strip() for name in query.group_by.split(",")] if query.group_by else []
    if len(set(groups)) != len(groups) or not set(groups) <= {"lane", "model", "key"}:
        raise FieldError("group_by", "must name lane, model and key, each once")
    if query.month is None:
        first = (datetime.now(UTC).date().replace(day=1) - timedelta(days=1)).replace(day=1)
    else:
        first = date.fromisoformat(f"{query.month}-01")
    last = first.replace(day=monthrange(first.year, first.month)[1])
    view = await _view(call, first, last, groups)
    if query.format == "json":
        return view
    name = f'attachment; filename="chargeback-{view["month"]}.csv"'
    return Response(_csv(view, groups), headers={**NOT_CACHED, "content-disposition": name}, media_type=CSV)


async def _view(call: Call, first: date, last: date, groups: Sequence[str]) -> ChargebackView:
    ledger, month = call.parts.ledger, first.isoformat()[:7]
    tenants: list[ChargebackLine] = []
    organisations: dict[tuple[str, ...], UsageSums] = defaultdict(UsageSums)
    total = UsageSums()

    async def read(root: str, account: str) -> tuple[str, str, UsageReport]:
        return root, keyspace.tenant_of(account), await ledger.usage(root, account, first, last, groups)

    known = [(root, account) async for account, root in ledger.accounts()]
    for start in range(0, len(known), TENANTS_AT_ONCE):
        some = known[start : start + TENANTS_AT_ONCE]
        for root, tenant, report in await asyncio.gather(*(read(*each) for each in some)):
            for row in report.rows:
                line = {"month": month, "organisation": root, "tenant": tenant, **row.group}
                tenants.append(cast(ChargebackLine, usage_line(row.usage, line)))
                organisations[root, *row.group.values()].merge(row.usage)
            total.merge(report.total)
    return {
        "month": month,
        "currency": call.parts.currency,
        "tenants": tenants,
        "organisations": [
            cast(ChargebackLine, usage_line(sums, dict(zip(("organisation", *groups), group, strict=True))))
            for group, sums in sorted(organisations.items())
        ],
        "total": usage_line(total, {}),
    }


def _csv(view: ChargebackView, groups: Sequence[str]) -> bytes:
    text = io.StringIO(newline="")
    fields = ("kind", "month", "organisation", "tenant", *groups, *_FIGURES, "currency")
    writer = csv.DictWriter(text, fields, restval="", extrasaction="ignore")
    writer.writeheader()
    own = {"month": view["month"], "currency": view["currency"]}
    kinds: tuple[tuple[str, Iterable[object]], ...] = (
        ("tenant", view["tenants"]),
        ("organisation", view["organisations"]),
        ("total", [view["total"]]),
    )
    for kind, lines in kinds:
        writer.writerows({**cast(dict[str, object], line), **own, "kind": kind} for line in lines)
    return text.getvalue().encode()
