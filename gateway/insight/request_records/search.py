"""Lists of records: running requests, the latest first, then ended ones in the same order.

A list reads at most the whole ring, a part at a time, and keeps no more than a page of it."""

import asyncio
import heapq
import math
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Literal

from fairlane.gateway.insight.request_records import keys
from fairlane.gateway.insight.request_records.record import RequestRecord
from fairlane.gateway.insight.request_records.recorder import RequestRecorder
from fairlane.gateway.insight.request_records.storage import PAGE, RecordStore

Slowest = Literal["ttft", "total", "queue"]
_FOREVER_MS = 9_999_999_999_999
AFTER = r"^[0-9]{13}-[0-9]{13}-[0-9a-f]{1,40}$"
# A request's id, alone, within an answer's id, or within a job's id, as logs show it.
_OWN_ID = re.compile(r"(?:chatcmpl-|cmpl-|msg_)?(?P<id>[0-9a-f]{24})(?:-[0-9]{3})?")
# Sort key of a record; lists are in descending order. By time: end and arrival, epoch ms. By duration: microseconds,
# and 0.
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
        is_of_all = not (self.tenant or self.lane or self.state or self.outcome)
        return min(self.limit + 1, PAGE) if is_of_all else PAGE

    def has(self, record: RequestRecord) -> bool:
        pairs = (
            (self.tenant, record.tenant),
            (self.lane, record.lane),
            (self.state, record.state),
            (self.outcome, record.outcome),
        )
        return all(wanted in (None, found) for wanted, found in pairs) and self.place(record)[0] >= 0

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
        """Return the record of an id: its own, alone or within an answer's or job's id, or another of its names.

        `account`: return only records of this account's tenant."""
        if not given:
            return None
        own = _OWN_ID.fullmatch(given)
        ids = [own["id"]] if own else []
        for name in [*ids, given]:
            record = self._recorder.local(name, account)
            if record is not None:
                return record
        other = keys.of_anybody(given) if account is None else keys.of_tenant(account, given)
        for name in [*ids, other]:
            record = await self._store.find(name)
            if record is not None and account in (None, record.account):
                return record
        return None

    async def listed(self, wanted: RecordQuery) -> list[RequestRecord]:
        async with self._one_at_a_time:  # lists are long work on an event loop that also serves streams
            await self._recorder.flush()
            return await (self._slowest(wanted) if wanted.slowest else self._latest(wanted))

    async def _latest(self, wanted: RecordQuery) -> list[RequestRecord]:
        before, found = wanted.before, list[RequestRecord]()
        running = await self._running() if before[0] >= _FOREVER_MS else []
        for record in sorted(running, key=wanted.place, reverse=True):
            if wanted.has(record) and wanted.place(record) < before:
                found.append(record)
        if len(found) > wanted.limit:
            return found[: wanted.limit + 1]
        seen = {record.id for record in running}
        async for record in self._ended(min(before[0], _FOREVER_MS), seen, wanted.part):
            if wanted.has(record) and wanted.place(record) < before:
                found.append(record)
                if len(found) > wanted.limit:  # before the next part of the ring is asked for
                    break
        return found

    async def _slowest(self, wanted: RecordQuery) -> list[RequestRecord]:
        before, heap = wanted.before, list[tuple[Place, int, RequestRecord]]()
        number = 0

        def look(record: RequestRecord) -> None:
            nonlocal number
            if not wanted.has(record) or not (place := wanted.place(record)) < before:
                return
            number += 1
            heapq.heappush(heap, (place, number, record))
            if len(heap) > wanted.limit + 1:
                heapq.heappop(heap)

        running = await self._running()
        for record in running:
            look(record)
        async for record in self._ended(math.inf, {record.id for record in running}, PAGE):
            look(record)
        return [record for _, _, record in sorted(heap, reverse=True)]

    async def _running(self) -> list[RequestRecord]:
        own = {record.id: record for record in self._recorder.running()}
        return [*own.values(), *[one for one in await self._store.running() if one.id not in own]]

    async def _ended(self, latest_ms: float, seen: set[str], part: int) -> AsyncIterator[RequestRecord]:
        passed_over, has_more = 0, True
        while has_more:
            read, has_more = await self._store.ended(latest_ms, passed_over, part)
            passed_over += part
            for record in read:
                if record.id not in seen:
                    seen.add(record.id)
                    yield record
