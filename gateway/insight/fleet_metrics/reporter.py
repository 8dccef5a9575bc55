"""Reports this gateway's counts to the store twice in each slot, and merges history if this gateway holds the lease.

A gateway that is killed loses the counts since its last report: at most five seconds."""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import msgspec

from fairlane.gateway.fleet import FleetCache, ServedModel, queued, together
from fairlane.gateway.insight.fleet_metrics.metrics_store import SLOT_S, SLOTS_KEPT, FleetMetricsStore, ReportedState
from fairlane.gateway.insight.fleet_metrics.recorder import InHand, Recorder, in_hand
from fairlane.gateway.insight.fleet_metrics.sums import Sums, bounded
from fairlane.scheduler.planner.costs import slowest_ms
from fairlane.scheduler.protocol.lanes import Lane, LaneName
from fairlane.scheduler.protocol.messages import WorkerStatus
from fairlane.store.retry import every

REPORT_EVERY_S = 5.0
MOST_NAMED = 64


@dataclass(eq=False)
class MetricsReporter:
    """The reporter of one gateway. `report` may raise redis.RedisError; the next call then sends the missing counts."""

    _store: FleetMetricsStore
    _recorder: Recorder
    _fleet: FleetCache
    _lanes: Mapping[LaneName, Lane]
    _gateway_id: str
    # Yields for each current job its tenant, whether it has begun, and its received tokens.
    _jobs: Callable[[], Iterable[tuple[str, bool, int]]]
    _clock: Callable[[], float] = time.time
    # The store's clock minus ours.
    _ahead_s: float = 0.0
    _closed: deque[tuple[int, ReportedState]] = field(default_factory=lambda: deque(maxlen=SLOTS_KEPT))

    def __post_init__(self) -> None:
        self._looked_s = self._clock()
        self._slot = int(self.now_s // SLOT_S)

    @property
    def now_s(self) -> float:
        return self._clock() + self._ahead_s

    async def run(self) -> None:
        await every(0.0, "reporting fleet metrics", self._report_in_turn)

    async def _report_in_turn(self) -> None:
        await asyncio.sleep(REPORT_EVERY_S - self.now_s % REPORT_EVERY_S)
        await self.report()

    async def report(self) -> None:
        now_s, slot = self.now_s, self._slot
        had = in_hand(self._jobs())
        self._look(had)
        sums = self._recorder.sums
        bounded_sums = msgspec.structs.replace(sums, tenants=bounded(sums.tenants))
        state = ReportedState(round(now_s * 1e3), bounded_sums, _levels(had))
        is_over = int(now_s // SLOT_S) != slot
        if is_over:
            self._recorder.sums = (
                Sums()
            )  # before the call of the store: requests that end meanwhile belong to the next slot
            self._slot = int(now_s // SLOT_S)
            self._closed.append((slot, state))
        merges = False
        while self._closed:
            merges = await self._send(*self._closed[0])
            self._closed.popleft()
        if not is_over:
            await self._send(slot, state)
        elif merges:
            await self._store.merge(self._slot)

    async def _send(self, slot: int, state: ReportedState) -> bool:
        store_ms, merges = await self._store.report(slot, self._gateway_id, state)
        self._ahead_s = store_ms / 1e3 - self._clock()
        return merges

    def _look(self, had: Mapping[str, InHand]) -> None:
        at_s = self._clock()
        self._recorder.look(had, max(0.0, at_s - self._looked_s))
        self._looked_s = at_s
        workers = self._fleet.workers
        single_stream_ms = slowest_ms(workers)
        self._recorder.targets_ms = {
            name.value: (lane.ttft_ms, lane.tpot_on(single_stream_ms)) for name, lane in self._lanes.items()
        }
        if self._fleet.is_fresh:
            _sample(self._recorder.sums, workers, self._fleet.models.values())


def kv_used(workers: Iterable[WorkerStatus]) -> float:
    """Return the share of all KV blocks in use, 0 without workers."""
    pools = [(worker.blocks_total, worker.blocks_free) for worker in workers]
    total = sum(blocks for blocks, _ in pools)
    return 1.0 - sum(free for _, free in pools) / total if total else 0.0


def _sample(sums: Sums, workers: Iterable[WorkerStatus], models: Iterable[ServedModel]) -> None:
    alive, waiting = list(workers), together([model.depths for model in models])
    sums.samples += 1
    sums.kv_used += kv_used(alive)
    for name in LaneName:
        lane, depth = sums.lane(name.value), waiting[name]
        lane.queued += queued(name, depth, alive)
        lane.oldest_wait_ms = max(lane.oldest_wait_ms, depth.oldest_wait_ms)
        lane.running += sum(worker.running.get(name, 0) for worker in alive)
        lane.preempted += sum(worker.preempted.get(name, 0) for worker in alive)
        lane.tokens_per_s += sum(worker.tokens_per_s.get(name, 0.0) for worker in alive)


def _levels(had: Mapping[str, InHand]) -> dict[str, tuple[int, int]]:
    busiest = sorted(had.items(), key=lambda one: -(one[1].running + one[1].queued))[:MOST_NAMED]
    return {tenant: (had.running, had.queued) for tenant, had in busiest}
