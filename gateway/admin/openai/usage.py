"""OpenAI's usage of completions, and costs, from the ledger: by day, each tenant's day in its own zone."""

from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta

from fairlane.gateway.admin.openai.shapes import (
    Bucket,
    Buckets,
    CompletionsQuery,
    CompletionsResult,
    CostBucket,
    CostBuckets,
    CostsQuery,
    CostsResult,
    DaysQuery,
)
from fairlane.gateway.admin.router import Call
from fairlane.quotas import keyspace
from fairlane.quotas.field_checks import FieldError
from fairlane.quotas.ledger import UsageRow, UsageSums

_ONE_DAY = timedelta(days=1)
_TIERS = {"latency": "priority", "throughput": "flex"}
"""Lanes as the tiers that stand for them."""
_FIELDS = {"api_key_id": "key", "model": "model", "service_tier": "lane"}
"""OpenAI's groups, and the ledger's."""

Group = tuple[str | None, ...]
NANO = 10**9
"""Of the ledger's units of money in one of the currency."""


async def completions(call: Call, query: CompletionsQuery) -> Buckets:
    """Sums of each day, over all tenants or those that are named. Raises FieldError."""
    sums, following = await _sums(call, query, query.limit, query.models, lambda *of: _group(query, *of))
    return {
        "object": "page",
        "data": [_bucket(day, groups) for day, groups in sums.items()],
        "has_more": following is not None,
        "next_page": following,
    }


async def costs(call: Call, query: CostsQuery) -> CostBuckets:
    """The same, in money."""

    def group(project: str, known: Mapping[str, str]) -> Group:
        values = {"project_id": project, "api_key_id": known["key"], "line_item": known["model"]}
        return tuple(value if name in query.group_by else None for name, value in values.items())

    def bucket(day: date, groups: Mapping[Group, UsageSums]) -> CostBucket:
        results = [_cost(each, usage.spend, call.parts.currency) for each, usage in _ordered(groups) if usage.spend]
        start, end = _edges(day)
        return {"object": "bucket", "start_time": start, "end_time": end, "results": results}

    sums, following = await _sums(call, query, query.limit, query.line_items, group)
    return {
        "object": "page",
        "data": [bucket(day, groups) for day, groups in sums.items()],
        "has_more": following is not None,
        "next_page": following,
    }


async def _sums(
    call: Call,
    query: DaysQuery,
    limit: int,
    models: Sequence[str],
    group: Callable[[str, Mapping[str, str]], Group],
) -> tuple[dict[date, dict[Group, UsageSums]], str | None]:
    """Of each day of a page the groups; and the next page, if there is one. Raises FieldError."""
    first, end = _days(query)
    days = [first + n * _ONE_DAY for n in range(min(limit, (end - first).days))]
    sums: dict[date, dict[Group, UsageSums]] = {day: defaultdict(UsageSums) for day in days}
    if days:
        async for project, row in _rows(call, query, models, days[0], days[-1]):
            sums[date.fromisoformat(row.group["day"])][group(project, row.group)].merge(row.usage)
    following = first + len(days) * _ONE_DAY
    return sums, following.isoformat() if following < end else None


def _days(query: DaysQuery) -> tuple[date, date]:
    """The first day of the page, and the first after the whole span. Raises FieldError."""
    first, now = _day(query.start_time), datetime.now(UTC)
    end = _day(int(now.timestamp()) if query.end_time is None else query.end_time - 1) + _ONE_DAY
    if query.end_time is not None and query.end_time <= query.start_time:
        raise FieldError("end_time", "must be after start_time")
    if query.page is None:
        return first, end
    try:
        page = date.fromisoformat(query.page)
    except ValueError:
        raise FieldError("page", "must be a `next_page` of ours") from None
    return max(first, page), end


def _day(seconds: int) -> date:
    try:
        return datetime.fromtimestamp(max(seconds, 0), UTC).date()
    except (ValueError, OverflowError):
        raise FieldError("start_time", "is out of range") from None


async def _rows(
    call: Call, query: DaysQuery, models: Sequence[str], first: date, last: date
) -> AsyncIterator[tuple[str, UsageRow]]:
    """What each tenant used on each day, with each key, model and lane, where it was asked for."""
    async for account, root in _accounts(call, query):
        project = keyspace.tenant_of(account)
        try:
            report = await call.parts.ledger.usage(root, account, first, last, ("day", "lane", "model", "key"))
        except FieldError as error:
            raise FieldError("start_time" if error.field == "from" else "end_time", error.rule) from None
        for row in report.rows:
            if len(row.group["day"]) < len("2026-11-21"):
                raise FieldError("start_time", f"must be after {row.group['day']}, of which only the sum is kept")
            if _is_wanted(models, row.group["model"]) and _is_wanted(query.api_key_ids, row.group["key"]):
                yield project, row


async def _accounts(call: Call, query: DaysQuery) -> AsyncIterator[tuple[str, str]]:
    """Accounts of the tenants that were asked for, deleted ones too, each with its root."""
    if not query.project_ids:
        async for account, root in call.parts.ledger.accounts():
            yield account, root
    for project in dict.fromkeys(query.project_ids):
        known = await call.parts.tenants.root(project)
        if known is not None:
            for account in await call.parts.tenants.accounts(project, known):
                yield account, known


def _is_wanted(named: Sequence[str], name: str) -> bool:
    return not named or name in named


def _group(query: CompletionsQuery, project: str, known: Mapping[str, str]) -> Group:
    values = {"project_id": project, **{name: known[field] for name, field in _FIELDS.items()}}
    values["service_tier"] = _TIERS.get(values["service_tier"], "default")
    return tuple(values[name] if name in query.group_by else None for name in ("project_id", *_FIELDS))


def _bucket(day: date, sums: Mapping[Group, UsageSums]) -> Bucket:
    start, end = _edges(day)
    results = [_result(group, usage) for group, usage in _ordered(sums)]
    return {"object": "bucket", "start_time": start, "end_time": end, "results": results}


def _edges(day: date) -> tuple[int, int]:
    start = int(datetime.combine(day, time(), UTC).timestamp())
    return start, start + 86_400


def _ordered(sums: Mapping[Group, UsageSums]) -> list[tuple[Group, UsageSums]]:
    return sorted(sums.items(), key=lambda item: tuple(name or "" for name in item[0]))


def _cost(group: Group, nano: int, currency: str) -> CostsResult:
    project, key, model = group
    return {
        "object": "organization.costs.result",
        "amount": {"value": nano / NANO, "currency": currency.lower()},
        "project_id": project,
        "api_key_id": key,
        "line_item": model,
    }


def _result(group: Group, usage: UsageSums) -> CompletionsResult:
    project, key, model, tier = group
    return {
        "object": "organization.usage.completions.result",
        "input_tokens": usage.prompt_tokens,
        "input_cached_tokens": usage.cached_tokens,
        "input_uncached_tokens": usage.prompt_tokens - usage.cached_tokens,
        "output_tokens": usage.output_tokens,
        "num_model_requests": usage.requests,
        "project_id": project,
        "api_key_id": key,
        "model": model,
        "service_tier": tier,
    }
