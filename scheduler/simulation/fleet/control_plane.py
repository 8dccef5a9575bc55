"""Gateways, calls to the store, and the fate of each request, in virtual time. `fleet.py` adds the workers."""

import heapq
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from fairlane.scheduler.admission.decide import UNPROMISED
from fairlane.scheduler.planner.steps import require
from fairlane.scheduler.protocol.lanes import Lane, LaneName
from fairlane.scheduler.protocol.messages import Job, Lease, Outcome
from fairlane.scheduler.queue.shards import MAX_SHARDS, divided, home_of
from fairlane.scheduler.queue.types import QueueError, in_rank_order
from fairlane.scheduler.simulation.fleet.admission import Gateways
from fairlane.scheduler.simulation.fleet.rows_worker import RowsShape, RunningJob
from fairlane.scheduler.simulation.fleet.shard_queue import ShardQueue, WorkerShape
from fairlane.scheduler.simulation.fleet.store_cores import Call, StoreCore, StoreTimes
from fairlane.scheduler.simulation.workload import Arrival, Record

MAX_WORKERS, MAX_GATEWAYS = 10_000, 1_000
LINK_MS, MAX_LINK_MS = 0.25, 1e4
MAX_DEATHS_PER_MIN = 1e4


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetShape:
    """The processes of a fleet. Times are milliseconds."""

    workers: int
    gateways: int = 1
    shards: int = 1
    # Shards that each worker offers rows to; 0: all of them.
    shards_per_worker: int = 0
    kind: RowsShape = field(default_factory=RowsShape)
    times: StoreTimes = field(default_factory=StoreTimes)
    # One way, between any two processes.
    link_ms: float = LINK_MS
    worker_beat_ms: float = 2_000.0
    gateway_beat_ms: float = 500.0
    # Workers that die, at random times.
    deaths_per_min: float = 0.0
    # Time from a worker's death until another one has taken its place.
    replaced_after_ms: float = 10_000.0

    def __post_init__(self) -> None:
        require("workers", self.workers, 1, MAX_WORKERS)
        require("gateways", self.gateways, 1, MAX_GATEWAYS)
        require("shards", self.shards, 1, MAX_SHARDS)
        require("link-ms", self.link_ms, 0.0, MAX_LINK_MS)
        require("worker-deaths", self.deaths_per_min, 0.0, MAX_DEATHS_PER_MIN)


class EndObserver(Protocol):
    """Looks at each request that ends."""

    def ended(self, record: Record) -> None: ...


class ControlPlane(ABC):
    """One run of `arrivals`, in order of time, which ends when all requests have."""

    def __init__(
        self,
        arrivals: Iterable[Arrival],
        shape: FleetShape,
        lanes: Mapping[LaneName, Lane],
        admission: Gateways | None,
        observers: Sequence[EndObserver],
        seed: int,
    ) -> None:
        self.shape, self.lanes = shape, in_rank_order(dict(lanes))
        self.now_ms = self.last_arrival_ms = 0.0
        self.records: dict[str, Record] = {}
        self.cores = [StoreCore(shape.times) for _ in range(shape.shards)]
        self.budget_cores = [StoreCore(shape.times) for _ in range(shape.shards)]
        seen = WorkerShape(shape.kind.rows, shape.kind.step_ms / shape.kind.step_tokens)
        self.queues = [ShardQueue(dict(lanes), seen, is_only=shape.shards == 1) for _ in range(shape.shards)]
        self._arrivals, self._admission, self._ends = iter(arrivals), admission, observers
        self._random = random.Random(seed)
        self._gateways: dict[str, int] = {}
        self._events: list[tuple[float, int, Callable[..., None], tuple[object, ...]]] = []
        self._order = 0
        self._open = 0

    def run(self) -> dict[str, Record]:
        self._begin()
        arrival = next(self._arrivals, None)
        while arrival is not None or self._open:
            if arrival is not None and arrival.at_ms <= self._events[0][0]:
                self.now_ms = self.last_arrival_ms = arrival.at_ms
                self._arrive(arrival)
                arrival = next(self._arrivals, None)
            else:
                self.now_ms, _, event, args = heapq.heappop(self._events)
                event(*args)
        return self.records

    @abstractmethod
    def _begin(self) -> None: ...

    @abstractmethod
    def _give(self, at_ms: float, worker: int, shard: int, leases: Sequence[Lease]) -> None:
        """Let a worker have leases of a shard at this time."""

    def _at(self, at_ms: float, event: Callable[..., None], *args: object) -> None:
        self._order += 1
        heapq.heappush(self._events, (at_ms, self._order, event, args))

    def _arrive(self, arrival: Arrival) -> None:
        record = self.records[arrival.job_id] = Record(arrival)
        gateway, decision = len(self.records) % self.shape.gateways, UNPROMISED
        if self._admission is not None:
            found = self._admission.decide(gateway, arrival, self.now_ms)
            if found is None:
                record.outcome, record.end_ms = Outcome.REJECTED, self.now_ms
                return
            decision = found
            self._gateways[arrival.job_id] = gateway
        self._open += 1
        shard = home_of(arrival.tenant, self.shape.shards)
        reserved_ms = self.budget_cores[shard].call(Call.RESERVE, 1, self.now_ms + self.shape.link_ms)
        self._at(reserved_ms + self.shape.link_ms, self._put, gateway, shard, arrival.job(decision))

    def _put(self, gateway: int, shard: int, job: Job) -> None:
        core, queue, link_ms = self.cores[shard], self.queues[shard], self.shape.link_ms
        begins_ms = core.begin(self.now_ms + link_ms)
        leases: list[Lease] = []
        try:
            worker, leases = queue.put_now(int(begins_ms), divided(job, self.shape.shards))
        except QueueError:
            self._close(job.job_id, Outcome.REJECTED, core.run(Call.PUT, 0, begins_ms) + link_ms, shard)
            return
        answered_ms = core.run(Call.PUT, len(leases), begins_ms) + link_ms
        if self._admission is not None:
            put = queue.record(job.job_id)
            self._admission.put(gateway, job.job_id, self.now_ms, guaranteed=put is not None and put.guaranteed)
        self._close_expired(shard)
        if leases:
            self._give(answered_ms, worker, shard, leases)

    def _settle(self, shard: int) -> None:
        self.budget_cores[shard].call(Call.SETTLE, 1, self.now_ms + self.shape.link_ms)

    def _close_expired(self, shard: int) -> None:
        for end in self.queues[shard].ends():
            self._close(end.job_id, end.outcome, self.now_ms + self.shape.link_ms, shard)

    def _close(self, job_id: str, outcome: Outcome, end_ms: float, shard: int) -> None:
        record = self.records[job_id]
        record.outcome, record.end_ms = outcome, end_ms
        self._open -= 1
        self._settle(shard)
        if self._admission is not None:
            self._admission.ended(self._gateways.pop(job_id), record)
        for observer in self._ends:
            observer.ended(record)

    def _beat_gateway(self, gateway: int) -> None:
        for core in self.cores:
            core.call(Call.BEAT, self.shape.gateways, self.now_ms + self.shape.link_ms)
        if self._admission is not None:
            self._admission.exchange(gateway, self.queues[0], self.now_ms)
        self._at(self.now_ms + self.shape.gateway_beat_ms, self._beat_gateway, gateway)

    def _produced(self, record: Record, job: RunningJob, tokens: int) -> None:
        """Record the output tokens of a job in this worker, up to `tokens` with those of earlier workers."""
        if tokens == job.done:
            return
        first_ms, step_ms = job.first_ms + self.shape.link_ms, self.shape.kind.step_ms
        if not job.done:
            record.produced(0, first_ms)
        times = [first_ms + (index - job.done) * step_ms for index in range(max(1, job.done), tokens)]
        if times:
            record.produced_at(max(1, job.done), times)
        record.computed += record.arrival.prompt_tokens + job.done + (tokens - job.done) * record.arrival.choices
