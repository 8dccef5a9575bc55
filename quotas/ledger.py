"""What was used: sums by day, lane, model and key, and the entries they are made of. Written by `settle` alone."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Literal, get_args

from quotas import keyspace
from quotas.database import Database, Redis, Reply
from quotas.fields import FieldError

GroupBy = Literal["day", "lane", "model", "key"]
GROUPS: tuple[str, ...] = get_args(GroupBy)
LONGEST_SPAN_DAYS = 400
_DAYS_PER_CALL = 31


@dataclass(slots=True)
class Usage:
    """A sum over settled requests. Refused and refunded ones are not in it."""

    requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0

    def add(self, figure: str, amount: int) -> None:
        """Add to one figure."""
        setattr(self, figure, getattr(self, figure) + amount)


@dataclass(frozen=True, slots=True)
class UsageRow:
    """The usage of one group: values for the fields asked for, in their order."""

    group: dict[str, str]
    usage: Usage


@dataclass(frozen=True, slots=True)
class UsageReport:
    """Usage by group, sorted by the group's values, and in all."""

    rows: list[UsageRow]
    total: Usage


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerEntry:
    """One settled request."""

    id: str
    """Position in the ledger, for `after`."""
    at: float
    """Epoch seconds."""
    flight_id: str
    key: str
    model: str
    lane: str
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    preemptions: int
    outcome: str


class Ledger:
    """Reads the ledger of any tenant, a deleted one too. Every call may raise StoreUnavailable."""

    def __init__(self, client: Redis) -> None:
        self._database = Database(client)

    async def usage(self, root: str, tenant: str, first: date, last: date, group_by: Sequence[str] = ()) -> UsageReport:
        """Usage from `first` to `last`, both days included, in the days of the tenant's zone at the time.

        Raises FieldError for an unknown group, days in the wrong order or more than LONGEST_SPAN_DAYS of them.
        """
        for name in group_by:
            if name not in GROUPS:
                raise FieldError("group_by", f"must be made of {', '.join(GROUPS)}")
        if not 0 <= (last - first).days < LONGEST_SPAN_DAYS:
            raise FieldError("to", f"must not be before `from`, and at most {LONGEST_SPAN_DAYS} days in all")
        groups: dict[tuple[str, ...], Usage] = {}
        total = Usage()
        days = [first + timedelta(days=n) for n in range((last - first).days + 1)]
        for start in range(0, len(days), _DAYS_PER_CALL):
            for names, figure, amount in await self._sums(root, tenant, days[start : start + _DAYS_PER_CALL]):
                group = tuple(names[name] for name in group_by)
                groups.setdefault(group, Usage()).add(figure, amount)
                total.add(figure, amount)
        rows = [UsageRow(dict(zip(group_by, group, strict=True)), groups[group]) for group in sorted(groups)]
        return UsageReport(rows, total)

    async def entries(self, root: str, tenant: str, limit: int = 100, after: str | None = None) -> list[LedgerEntry]:
        """At most `limit` entries, oldest first, from the one after `after`. About the last 100,000 are kept."""
        stream = f"{keyspace.of_root(root)}ledger:{tenant}"
        start = "-" if after is None else f"({after}"
        reply = await self._database.call("XRANGE", stream, start, "+", "COUNT", limit)
        return [_entry(entry_id, values) for entry_id, values in reply]

    async def _sums(self, root: str, tenant: str, days: Sequence[date]) -> Iterator[tuple[dict[str, str], str, int]]:
        reply = await self._database.run("usage", keyspace.of_root(root), tenant, *(day.isoformat() for day in days))
        return (_sum(day, *pair) for day, flat in zip(days, reply, strict=True) for pair in _pairs(flat))


def _pairs(flat: Reply) -> Iterator[tuple[str, str]]:
    return zip(flat[::2], flat[1::2], strict=True)


def _sum(day: date, field: str, amount: str) -> tuple[dict[str, str], str, int]:
    lane, model, key, figure = field.split("\t")
    return {"day": day.isoformat(), "lane": lane, "model": model, "key": key}, figure, int(amount)


def _entry(entry_id: str, values: dict[str, str]) -> LedgerEntry:
    return LedgerEntry(
        id=entry_id,
        at=int(values["at_ms"]) / 1e3,
        flight_id=values["flight"],
        key=values["key"],
        model=values["model"],
        lane=values["lane"],
        prompt_tokens=int(values["prompt_tokens"]),
        cached_tokens=int(values["cached_tokens"]),
        output_tokens=int(values["output_tokens"]),
        preemptions=int(values["preemptions"]),
        outcome=values["outcome"],
    )
