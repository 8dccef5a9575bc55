"""The two queues behind one face, for suites that hold for both: in memory, and in Redis with the test's clock."""

import dataclasses
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import redis.asyncio

from fairlane.scheduler.planner.steps import Capacity
from fairlane.scheduler.protocol.lanes import DEFAULT_LANES, Lane, LaneName
from fairlane.scheduler.protocol.messages import Control, Finished, Job, Lease, Outcome
from fairlane.scheduler.queue.redis_queue import RedisQueue
from fairlane.scheduler.queue.types import (
    JobRecord,
    LaneDepth,
    News,
    Progress,
    Published,
    Put,
    QueuePresence,
    ReportExchange,
    Turn,
)
from tests.support.scheduler.model_queue import ModelQueue

LEASE_MS = 6_000
START_MS = 1_700_000_000_000
PLENTY = Capacity(sequences=dict.fromkeys(LaneName, 1_000), kv_tokens=dict.fromkeys(LaneName, 10**9))


class Clock:
    """Milliseconds that move only when a test says so."""

    def __init__(self) -> None:
        self.ms = START_MS

    def __call__(self) -> int:
        return self.ms

    def advance(self, ms: int) -> None:
        self.ms += ms


class MemoryQueue:
    """`ModelQueue` at the time of the clock."""

    def __init__(self, lanes: dict[LaneName, Lane], *, lease_ms: int, window: float, clock: Clock) -> None:
        self._queue = ModelQueue(lanes, lease_ms=lease_ms, window=window)
        self._clock = clock

    async def put(
        self,
        job: Job,
        *,
        tenant_limit: int | None = None,
        waited_ms: int = 0,
        prefixes: bytes = b"",
        generated: int = 0,
    ) -> Put:
        return self._queue.put(
            self._clock(),
            job,
            tenant_limit=tenant_limit,
            waited_ms=waited_ms,
            prefixes=prefixes,
            generated=generated,
        )

    async def turn(
        self,
        worker_id: str,
        capacity: Capacity,
        items: Sequence[Progress] = (),
        *,
        called: Sequence[str] = (),
        unreached: Sequence[str] = (),
        serial: str | None = None,
    ) -> Turn:
        now_ms, own = self._clock(), serial or ""
        return self._queue.turn(now_ms, worker_id, capacity, items, called=called, unreached=unreached, serial=own)

    async def take(self, worker_id: str, capacity: Capacity) -> list[Lease]:
        """A turn of a worker that leaves no room, so that later jobs wait."""
        leases = self._queue.take(self._clock(), worker_id, capacity)
        self._queue.retire(worker_id)
        return leases

    async def renew(self, worker_id: str, holding: Collection[str] | None = None) -> bool:
        return self._queue.renew_lease(self._clock(), worker_id, holding)

    async def report(self, worker_id: str, items: Sequence[Progress], *, serial: str | None = None) -> set[str]:
        return self._queue.report(worker_id, items, serial=serial or "")

    async def cancel(self, job_id: str) -> JobRecord | None:
        return self._queue.cancel(job_id)

    async def record(self, job_id: str) -> JobRecord | None:
        return self._queue.record(job_id)

    async def published(self, job_id: str) -> Published | None:
        return self._queue.published(job_id)

    async def forget(self, job_ids: Iterable[str]) -> set[str]:
        return self._queue.forget(job_ids)

    async def position(self, job_id: str) -> int | None:
        return self._queue.position(job_id)

    async def depths(self) -> dict[LaneName, LaneDepth]:
        return self._queue.depths(self._clock())

    async def exchange_reports(
        self, gateway_id: str, said: bytes, refused_us: Mapping[LaneName, int]
    ) -> ReportExchange:
        return self._queue.exchange_reports(self._clock(), gateway_id, said, refused_us)

    async def waiting(self, tenant: str) -> int:
        return self._queue.waiting(tenant)

    async def reclaim(self) -> int:
        return self._queue.reclaim(self._clock())

    async def release(self, worker_id: str, job_ids: Iterable[str]) -> None:
        self._queue.release(self._clock(), worker_id, job_ids)

    async def gateway_alive(self, gateway_id: str) -> None:
        self._queue.gateway_alive(self._clock(), gateway_id)

    async def orphan(self, grace_ms: int) -> QueuePresence:
        return self._queue.orphan(self._clock(), grace_ms)

    async def withdraw(self, job_id: str, grace_ms: int) -> bool:
        return self._queue.withdraw(self._clock(), job_id, grace_ms)

    async def retire(self, worker_id: str) -> None:
        self._queue.retire(worker_id)

    async def rouse(self, job_ids: Iterable[str]) -> set[str]:
        return self._queue.rouse(self._clock(), job_ids)

    async def given(self, worker_id: str) -> list[Lease]:
        return self._queue.rooms.given.pop(worker_id, [])

    async def calls(self, worker_id: str) -> list[str]:
        return self._queue.rooms.calls.pop(worker_id, [])

    async def events(self, gateway_id: str) -> list[Finished]:
        return self._queue.events.pop(gateway_id, [])

    async def controls(self, worker_id: str) -> list[Control]:
        return self._queue.controls.pop(worker_id, [])


class TakingQueue(RedisQueue):
    """`RedisQueue` for workers that only take jobs."""

    async def take(self, worker_id: str, capacity: Capacity, *, serial: str | None = None) -> list[Lease]:
        """A turn of a worker that leaves no room, so that later jobs wait."""
        before = await self._resolve(f"{self._prefix}leases:{worker_id}", "$")
        leases = (await self.turn(worker_id, capacity, serial=serial)).leases
        await self.retire(worker_id)
        return leases + (await self.read_news(worker_id, f"0-0/{before}", 0)).leases  # given while it had room


class StoredQueue(TakingQueue):
    """`RedisQueue` with the clock, reading on in its streams."""

    def __init__(
        self,
        store: redis.asyncio.Redis,
        lanes: dict[LaneName, Lane],
        *,
        lease_ms: int,
        window: float,
        clock: Clock,
    ) -> None:
        super().__init__(store, "model@1", lanes, lease_ms=lease_ms, window=window, clock=clock)
        self._last_ids: dict[str, str] = {}
        self._news_ids: dict[tuple[str, str], str] = {}

    async def events(self, gateway_id: str) -> list[Finished]:
        everything: list[Finished] = []
        while True:
            last_id = self._last_ids.get(gateway_id, "0-0")
            self._last_ids[gateway_id], events = await self.read_events(gateway_id, last_id, 0)
            everything += events
            if not events:
                return everything

    async def controls(self, worker_id: str) -> list[Control]:
        return (await self._news("controls", worker_id)).controls

    async def given(self, worker_id: str) -> list[Lease]:
        return (await self._news("given", worker_id)).leases

    async def calls(self, worker_id: str) -> list[str]:
        return (await self._news("calls", worker_id)).calls

    async def _news(self, reader: str, worker_id: str) -> News:
        news = await self.read_news(worker_id, self._news_ids.get((reader, worker_id), "0-0"), 0)
        self._news_ids[reader, worker_id] = news.last_id
        return news


Queue: TypeAlias = MemoryQueue | StoredQueue
"""Either. `events`, `controls`, `given` and `calls` return what came since they were last called."""


def lanes(**changes: dict[str, Any]) -> dict[LaneName, Lane]:
    """The default lanes with some figures changed: `lanes(latency={"max_queued": 2})`."""
    return {name: dataclasses.replace(lane, **changes.get(name, {})) for name, lane in DEFAULT_LANES.items()}


def job(job_id: str, tenant: str = "acme", lane: LaneName = LaneName.LATENCY, **fields: Any) -> Job:
    """A job of ten prompt tokens, due by its lane's target."""
    defaults: dict[str, Any] = {
        "gateway_id": "gw",
        "prompt": tuple(range(10)),
        "max_tokens": 100,
        "granted_until": 100,
        "ttft_ms": DEFAULT_LANES[lane].ttft_ms,
        "tpot_ms": DEFAULT_LANES[lane].tpot_ms,
    }
    return Job(job_id=job_id, tenant=tenant, lane=lane, **(defaults | fields))


def room(
    latency: int = 0,
    throughput: int = 0,
    kv_tokens: int = 10**6,
    prefill_ms: float = 0.0,
    *,
    max_sequences: int = 0,
    pool_tokens: int = 10**6,
) -> Capacity:
    """Sequences by lane, with the same KV tokens for each, of a worker with this pool."""
    sequences: dict[str, int] = {LaneName.LATENCY: latency, LaneName.THROUGHPUT: throughput}
    return Capacity(
        sequences=sequences,
        kv_tokens=dict.fromkeys(LaneName, kv_tokens),
        prefill_ms=prefill_ms,
        max_sequences=max_sequences,
        pool_tokens=pool_tokens,
    )


def progress(
    lease: Lease,
    generated: int = 0,
    *,
    cost: float = 0.0,
    ends: Outcome | None = None,
    token_ids: tuple[tuple[int, ...], ...] = (),
) -> Progress:
    """What the worker that holds this lease reports: all tokens so far, and the cost since its last report."""
    return Progress(lease.job.job_id, lease.epoch, generated, cost, ends, token_ids)


async def take_one(queue: Queue, worker_id: str = "w1", lane: LaneName = LaneName.LATENCY) -> Lease:
    """The next job of this lane."""
    one = room(latency=1) if lane is LaneName.LATENCY else room(throughput=1)
    [lease] = await queue.take(worker_id, one)
    return lease


async def taken(queue: Queue, capacity: Capacity = PLENTY, worker_id: str = "w1") -> list[str]:
    """The jobs that a worker gets, in order."""
    return [lease.job.job_id for lease in await queue.take(worker_id, capacity)]


async def stay_alive(queue: Queue, clock: Clock, ms: int, *workers: str, gateways: Sequence[str] = ("gw",)) -> int:
    """Let time pass as it does in life: heartbeats and reclaims every second. Returns how many jobs were reclaimed."""
    count = 0
    for _ in range(0, ms, 1_000):
        clock.advance(1_000)
        for worker in workers:
            await queue.renew(worker)
        for gateway in gateways:
            await queue.gateway_alive(gateway)
        count += await queue.reclaim()
    return count
