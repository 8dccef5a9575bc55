"""Lists of records: those that run first, the latest first; then those that have ended, in the same order.

A list looks at the whole ring at most, a part at a time, and keeps no more than a page of it.
"""

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
_OWN_ID = re.compile(r"(?:chatcmpl-|cmpl-|msg_)?(?P<id>[0-9a-f]{24})(?:-[0-9]{3})?")
"""A request's, as it is, within an answer's, or within a job's, as logs name it."""
Place = tuple[int, int, str]
"""Where a record stands in a list; lists go from the highest down. By time: when it ended and when it came, epoch ms;
of the slowest: how long, microseconds, and 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordQuery:
    """Which records, in which order, from where on."""

    tenant: str | None = None
    lane: str | None = None
    state: str | None = None
    outcome: str | None = None
    slowest: Slowest | None = None
    limit: int = 100
    after: str | None = None

    @property
    def part(self) -> int:
        """How many ended records to look at next: of all, what a page takes."""
        is_of_all = not (self.tenant or self.lane or self.state or self.outcome)
        return min(self.limit + 1, PAGE) if is_of_all else PAGE

    def has(self, record: RequestRecord) -> bool:
        """It is one of these."""
        pairs = (
            (self.tenant, record.tenant),
            (self.lane, record.lane),
            (self.state, record.state),
            (self.outcome, record.outcome),
        )
        return all(wanted in (None, found) for wanted, found in pairs) and self.place(record)[0] >= 0

    def place(self, record: RequestRecord) -> Place:
        """Where it stands; a negative first figure: nowhere, as it has none of what is asked for."""
        if self.slowest is None:
            return record.ended_ms or _FOREVER_MS, round(record.arrived_s * 1e3), record.id
        found = {"ttft": record.ttft_ms, "total": record.total_ms, "queue": record.queue_ms}[self.slowest]
        return -1 if found is None else round(found * 1e3), 0, record.id

    def shown_place(self, record: RequestRecord) -> str:
        """For `after` of the next page."""
        first, second, name = self.place(record)
        return f"{first:013}-{second:013}-{name}"

    @property
    def before(self) -> Place:
        """All of the page stands below this."""
        if self.after is None or re.match(AFTER, self.after) is None:
            return _FOREVER_MS + 1, 0, ""
        first, second, name = self.after.split("-", 2)
        return int(first), int(second), name


class Records:
    """What any gateway can say of all gateways' requests. Every call may raise StoreUnavailable."""

    def __init__(self, store: RecordStore, recorder: RequestRecorder) -> None:
        self._store = store
        self._recorder = recorder
        self._one_at_a_time = asyncio.Lock()

    async def find(self, given: str, account: str | None = None) -> RequestRecord | None:
        """The record that a caller means by an id: its own, as it is or within an answer's or a job's, or another name
        of it. `account`: only one of the tenant's of this account."""
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
        """A page, and one more where there is more."""
        async with self._one_at_a_time:  # the loop has streams to serve
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
        """Our own as they are now, and the others' as they were last said."""
        own = {record.id: record for record in self._recorder.running()}
        return [*own.values(), *[one for one in await self._store.running() if one.id not in own]]

    async def _ended(self, latest_ms: float, seen: set[str], part: int) -> AsyncIterator[RequestRecord]:
        """The ring, the newest first, each once, but for those that were seen; so many are read at once."""
        passed_over, has_more = 0, True
        while has_more:
            read, has_more = await self._store.ended(latest_ms, passed_over, part)
            passed_over += part
            for record in read:
                if record.id not in seen:
                    seen.add(record.id)
                    yield record
