"""The records of this gateway's requests: which are kept, and when they are written.

If more requests end than can be kept, special ones take precedence (failed, refused for a deadline or without a worker,
preempted, paused, late), and the others are sampled. While the store is unavailable, the oldest are dropped."""

import asyncio
import itertools
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field

from fairlane.gateway.insight.request_records.live import LiveRecord
from fairlane.gateway.insight.request_records.record import RequestRecord
from fairlane.gateway.insight.request_records.storage import EndedRecord, RecordStore, packed_names
from fairlane.gateway.insight.request_records.time_account import TimeParts
from fairlane.gateway.request.live_request import LiveJob, LiveRequest
from fairlane.quotas.store import Charge, Lapsed
from fairlane.scheduler.protocol.messages import Outcome
from fairlane.store.errors import STORE_ERRORS
from fairlane.store.retry import every

FLUSH_EVERY_S = 0.5
MOST_A_FLUSH = 100
MOST_WAITING = 10 * MOST_A_FLUSH
MOST_REFUSALS, MOST_OF_A_TENANT = 40, 5
MOST_LIVE = 1_000
MOST_NEWS = 200
# A request that ends sooner is written only once.
NEWS_AFTER_MS = 500.0
REFRESH_S = 5.0
PLACES_A_FLUSH = 8
PLACE_AFTER_MS = 1_000.0
# Refusals caused by the caller's own limits, which are not special.
_OWN_LIMITS = frozenset({"rate_limit_exceeded", "concurrency_limit_exceeded", "queue_full", "insufficient_quota"})


@dataclass(slots=True)
class _Sample:
    came: int = 0
    kept: list[EndedRecord] = field(default_factory=list)

    def draw(self) -> int | None:
        self.came += 1
        kept = len(self.kept)
        if kept < MOST_A_FLUSH:
            return kept
        place = int(random.random() * self.came)
        return place if place < MOST_A_FLUSH else None


@dataclass(eq=False)
class RequestRecorder:
    """The recorder of one gateway. `run` writes; the other calls only buffer."""

    _store: RecordStore
    # Returns a job's place in its queue, from 1, or None once a worker has it. Raises STORE_ERRORS.
    _position: Callable[[LiveJob], Awaitable[int | None]]
    gateway_id: str
    enabled: bool
    dropped: int = 0
    _live: dict[str, LiveRecord] = field(default_factory=dict)
    # Live records by each of their other names, and by id; the newest last.
    _named: dict[str, dict[str, LiveRecord]] = field(default_factory=dict)
    _special: _Sample = field(default_factory=_Sample)
    _plain: _Sample = field(default_factory=_Sample)
    _unwritten: list[EndedRecord] = field(default_factory=list)
    _gone: dict[str, str] = field(default_factory=dict)
    _refusals: Counter[str] = field(default_factory=Counter)
    _turns: Iterator[str] = field(default_factory=lambda: iter(()))
    _one_at_a_time: asyncio.Lock = field(default_factory=asyncio.Lock)

    def open(
        self,
        make: Callable[[LiveRecord], RequestRecord],
        request: LiveRequest,
        names: tuple[str, str],
        arrived_s: float,
        due_ms: float,
    ) -> LiveRecord | None:
        if not self.enabled or not request.jobs:
            return None
        clock = asyncio.get_running_loop().time
        live = LiveRecord(make, request, names, arrived_s, due_ms, clock, self._over)
        request.record = self._live[live.id] = live
        for name in live.names:
            if name:
                self._named.setdefault(name, {})[live.id] = live
        return live

    def refused(self, record: RequestRecord, arrived_s: float) -> None:
        """Complete the record of a request that was not admitted. `arrived_s` is on the event loop's clock."""
        refusals, tenant = self._refusals, record.tenant
        if not self.enabled or refusals[tenant] >= MOST_OF_A_TENANT or refusals.total() >= MOST_REFUSALS:
            self.dropped += self.enabled
            return
        refusals[tenant] += 1
        took_s = asyncio.get_running_loop().time() - arrived_s
        record.arrived_s = time.time() - took_s
        record.gateway, record.state, record.outcome = self.gateway_id, "ended", Outcome.REJECTED.value
        record.total_ms = round(took_s * 1e3, 1)
        record.time = TimeParts().until(record.total_ms)
        self._keep(record.code not in _OWN_LIMITS, lambda: record)

    def local(self, name: str, account: str | None = None) -> RequestRecord | None:
        """Return a record that the store may not have yet, by its id or another name; None: of any account."""
        live = self._live_by(name, account)
        if live is not None:
            return live.record
        for ended in (self._plain.kept, self._special.kept, self._unwritten):
            for one in reversed(ended):
                record = one.record
                is_meant = name == record.id or name in (record.request_id, record.answer_id)
                if is_meant and account in (None, record.account):
                    return record
        return None

    def _live_by(self, name: str, account: str | None) -> LiveRecord | None:
        live = self._live.get(name)
        if live is not None and account in (None, live.account):
            return live
        named = reversed(self._named.get(name, {}).values())
        return next((live for live in named if account in (None, live.account)), None)

    def running(self) -> list[RequestRecord]:
        return [live.record for live in itertools.islice(self._live.values(), MOST_LIVE)]

    async def reaped(self, lapsed: Lapsed, charge: Charge) -> None:
        if not self.enabled:
            return
        record = await self._store.find(lapsed.reservation_id)
        if record is None:
            record = RequestRecord(
                id=lapsed.reservation_id,
                request_id="",
                tenant=lapsed.tenant,
                incarnation=lapsed.incarnation,
                key="",
                arrived_s=time.time(),
                model=lapsed.model,
                lane=lapsed.lane,
            )
        record.charge(charge)
        record.preempted = max(record.preempted, charge.preemptions)
        if record.state != "ended":
            record.state = "ended"
            record.total_ms = round((time.time() - record.arrived_s) * 1e3, 1)
            record.message = "The gateway that served it was lost; the tokens that its workers reported are charged."
            record.time = record.time.until(record.total_ms)
            record.add(record.total_ms, "ended")
        await self._store.settle_lost(record.gateway or self.gateway_id, record)

    async def run(self) -> None:
        if self.enabled:
            await every(FLUSH_EVERY_S, "writing request records", self.flush)

    async def flush(self) -> None:
        async with self._one_at_a_time:
            await self._flush()

    async def _flush(self) -> None:
        self._refusals.clear()
        self._unwritten += [*self._special.kept, *self._plain.kept]
        lost = max(0, len(self._unwritten) - MOST_WAITING)
        self.dropped += sum(max(0, sample.came - MOST_A_FLUSH) for sample in (self._special, self._plain)) + lost
        del self._unwritten[:lost]
        self._special, self._plain = _Sample(), _Sample()
        with suppress(*STORE_ERRORS):
            await self._ask_places()
        now_s = asyncio.get_running_loop().time()
        running = self._with_news(now_s)
        ended, gone = self._unwritten[: 2 * MOST_A_FLUSH], [*self._gone.items()]
        if not (ended or running or gone or any(live.written_s for live in self._live.values())):
            return
        records = [live.record for live in running]
        for live in running:
            live.has_news = False  # reports during the write are new changes
        try:
            await self._store.write(ended, records, gone)
        except BaseException:
            for live in running:
                live.has_news = True
            raise
        for live in running:
            live.written_s = now_s
            if live.id not in self._live:  # it ended during the write
                self._gone[live.id] = packed_names(live.record)
        del self._unwritten[: len(ended)]
        for record_id, _ in gone:
            self._gone.pop(record_id, None)

    async def aclose(self) -> None:
        if not self.enabled:
            return
        try:
            await self.flush()
            if not self._live:  # a reaper needs the records of requests that it must settle
                await self._store.leave()
        except STORE_ERRORS:
            return

    def _over(self, live: LiveRecord) -> None:
        self._live.pop(live.id, None)
        for name in live.names:
            if name in self._named:
                named = self._named[name]
                named.pop(live.id, None)
                if not named:
                    del self._named[name]
        if live.written_s:
            self._gone[live.id] = packed_names(live.record)
        self._keep(live.is_special, lambda: live.record)
        live.release()

    def _keep(self, is_special: bool, record: Callable[[], RequestRecord]) -> None:
        sample = self._special if is_special else self._plain
        place = sample.draw()
        if place is not None:
            sample.kept[place : place + 1] = [EndedRecord(record(), is_special)]

    def _with_news(self, now_s: float) -> list[LiveRecord]:
        found = []
        for live in itertools.islice(self._live.values(), MOST_LIVE):
            if live.age_ms < NEWS_AFTER_MS:
                continue
            if now_s - live.written_s >= REFRESH_S:
                live.refresh()
            if live.has_news:
                found.append(live)
                if len(found) >= MOST_NEWS:
                    break
        return found

    async def _ask_places(self) -> None:
        waiting: list[LiveRecord] = []
        for _ in range(len(self._live)):
            name = next(self._turns, None)
            if name is None:
                self._turns = iter([*self._live])
                name = next(self._turns, "")
            live = self._live.get(name)
            if live is not None and live.waits and live.age_ms >= PLACE_AFTER_MS:
                waiting.append(live)
                if len(waiting) >= PLACES_A_FLUSH:
                    break
        if waiting:
            asked: list[Awaitable[int | None]] = [self._position(live.jobs[0]) for live in waiting]
            for live, place in zip(waiting, await asyncio.gather(*asked), strict=True):
                if live.id in self._live:  # else it has ended
                    live.place(place)
