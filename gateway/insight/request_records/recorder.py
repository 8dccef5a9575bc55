"""The records of this gateway's requests: which are kept, and when they are written. Nothing here fails a request.

A request pays for a few assignments; a timer writes what has come together, one call of the store for all. Where more
requests end than are kept, those with something special about them (failed, refused for a deadline or for want of a
worker, preempted, paused, late) come first and the others are drawn by lot; of a tenant's refusals a few are kept each
time, however many there are. While the store is away what waits is bounded, and the oldest of it goes.
"""

import asyncio
import itertools
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol

from fairlane.gateway.http.request_id import random_id
from fairlane.gateway.insight.request_records import keys
from fairlane.gateway.insight.request_records.live import LiveRecord
from fairlane.gateway.insight.request_records.record import LONGEST_TEXT, RequestRecord
from fairlane.gateway.insight.request_records.storage import EndedRecord, RecordStore, packed_names
from fairlane.gateway.insight.request_records.time_account import TimeParts
from fairlane.gateway.request.live_request import LiveJob, LiveRequest
from fairlane.quotas.store import Charge, Lapsed
from fairlane.scheduler.protocol.messages import Outcome
from fairlane.store.errors import STORE_ERRORS
from fairlane.store.retry import every

FLUSH_EVERY_S = 0.5
MOST_A_FLUSH = 100
"""Records of requests that ended, of either kind."""
MOST_WAITING = 10 * MOST_A_FLUSH
"""Of these, while the store is away."""
MOST_REFUSALS, MOST_OF_A_TENANT = 40, 5
"""RefusedRequest requests that are kept each time, of all and of one tenant."""
MOST_LIVE = 1_000
"""Requests that run and are shown to other gateways; those that came first."""
MOST_NEWS = 200
"""Of these, that are written at once: what is left comes the next time."""
NEWS_AFTER_MS = 500.0
"""A request that is over sooner is written once."""
REFRESH_S = 5.0
"""How often a request is written that does nothing but produce tokens."""
PLACES_A_FLUSH = 8
"""Requests whose place in the queue is asked for."""
PLACE_AFTER_MS = 1_000.0
_OWN_LIMITS = frozenset({"rate_limit_exceeded", "concurrency_limit_exceeded", "queue_full", "insufficient_quota"})
"""Refusals that say more of the caller than of the system."""
_ORDINARY = frozenset({Outcome.FINISHED.value, Outcome.CANCELLED.value})


class Queues(Protocol):
    """Where a job waits; `requests.delivery.Dispatcher` is one."""

    async def position(self, job: LiveJob) -> int | None:
        """Its place, from 1; None once a worker has it. Raises STORE_ERRORS."""


@dataclass(frozen=True, slots=True)
class RefusedRequest:
    """What is known of a request that was not let in."""

    tenant: str
    key: str
    request_id: str
    endpoint: str
    code: str
    message: str
    limit: str
    lane: str = ""
    model: str = ""
    prompt_tokens: int = 0
    trace_id: str = ""
    incarnation: str = ""
    """Of the tenant."""


@dataclass(slots=True)
class _Lot:
    """Some of all that came, each as likely as the others."""

    most: int
    came: int = 0
    kept: list[EndedRecord] = field(default_factory=list)

    def draw(self) -> int | None:
        """Where the next one is to be put; None: it is not kept. It need not be there before that is known."""
        self.came += 1
        if len(self.kept) < self.most:
            return len(self.kept)
        place = int(random.random() * self.came)
        return place if place < self.most else None

    def put(self, place: int, one: EndedRecord) -> None:
        """Where `draw` said."""
        self.kept[place : place + 1] = [one]


class RequestRecorder:
    """Of one gateway. `run` writes; the other calls only take notes."""

    def __init__(
        self,
        store: RecordStore,
        queues: Queues,
        gateway_id: str,
        *,
        enabled: bool,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._store = store
        self._queues = queues
        self._gateway_id = gateway_id
        self.enabled = enabled
        self._wall_clock = wall_clock
        self._live: dict[str, LiveRecord] = {}
        self._named: dict[str, dict[str, LiveRecord]] = {}
        """The same by each of their other names, as `keys` builds them, and by id; the newest last."""
        self._special, self._plain = _Lot(MOST_A_FLUSH), _Lot(MOST_A_FLUSH)
        self._unwritten: list[EndedRecord] = []
        """Taken from the two, and not in the store yet."""
        self._gone: dict[str, str] = {}
        """What was written as running and is over: names by id."""
        self._refusals: Counter[str] = Counter()
        """By tenant, since the last time."""
        self._turns: Iterator[str] = iter(())
        self._one_at_a_time = asyncio.Lock()
        self.dropped = 0
        """Requests that ended without a record that is kept."""

    def open(
        self,
        make: Callable[[LiveRecord], RequestRecord],
        request: LiveRequest,
        names: tuple[str, str],
        arrived_s: float,
        due_ms: float,
    ) -> LiveRecord | None:
        """Keep what becomes of a request whose jobs are all put. As `LiveRecord`; `make` is called once that is to be
        read or written."""
        if not self.enabled or not request.jobs:
            return None
        clock = asyncio.get_running_loop().time
        live = LiveRecord(make, request, names, arrived_s, due_ms, clock, self._over)
        request.record = self._live[live.id] = live
        for name in keys.names_of(live.account, *live.names):
            self._named.setdefault(name, {})[live.id] = live
        return live

    def refused(self, refused: RefusedRequest, arrived_s: float) -> None:
        """Keep, of requests that were not let in, a few."""
        refusals, tenant = self._refusals, refused.tenant
        if not self.enabled or refusals[tenant] >= MOST_OF_A_TENANT or refusals.total() >= MOST_REFUSALS:
            self.dropped += self.enabled
            return
        refusals[tenant] += 1
        took_s = asyncio.get_running_loop().time() - arrived_s
        record = RequestRecord(
            id=random_id(),
            request_id=refused.request_id,
            tenant=tenant,
            incarnation=refused.incarnation,
            key=refused.key,
            arrived_s=self._wall_clock() - took_s,
            endpoint=refused.endpoint,
            model=refused.model,
            lane=refused.lane,
            gateway=self._gateway_id,
            state="ended",
            outcome=Outcome.REJECTED.value,
            code=refused.code,
            message=refused.message[:LONGEST_TEXT],
            limit=refused.limit,
            trace_id=refused.trace_id,
            prompt_tokens=refused.prompt_tokens,
            total_ms=round(took_s * 1e3, 1),
            time=TimeParts().until(round(took_s * 1e3, 1)),
        )
        is_special = refused.code not in _OWN_LIMITS
        lot = self._special if is_special else self._plain
        place = lot.draw()
        if place is not None:
            lot.put(place, EndedRecord(record, is_special))

    def local(self, name: str, account: str | None = None) -> RequestRecord | None:
        """A record that this gateway has and the store may not have yet: by its id or, for the tenant of an account if
        one is named, by the request's or the answer's id."""
        live = self._live.get(name)
        if live is None or account not in (None, live.account):
            named = self._named.get(keys.of_anybody(name) if account is None else keys.of_tenant(account, name), {})
            live = next(reversed(named.values()), None)
        if live is not None:
            return self._told(live)
        for ended in (self._plain.kept, self._special.kept, self._unwritten):
            for one in reversed(ended):
                record = one.record
                is_meant = name == record.id or name in (record.request_id, record.answer_id)
                if is_meant and account in (None, record.account):
                    return record
        return None

    def running(self) -> list[RequestRecord]:
        """Of this gateway, as they are now; the same that others are told of."""
        return [self._told(live) for live in itertools.islice(self._live.values(), MOST_LIVE)]

    def _told(self, live: LiveRecord) -> RequestRecord:
        record = live.record
        record.gateway = self._gateway_id
        return record

    async def reaped(self, lapsed: Lapsed, charge: Charge) -> None:
        """The request of a gateway that is gone was settled here: its record says so from now on."""
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
                arrived_s=self._wall_clock(),
                model=lapsed.model,
                lane=lapsed.lane,
            )
        record.outcome = charge.outcome
        record.charges = (charge.prompt_tokens, charge.cached_tokens, charge.output_tokens)
        record.gpu_us, record.kv_block_ms = charge.gpu_us, charge.kv_block_ms
        record.output_tokens = max(record.output_tokens, charge.output_tokens)
        record.preempted = max(record.preempted, charge.preemptions)
        if record.state != "ended":
            record.state = "ended"
            record.total_ms = round((self._wall_clock() - record.arrived_s) * 1e3, 1)
            record.message = "The gateway that served it was lost, and what had been published is charged."
            record.time = (record.time or TimeParts()).until(record.total_ms)
            record.add(record.total_ms, "ended")
        await self._store.settle_lost(record.gateway or self._gateway_id, record)

    async def run(self) -> None:
        """Until cancelled."""
        if self.enabled:
            await every(FLUSH_EVERY_S, "writing request records", self.flush)

    async def flush(self) -> None:
        """Write what there is to say. Raises STORE_ERRORS; then it is said the next time."""
        async with self._one_at_a_time:
            await self._flush()

    async def _flush(self) -> None:
        self._refusals.clear()
        self._unwritten += [*self._special.kept, *self._plain.kept]
        lost = max(0, len(self._unwritten) - MOST_WAITING)
        self.dropped += sum(max(0, lot.came - lot.most) for lot in (self._special, self._plain)) + lost
        del self._unwritten[:lost]
        self._special, self._plain = _Lot(MOST_A_FLUSH), _Lot(MOST_A_FLUSH)
        with suppress(*STORE_ERRORS):
            await self._ask_places()
        now_s = asyncio.get_running_loop().time()
        running = self._with_news(now_s)
        ended, gone = self._unwritten[: 2 * MOST_A_FLUSH], [*self._gone.items()]
        if not (ended or running or gone or any(live.written_s for live in self._live.values())):
            return
        told = [self._told(live) for live in running]
        for live in running:
            live.has_news = False  # what is heard while that is written is news again
        try:
            await self._store.write(ended, told, gone)
        except BaseException:
            for live in running:
                live.has_news = True
            raise
        for live in running:
            live.written_s = now_s
            if live.id not in self._live:  # it ended while that was written
                self._gone[live.id] = packed_names(live.record)
        del self._unwritten[: len(ended)]
        for record_id, _ in gone:
            self._gone.pop(record_id, None)

    async def aclose(self) -> None:
        """Write what is left: this gateway ends."""
        if not self.enabled:
            return
        try:
            await self.flush()
            if not self._live:  # what a reaper has to settle is found by its record
                await self._store.leave()
        except STORE_ERRORS:
            return

    def _over(self, live: LiveRecord) -> None:
        self._live.pop(live.id, None)
        for name in keys.names_of(live.account, *live.names):
            named = self._named.get(name, {})
            named.pop(live.id, None)
            if not named:
                self._named.pop(name, None)
        if live.written_s:
            self._gone[live.id] = packed_names(live.record)
        is_special = _is_special(live)
        lot = self._special if is_special else self._plain
        place = lot.draw()
        if place is not None:
            lot.put(place, EndedRecord(self._told(live), is_special))
        live.let_go()

    def _with_news(self, now_s: float) -> list[LiveRecord]:
        """What is to be written of what runs."""
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
        """Of some that wait, in turns."""
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
            asked: list[Awaitable[int | None]] = [self._queues.position(live.job) for live in waiting]
            for live, place in zip(waiting, await asyncio.gather(*asked), strict=True):
                if live.id in self._live:  # else it ended meanwhile
                    live.place(place)


def _is_special(live: LiveRecord) -> bool:
    """Somebody may ask why."""
    if live.preempted or live.paused or live.moved or live.is_late:
        return True
    charge, answer = live.charge, live.answer
    outcome = charge.outcome if charge is not None else None if answer is None else answer.outcome.value
    return outcome not in _ORDINARY
