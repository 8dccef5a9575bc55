"""Lists of records, the latest or the slowest first. A list reads the ring in parts, and keeps at most a page of it."""

import asyncio
import heapq
import math
import re
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from typing import Literal

from fairlane.gateway.insight.request_records.record import RequestRecord
from fairlane.gateway.insight.request_records.recorder import RequestRecorder
from fairlane.gateway.insight.request_records.storage import PAGE, RecordStore, stored_name

Slowest = Literal["ttft", "total", "queue"]
_FOREVER_MS = 9_999_999_999_999
_FILTERS = ("tenant", "lane", "state", "outcome")
AFTER = r"^[0-9]{13}-[0-9]{13}-[0-9a-f]{1,40}$"
# A request's id, alone, within a response's id, or within a job's id, as logs show it.
_OWN_ID = re.compile(r"(?:chatcmpl-|cmpl-|msg_)?(?P<id>[0-9a-f]{24})(?:-[0-9]{3})?")
# Sort key of a record, descending. By time: end and arrival, epoch ms. By duration: microseconds, and 0.
Place = tuple[int, int, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordQuery:
    """A filter, an order and a page."""

    tenant: str | None = None
    lane: str | None = None
    state: str | None = None
    outcome: str | None = None
    slowest: Slowest | None = None
    limit: int = 100
    after: str | None = None

    @property
    def part(self) -> int:
        is_filtered = any(getattr(self, name) for name in _FILTERS)
        return PAGE if is_filtered else min(self.limit + 1, PAGE)

    def has(self, record: RequestRecord) -> bool:
        wanted = [getattr(self, name) in (None, getattr(record, name)) for name in _FILTERS]
        return all(wanted) and self.place(record)[0] >= 0

    def among(self, records: Iterable[RequestRecord]) -> list[RequestRecord]:
        """Return those that match and belong to this page or a later one."""
        before = self.before
        return [record for record in records if self.has(record) and self.place(record) < before]

    def place(self, record: RequestRecord) -> Place:
        """Return the sort key; its first number is negative if the record lacks the figure to sort by."""
        if self.slowest is None:
            return record.ended_ms or _FOREVER_MS, round(record.arrived_s * 1e3), record.id
        found = {"ttft": record.ttft_ms, "total": record.total_ms, "queue": record.queue_ms}[self.slowest]
        return -1 if found is None else round(found * 1e3), 0, record.id

    def shown_place(self, record: RequestRecord) -> str:
        first, second, name = self.place(record)
        return f"{first:013}-{second:013}-{name}"

    @property
    def before(self) -> Place:
        if self.after is None or re.match(AFTER, self.after) is None:
            return _FOREVER_MS + 1, 0, ""
        first, second, name = self.after.split("-", 2)
        return int(first), int(second), name


class Records:
    """Records of the requests of all gateways. Every call may raise StoreUnavailable."""

    def __init__(self, store: RecordStore, recorder: RequestRecorder) -> None:
        self._store = store
        self._recorder = recorder
        self._one_at_a_time = asyncio.Lock()

    async def find(self, given: str, account: str | None = None) -> RequestRecord | None:
        """Return a record by its id, alone or within a response's or job's id, or another name; None: of any
        account."""
        if not given:
            return None
        own = _OWN_ID.fullmatch(given)
        ids = [own["id"]] if own else []
        for name in [*ids, given]:
            record = self._recorder.local(name, account)
            if record is not None:
                return record
        for name in [*ids, stored_name(given, account)]:
            record = await self._store.find(name)
            if record is not None and account in (None, record.account):
                return record
        return None

    async def listed(self, wanted: RecordQuery) -> list[RequestRecord]:
        async with self._one_at_a_time:  # building a list takes long on an event loop that also serves streams
            await self._recorder.flush()
            return await (self._slowest(wanted) if wanted.slowest else self._latest(wanted))

    async def ended_of(self, account: str, wanted: RecordQuery) -> list[RequestRecord]:
        """Return a page of a tenant's ended requests, newest first, and the first of the next one. It flushes nothing:
        a tenant could so have more of its refusals recorded than one may."""
        found: list[RequestRecord] = []
        async for records in self._ended(wanted.before[0], set(), wanted.part, account):
            found += wanted.among(records)
            if len(found) > wanted.limit:
                break
        return found[: wanted.limit + 1]

    async def _latest(self, wanted: RecordQuery) -> list[RequestRecord]:
        before = wanted.before
        running = await self._running() if before[0] >= _FOREVER_MS else []
        found = sorted(wanted.among(running), key=wanted.place, reverse=True)
        if len(found) <= wanted.limit:
            seen = {record.id for record in running}
            async for records in self._ended(min(before[0], _FOREVER_MS), seen, wanted.part):
                found += wanted.among(records)
                if len(found) > wanted.limit:
                    break
        return found[: wanted.limit + 1]

    async def _slowest(self, wanted: RecordQuery) -> list[RequestRecord]:
        running = await self._running()
        found = wanted.among(running)
        async for records in self._ended(math.inf, {record.id for record in running}, PAGE):
            found = heapq.nlargest(wanted.limit + 1, [*found, *wanted.among(records)], key=wanted.place)
        return found

    async def _running(self) -> list[RequestRecord]:
        own = {record.id: record for record in self._recorder.running()}
        return [*own.values(), *[one for one in await self._store.running() if one.id not in own]]

    async def _ended(
        self, latest_ms: float, seen: set[str], part: int, account: str = ""
    ) -> AsyncIterator[list[RequestRecord]]:
        passed_over, has_more = 0, True
        while has_more:
            read, has_more = await self._store.ended(latest_ms, passed_over, part, account)
            passed_over += part
            yield [record for record in read if record.id not in seen]
            seen |= {record.id for record in read}
