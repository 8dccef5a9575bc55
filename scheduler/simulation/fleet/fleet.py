"""A fleet in virtual time, control plane included: gateways, the queue's shards on store cores, workers of fixed steps.

One chat is four calls to the store:

    1. its gateway reserves its budget (`reserve`, at the budgets' core of the tenant's shard);
    2. the gateway puts it (`put`, at its shard), which leases it at once to the worker that offers the most rows;
    3. the worker reports the end and offers the row again (`turn`), which leases the next job if one waits;
    4. the gateway settles (`settle`).

Each core runs one call at a time; calls wait in order of arrival. Heartbeats of workers and gateways are calls too.
Tokens go over links: they take time, but no call. The order in which jobs are leased is that of the real queue."""

import heapq
import math
import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from fairlane.scheduler.admission.decide import UNPROMISED
from fairlane.scheduler.planner.ordering import QUEUE_WINDOW
from fairlane.scheduler.planner.steps import require
from fairlane.scheduler.protocol.lanes import DEFAULT_LANES, Lane, LaneName
from fairlane.scheduler.protocol.messages import Job, Lease, Outcome
from fairlane.scheduler.queue.shards import MAX_SHARDS, LaneHead, Rivals, divided, home_of
from fairlane.scheduler.queue.types import Progress, QueueError, in_rank_order
from fairlane.scheduler.simulation.fleet.admission import Gateways
from fairlane.scheduler.simulation.fleet.rows_worker import RowsShape, RowsWorker, RunningJob
from fairlane.scheduler.simulation.fleet.shard_queue import ShardQueue, WorkerShape
from fairlane.scheduler.simulation.fleet.store_cores import Call, StoreCore, StoreTimes
from fairlane.scheduler.simulation.workload import Arrival, Record
from fairlane.store.bounds import PER_CALL

MAX_WORKERS, MAX_GATEWAYS = 10_000, 1_000
LINK_MS, MAX_LINK_MS = 0.25, 1e4
# Interval at which the observer looks at all tenants.
LOOK_MS = 1_000.0


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

    def __post_init__(self) -> None:
        require("workers", self.workers, 1, MAX_WORKERS)
        require("gateways", self.gateways, 1, MAX_GATEWAYS)
        require("shards", self.shards, 1, MAX_SHARDS)
        require("link-ms", self.link_ms, 0.0, MAX_LINK_MS)


class FleetObserver(Protocol):
    """Looks at the whole fleet each LOOK_MS, and at each request that ends."""

    def look(self, fleet: "Fleet", now_ms: float) -> None: ...

    def ended(self, record: Record) -> None: ...


class _Member:
    def __init__(self, number: int, shape: FleetShape, lanes: Sequence[Lane], shards: Sequence[int]) -> None:
        self.number, self.shards = number, shards
        self.rows = RowsWorker(shape.kind)
        self.rivals = Rivals(QUEUE_WINDOW, [lane.share_floor for lane in lanes])
        # A shard that was asked to give rows back, until it has answered.
        self.recalls = False


class Fleet:
    """One run of `arrivals`, in order of time, which ends when all requests have."""

    def __init__(
        self,
        arrivals: Iterable[Arrival],
        shape: FleetShape,
        *,
        lanes: Mapping[LaneName, Lane] = DEFAULT_LANES,
        admission: Gateways | None = None,
        observers: Sequence[FleetObserver] = (),
        seed: int = 0,
    ) -> None:
        self.shape, self.lanes = shape, in_rank_order(dict(lanes))
        self.now_ms = self.last_arrival_ms = 0.0
        self.records: dict[str, Record] = {}
        # Weighted tokens computed, by lane and tenant, as workers have reported them.
        self.service: defaultdict[tuple[LaneName, str], float] = defaultdict(float)
        self.cores = [StoreCore(shape.times) for _ in range(shape.shards)]
        self.budget_cores = [StoreCore(shape.times) for _ in range(shape.shards)]
        seen = WorkerShape(shape.kind.rows, shape.kind.step_ms / shape.kind.step_tokens)
        self.queues = [ShardQueue(dict(lanes), seen, is_only=shape.shards == 1) for _ in range(shape.shards)]
        self._arrivals, self._admission, self._observers = iter(arrivals), admission, observers
        self._random = random.Random(seed)
        self._members = [_Member(number, shape, self.lanes, self._shards(number)) for number in range(shape.workers)]
        self._gateways: dict[str, int] = {}
        self._events: list[tuple[float, int, Callable[..., None], tuple[object, ...]]] = []
        self._order = 0
        self._open = 0

    def _shards(self, worker: int) -> Sequence[int]:
        count, shards = self.shape.shards_per_worker or self.shape.shards, self.shape.shards
        if count >= shards:
            return range(shards)
        return self._random.sample(range(shards), count)

    @property
    def rows_used(self) -> int:
        return sum(member.rows.used for member in self._members)

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

    def _begin(self) -> None:
        shape = self.shape
        for member in self._members:
            rows, count = shape.kind.rows, len(member.shards)
            for place, shard in enumerate(member.shards):
                part = rows * (place + 1) // count - rows * place // count
                member.rows.offered[shard] = part
                self.queues[shard].turn(0, member.number, (), part, ())
            self._at(self._random.random() * shape.worker_beat_ms, self._beat_worker, member)
        for gateway in range(shape.gateways):
            self._at(self._random.random() * shape.gateway_beat_ms, self._beat_gateway, gateway)
        self._at(LOOK_MS, self._look)

    def _at(self, at_ms: float, event: Callable[..., None], *args: object) -> None:
        self._order += 1
        heapq.heappush(self._events, (at_ms, self._order, event, args))

    # Gateways.

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
            self._at(answered_ms, self._receive, self._members[worker], shard, leases, queue.head(answered_ms), 0)

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
        for observer in self._observers:
            observer.ended(record)

    def _beat_gateway(self, gateway: int) -> None:
        for core in self.cores:
            core.call(Call.BEAT, self.shape.gateways, self.now_ms + self.shape.link_ms)
        if self._admission is not None:
            self._admission.exchange(gateway, self.queues[0], self.now_ms)
        self._at(self.now_ms + self.shape.gateway_beat_ms, self._beat_gateway, gateway)

    # Workers.

    def _receive(
        self, member: _Member, shard: int, leases: Sequence[Lease], head: Sequence[LaneHead], taken_back: int
    ) -> None:
        rows = member.rows
        if len(member.shards) > 1:
            member.rivals.receive(shard, head, self.now_ms)
        for lease in leases:
            self._start(member, shard, lease)
        if taken_back:
            rows.offered[shard] -= taken_back
            self._offer_free(member, shard)
        elif len(member.shards) > 1 and not member.recalls:
            self._recall(member, shard)

    def _start(self, member: _Member, shard: int, lease: Lease) -> None:
        job_id = lease.job.job_id
        record = self.records[job_id]
        job = member.rows.start(lease, shard, record.arrival.output_tokens, self.now_ms)
        record.first_ms = job.first_ms + self.shape.link_ms
        if self._admission is not None:
            self._at(record.first_ms, self._admission.first_token, self._gateways[job_id], job_id, record.first_ms)
        if member.rows.is_new_end(job.end_ms):
            self._at(job.end_ms, self._end, member)

    def _end(self, member: _Member) -> None:
        by_shard: defaultdict[int, list[Progress]] = defaultdict(list)
        for job in member.rows.end(self.now_ms):
            arrival = self._ended(job)
            progress = job.progress(self.now_ms, self.shape.kind.step_ms, Outcome.FINISHED)
            assert progress is not None  # noqa: S101 - it has all its tokens
            self.service[arrival.lane, arrival.tenant] += progress.cost
            by_shard[job.shard].append(progress)
        for shard, ended in by_shard.items():
            self._turn(member, shard, ended)

    def _ended(self, job: RunningJob) -> Arrival:
        record, link_ms = self.records[job.lease.job.job_id], self.shape.link_ms
        arrival, first_ms = record.arrival, job.first_ms + link_ms
        record.produced(0, first_ms)
        if job.output_tokens > 1:
            step_ms = self.shape.kind.step_ms
            record.produced_at(1, [first_ms + index * step_ms for index in range(1, job.output_tokens)])
        record.tokens *= arrival.choices
        record.late_tokens *= arrival.choices
        record.computed = arrival.prompt_tokens + record.tokens
        self._close(arrival.job_id, Outcome.FINISHED, job.end_ms + link_ms, job.shard)
        return arrival

    def _turn(self, member: _Member, shard: int, ended: Sequence[Progress]) -> None:
        """Report ends to their shard, and offer the free rows there or to another one."""
        rows, target = member.rows.unoffered, shard
        if len(member.shards) > 1:
            others = [one for one in member.shards if one != shard]
            target = member.rivals.choose(shard, self._random.choice(others), self.now_ms)
        for first in range(0, len(ended), PER_CALL):
            is_last = first + PER_CALL >= len(ended)
            self._call(member, shard, ended[first : first + PER_CALL], rows if is_last and target == shard else 0)
        if target != shard and rows:
            self._call(member, target, (), rows)

    def _offer_free(self, member: _Member, given_by: int) -> None:
        member.recalls = False
        waiting = [shard for shard in member.shards if shard != given_by and member.rivals.waits(shard, self.now_ms)]
        self._call(member, self._random.choice(waiting) if waiting else given_by, (), member.rows.unoffered)

    def _recall(self, member: _Member, shard: int) -> None:
        """If jobs wait in one shard while another has rows of this worker, take half of these back."""
        now_ms, offered = self.now_ms, member.rows.offered
        if not any(member.rivals.waits(one, now_ms) for one in member.shards if not offered[one]):
            return
        idle = [one for one in member.shards if offered[one] and not member.rivals.waits(one, now_ms)]
        if idle:
            most = max(idle, key=lambda one: offered[one])
            member.recalls = True
            self._call(member, most, (), -math.ceil(offered[most] / 2))

    def _call(self, member: _Member, shard: int, ended: Sequence[Progress], rows: int) -> None:
        core, queue, link_ms = self.cores[shard], self.queues[shard], self.shape.link_ms
        member.rows.offered[shard] += max(0, rows)
        begins_ms = core.begin(self.now_ms + link_ms)
        floors = member.rivals.floors(shard, self.now_ms) if len(member.shards) > 1 else ()
        leases, taken_back = queue.turn(int(begins_ms), member.number, ended, rows, floors)
        answered_ms = core.run(Call.TURN, len(ended) + len(leases), begins_ms) + link_ms
        self._close_expired(shard)
        if rows < 0 and not taken_back:
            member.recalls = False
        if leases or taken_back or len(member.shards) > 1:
            self._at(answered_ms, self._receive, member, shard, leases, queue.head(answered_ms), taken_back)

    def _beat_worker(self, member: _Member) -> None:
        for shard in member.shards:
            progress = member.rows.progress(shard, self.now_ms)
            for one in progress:
                arrival = self.records[one.job_id].arrival
                self.service[arrival.lane, arrival.tenant] += one.cost
            core, queue = self.cores[shard], self.queues[shard]
            begins_ms = core.begin(self.now_ms + self.shape.link_ms)
            floors = member.rivals.floors(shard, self.now_ms) if len(member.shards) > 1 else ()
            queue.renew_jobs(int(begins_ms), member.number, progress, floors)
            answered_ms = core.run(Call.RENEW, len(progress), begins_ms) + self.shape.link_ms
            if len(member.shards) > 1:
                self._at(answered_ms, self._receive, member, shard, (), queue.head(answered_ms), 0)
        self._at(self.now_ms + self.shape.worker_beat_ms, self._beat_worker, member)

    def _look(self) -> None:
        for observer in self._observers:
            observer.look(self, self.now_ms)
        self._at(self.now_ms + LOOK_MS, self._look)
