"""The usage ledger: entries of settled requests, and their sums by day, lane, model and key.

Tokens of a request that runs over midnight count on the day of their charge, as in the quotas; the request, its cached
tokens and the workers' measurements count on the day when it ends. Old days are merged into their month's sums."""

import asyncio
import math
from collections.abc import AsyncIterator, Container, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, date, datetime, timedelta

import msgspec

from fairlane.quotas import keyspace
from fairlane.quotas.field_checks import FieldError
from fairlane.quotas.limits import FREE, Prices
from fairlane.quotas.scripts import Database, Redis, Reply
from fairlane.quotas.tenants import TenantIds
from fairlane.quotas.upkeep import Unexported
from fairlane.store.bounds import PER_CALL

GROUPS = ("day", "lane", "model", "key")
LONGEST_SPAN_DAYS = 400
DAYS_PER_CALL = 31
_PAGE = 500
# Reply of usage_roll when sums are left to move.
_MORE = 2


@dataclass(slots=True)
class UsageSums:
    """A sum over settled requests; refused and refunded ones do not count."""

    requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    # Nano-units of the currency.
    spend: int = 0
    # Accelerator time as measured by workers, in microseconds.
    gpu_us: int = 0
    # KV blocks held, multiplied by milliseconds.
    kv_block_ms: int = 0

    def merge(self, other: "UsageSums") -> None:
        for figure in fields(self):
            setattr(self, figure.name, getattr(self, figure.name) + getattr(other, figure.name))


@dataclass(frozen=True, slots=True)
class UsageRow:
    """The usage of one group; `group` maps the requested fields to their values, in order."""

    group: dict[str, str]
    usage: UsageSums


@dataclass(frozen=True, slots=True)
class UsageReport:
    """Usage by group, sorted by the group's values, with its total."""

    rows: list[UsageRow]
    total: UsageSums


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerEntry:
    """One settled run of a request; few requests have more than one."""

    id: str
    # Epoch seconds.
    at: float
    reservation_id: str
    key: str
    model: str
    lane: str
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    preemptions: int
    outcome: str
    # The charge in nano-units: its tokens at `prices`.
    spend: int = 0
    prices: Prices = FREE
    gpu_us: int = 0
    kv_block_ms: int = 0


class Ledger:
    """The ledger of any account, also of deleted tenants, and its export. Every call may raise StoreUnavailable."""

    def __init__(self, client: Redis) -> None:
        self._database = Database(client)

    async def usage(
        self,
        root: str,
        account: str,
        first: date,
        last: date,
        group_by: Sequence[str] = (),
        most_rows: float = math.inf,
    ) -> UsageReport:
        """Return the usage from `first` to `last`, both included, in days of the tenant's zone at the time.

        For days that were rolled up, `day` is their month. Raises FieldError for an unknown group, days in the wrong
        order, more than LONGEST_SPAN_DAYS of them, a range that splits a month that was rolled up, or more rows than
        `most_rows`."""
        for name in group_by:
            if name not in GROUPS:
                raise FieldError("group_by", f"must consist of {', '.join(GROUPS)}")
        if not 0 <= (last - first).days < LONGEST_SPAN_DAYS:
            raise FieldError("to", f"must not be before `from`, and span at most {LONGEST_SPAN_DAYS} days")
        while True:
            rolled = await _rolled(self._database, root, account)
            report = await self._report(root, account, first, last, group_by, rolled.last, most_rows)
            # Otherwise sums that were moved meanwhile may be missing or doubled.
            if await _rolled(self._database, root, account) == rolled:
                return report

    async def entries(
        self,
        root: str,
        account: str,
        limit: int = 100,
        after: str | None = None,
        *,
        first_ms: int | None = None,
        last_ms: int | None = None,
    ) -> list[LedgerEntry]:
        stream = f"{keyspace.of_root(root)}ledger:{account}"
        start = f"({after}" if after is not None else "-" if first_ms is None else str(first_ms)
        end = "+" if last_ms is None else str(last_ms)
        reply = await self._database.call("XRANGE", stream, start, end, "COUNT", limit)
        return _entries(reply)

    async def pages(self, root: str, account: str, first_ms: int, last_ms: int) -> AsyncIterator[list[LedgerEntry]]:
        after = None
        while page := await self.entries(root, account, _PAGE, after, first_ms=first_ms, last_ms=last_ms):
            yield page
            after = page[-1].id

    async def accounts(self, *, lately: bool = False) -> AsyncIterator[tuple[str, str]]:
        """Yield each account with its root; with `lately`, only those of roots with recent requests."""
        roots = set(await self._database.call("ZRANGE", keyspace.ROOTS, 0, -1)) if lately else None
        async for account, root in all_accounts(self._database, roots):
            yield account, root

    async def reaches_back(self, root: str, account: str) -> float | None:
        oldest = await self.entries(root, account, 1)
        return oldest[0].at if oldest else None

    async def now_ms(self) -> int:
        return await self._database.now_ms()

    async def export_state(self) -> str:
        return await self._database.call("GET", keyspace.EXPORT) or ""

    async def write_export_state(self, seen: str, new: str) -> bool:
        return bool(await self._database.run("export_write", keyspace.EXPORT, seen, new))

    async def unexported(self, root: str, account: str, limit: int) -> Unexported[LedgerEntry]:
        after, number, lost, reply = await self._database.run(
            "ledger_unexported", keyspace.of_root(root), *_exported_names(root, account), limit
        )
        return Unexported(after, number, lost, _entries(reply))

    async def between(self, root: str, account: str, after: str, last: str) -> list[LedgerEntry]:
        stream = f"{keyspace.of_root(root)}ledger:{account}"
        return _entries(await self._database.call("XRANGE", stream, f"({after}", last))

    async def exported(self, root: str, account: str, after: str, last: str, number: int) -> None:
        """Record that the entries after `after` are exported; `number` counts all up to `last`. Repeatable."""
        names = _exported_names(root, account)
        await self._database.run("ledger_exported", keyspace.of_root(root), *names, after, last, number)

    async def _report(
        self,
        root: str,
        account: str,
        first: date,
        last: date,
        group_by: Sequence[str],
        rolled: date | None,
        most_rows: float,
    ) -> UsageReport:
        groups: dict[tuple[str, ...], UsageSums] = {}
        total = UsageSums()
        parted = {} if rolled is None else _months(first, last, rolled)
        spans = [*parted, *((first + timedelta(days=n)).isoformat() for n in range((last - first).days + 1))]
        async for span, sums in self._sums(root, account, spans):
            if sums and (end := parted.get(span)):
                raise FieldError(end, f"must not split {span}, whose days were rolled up into one sum")
            for text, figures in sums.items():
                names = dict(zip(GROUPS[1:], text.split("\t"), strict=True), day=span)
                for each in (groups.setdefault(tuple(names[name] for name in group_by), UsageSums()), total):
                    each.merge(UsageSums(*figures))
            if len(groups) > most_rows:
                raise FieldError("group_by", f"has more than {most_rows:,} rows: name fewer groups, or fewer days")
        rows = [UsageRow(dict(zip(group_by, group, strict=True)), groups[group]) for group in sorted(groups)]
        return UsageReport(rows, total)

    async def _sums(
        self, root: str, account: str, spans: Sequence[str]
    ) -> AsyncIterator[tuple[str, dict[str, list[int]]]]:
        cursor, sums, at = "0", dict[str, list[int]](), 0
        while at < len(spans):
            asked = spans[at : at + DAYS_PER_CALL]
            cursor, pages = await self._database.run("usage", keyspace.of_root(root), account, cursor, *asked)
            for number, page in enumerate(pages, 1):
                sums |= {text: figures for text, *figures in page}
                if number < len(pages) or cursor == "0":
                    yield spans[at], sums
                    sums, at = {}, at + 1


@dataclass(frozen=True, slots=True)
class _Rolled:
    """How far an account's days are rolled up, and the progress of a roll-up that is under way."""

    # The last day whose sums may have been moved into its month's.
    last: date | None
    # The last day whose sums were all moved, as a date; empty if none.
    marker: str
    # The last day of the roll-up under way, and a counter that each of its calls increments; empty if none runs.
    moving: str


async def _rolled(database: Database, root: str, account: str) -> _Rolled:
    prefix = keyspace.of_root(root)
    found = await database.call("MGET", f"{prefix}rolled:{account}", f"{prefix}rolling:{account}")
    marker, moving = found[0] or "", found[1] or ""
    last = max(marker, moving.partition(" ")[0])
    return _Rolled(date.fromisoformat(last) if last else None, marker, moving)


async def all_accounts(database: Database, roots: Container[str] | None = None) -> AsyncIterator[tuple[str, str]]:
    """Yield the account of every tenant of `roots` whose ledger is kept, deleted ones included; each with its root."""
    ids, start = TenantIds(database), "-"
    while entries := await database.call("ZRANGEBYLEX", keyspace.TENANTS, start, "+", "LIMIT", 0, PER_CALL):
        named = [(tenant, root) for tenant, root in (entry.split(" ") for entry in entries)]
        wanted = [(tenant, root) for tenant, root in named if roots is None or root in roots]
        found = await asyncio.gather(*(ids.accounts(tenant, root) for tenant, root in wanted))
        for (_, root), accounts in zip(wanted, found, strict=True):
            for account in accounts:
                yield account, root
        start = f"({entries[-1]}"


def _months(first: date, last: date, rolled: date) -> dict[str, str]:
    found: dict[str, str] = {}
    day = first
    while day <= min(last, rolled):
        begins = day.replace(day=1)
        following = (begins + timedelta(days=31)).replace(day=1)
        ends = min(following - timedelta(days=1), rolled)
        found[day.isoformat()[:7]] = "from" if first > begins else "to" if last < ends else ""
        day = following
    return found


def _exported_names(root: str, account: str) -> tuple[str, str]:
    """Return the rest of a ledger's name after its root's prefix, and the name of its export's marks."""
    return f"ledger:{account}", f"{keyspace.of_root(root)}exported:{account}"


def _entries(reply: Reply) -> list[LedgerEntry]:
    return [
        _entry(entry_id, values if isinstance(values, dict) else dict(zip(values[::2], values[1::2], strict=True)))
        for entry_id, values in reply
    ]


# The parts of an entry as `settle` writes them.
_TOKENS = ("prompt_tokens", "cached_tokens", "output_tokens")
_ENTRY = ("at_ms", "reservation_id", "key", "model", "lane", *_TOKENS, "preemptions", "outcome")
_COSTS = ("spend", "input", "cached", "output", "gpu_us", "kv_block_ms")
_NO_COSTS = "0\t0\t0\t0\t0\t0"


def _entry(entry_id: str, values: dict[str, str]) -> LedgerEntry:
    entry = dict(zip(_ENTRY, values["entry"].split("\t"), strict=True))
    costs = dict(zip(_COSTS, values.get("costs", _NO_COSTS).split("\t"), strict=True))
    known = entry | costs | {"id": entry_id, "at": int(entry["at_ms"]) / 1e3, "prices": costs}
    return msgspec.convert(known, LedgerEntry, strict=False)


# How far back the first roll-up of a tenant reaches.
FIRST_LOOK_DAYS = 500
_DAY_MS = 86_400_000
_CLAIM_S = 3_600
_REST_S = 72_000


class RollUp:
    """Rolls up the ledgers of all tenants, deleted ones included. Every call may raise StoreUnavailable. Any number of
    gateways may do so at once: each step is one script, which does nothing if another gateway was first."""

    def __init__(
        self, client: Redis, *, days: int, months: int, entry_days: int | None = None, exports: bool = False
    ) -> None:
        """`days`: how many days keep their own sums. `months`: how long monthly sums are kept after that. `entry_days`:
        how long entries are kept (None: as long as `days`). `exports`: keep entries until they are exported."""
        self._database = Database(client)
        self._days = days
        self._months = months
        self._entry_days = days if entry_days is None else entry_days
        self._exports = exports

    async def daily(self) -> None:
        """Roll up what is due, once a day. If the gateway that does it dies, another takes over within an hour."""
        claim = self._database.new_call()
        is_ours = await self._database.call("SET", keyspace.ROLL_UP, claim, "NX", "EX", _CLAIM_S)
        if not is_ours and await self._database.call("GET", keyspace.ROLL_UP) != claim:  # equal if the call was resent
            return
        today = datetime.fromtimestamp(await self._database.now_ms() / 1e3, UTC).date()
        await self.all(today)
        await self._database.call("SET", keyspace.ROLL_UP, "done", "EX", _REST_S)

    async def all(self, today: date) -> None:
        async for account, root in all_accounts(self._database):
            await self.tenant(root, account, today)

    async def tenant(self, root: str, account: str, today: date) -> None:
        prefix, last = keyspace.of_root(root), today - timedelta(days=self._days + 1)
        before_ms = (today - timedelta(days=self._entry_days + 1) - date(1970, 1, 1)).days * _DAY_MS
        await self._database.run("ledger_trim", prefix, account, max(0, before_ms), int(self._exports))
        known = await _rolled(self._database, root, account)
        marker, moving, begun = known.marker, known.moving, known.last or date.min
        rolled = date.fromisoformat(marker) if marker else last - timedelta(days=FIRST_LOOK_DAYS)
        day = rolled + timedelta(days=1)
        while day <= max(last, begun):  # finish a roll-up begun with other settings
            until = max(min(day + timedelta(days=DAYS_PER_CALL - 1), last), begun)
            days = [day + timedelta(days=n) for n in range((until - day).days + 1)]
            if not await self._roll(prefix, account, days, marker, moving):
                return
            marker, moving, day = until.isoformat(), "", until + timedelta(days=1)

    async def _roll(self, prefix: str, account: str, days: Sequence[date], marker: str, moving: str) -> bool:
        """Move the sums of these days; False if another gateway rolls up. `marker`, `moving`: see _Rolled."""
        until, kept_ms = days[-1].isoformat(), self._months * 31 * _DAY_MS
        named = [each.isoformat() for each in days]
        while True:
            after = f"{until} {int(moving.partition(' ')[2] or 0) + 1}"
            left = await self._database.run(
                "usage_roll", prefix, account, marker, until, moving, after, kept_ms, *named
            )
            if left != _MORE:
                return bool(left)
            moving = after
