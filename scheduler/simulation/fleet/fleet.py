"""A fleet in virtual time, control plane included: gateways, the queue's shards on store cores, workers of fixed steps.

One chat is four calls to the store:

    1. its gateway reserves its budget (`reserve`, at the budgets' core of the tenant's shard);
    2. the gateway puts it (`put`, at its shard), which leases it at once to the worker that offers the most rows;
    3. the worker reports the end and offers the row again (`turn`), which leases the next job if one waits;
    4. the gateway settles (`settle`).

Each core runs one call at a time; calls wait in order of arrival. Heartbeats of workers and gateways are calls too.
Tokens go over links: they take time, but no call. The order in which jobs are leased is that of the real queue.

A worker that dies keeps its jobs until its lease ends. They then return to their shards, and continue in other workers
after the last token that their gateways have."""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Protocol

from fairlane.scheduler.planner.ordering import QUEUE_WINDOW
from fairlane.scheduler.protocol.lanes import DEFAULT_LANES, Lane, LaneName
from fairlane.scheduler.protocol.messages import Lease, Outcome
from fairlane.scheduler.queue.shards import LaneHead, Rivals
from fairlane.scheduler.queue.types import Progress
from fairlane.scheduler.simulation.fleet.admission import Gateways
from fairlane.scheduler.simulation.fleet.control_plane import ControlPlane, EndObserver, FleetShape
from fairlane.scheduler.simulation.fleet.rows_worker import NOTHING_DONE, Done, RowsWorker, RunningJob
from fairlane.scheduler.simulation.fleet.store_cores import Call
from fairlane.scheduler.simulation.workload import Arrival
from fairlane.store.bounds import JOBS_PER_CALL

# Interval at which the observer looks at all tenants.
LOOK_MS = 1_000.0
# A worker's lease from its last heartbeat on, after which its jobs return to the queue.
LEASE_MS = 6_000.0
MINUTE_MS = 60_000.0


class FleetObserver(EndObserver, Protocol):
    """Looks at the whole fleet each LOOK_MS, and at each request that ends."""

    def look(self, fleet: "Fleet", now_ms: float) -> None: ...


class _Member:
    def __init__(self, number: int, shape: FleetShape, lanes: Sequence[Lane], shards: Sequence[int]) -> None:
        self.number, self.shards = number, shards
        self.rows = RowsWorker(shape.kind)
        self.rivals = Rivals(QUEUE_WINDOW, [lane.share_floor for lane in lanes])
        # A shard that was asked to give rows back, until it has answered.
        self.recalls = False
        self.is_dead = False
        # When its lease expires unless another heartbeat renews it.
        self.leased_until_ms = LEASE_MS


class Fleet(ControlPlane):
    """A control plane with its workers."""

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
        super().__init__(arrivals, shape, lanes, admission, observers, seed)
        # Weighted tokens computed, by lane and tenant, as workers have reported them.
        self.service: defaultdict[tuple[LaneName, str], float] = defaultdict(float)
        # For each job that lost a worker: what its workers had computed until then.
        self.interrupted: dict[str, Done] = {}
        self.deaths = 0
        self._observers = observers
        # All workers by number, dead ones included.
        self._members: list[_Member] = []
        for _ in range(shape.workers):
            self._add_worker()

    def _add_worker(self) -> _Member:
        member = _Member(len(self._members), self.shape, self.lanes, self._shards())
        self._members.append(member)
        return member

    def _shards(self) -> Sequence[int]:
        count, shards = self.shape.shards_per_worker or self.shape.shards, self.shape.shards
        if count >= shards:
            return range(shards)
        return self._random.sample(range(shards), count)

    @property
    def rows_used(self) -> int:
        return sum(member.rows.used for member in self._members)

    def served(self) -> dict[tuple[LaneName, str], float]:
        """Return the weighted tokens computed until now, by lane and tenant, reported or not."""
        served = self.service.copy()
        for member in self._members:
            for job in member.rows.running.values():
                one = job.lease.job
                served[one.lane, one.tenant] += job.unreported(self.now_ms, self.shape.kind.step_ms)
        return served

    def _begin(self) -> None:
        shape = self.shape
        for member in self._members:
            for shard, rows in self._parts(member):
                member.rows.offered[shard] = rows
                self.queues[shard].turn(0, member.number, (), rows, ())
            self._at(self._random.random() * shape.worker_beat_ms, self._beat_worker, member)
        for gateway in range(shape.gateways):
            self._at(self._random.random() * shape.gateway_beat_ms, self._beat_gateway, gateway)
        self._at(LOOK_MS, self._look)
        self._plan_death()

    def _parts(self, member: _Member) -> Iterator[tuple[int, int]]:
        """Return the shards of a new worker, and the rows that it offers to each."""
        rows, count = self.shape.kind.rows, len(member.shards)
        for place, shard in enumerate(member.shards):
            yield shard, rows * (place + 1) // count - rows * place // count

    def _give(self, at_ms: float, worker: int, shard: int, leases: Sequence[Lease]) -> None:
        self._at(at_ms, self._receive, self._members[worker], shard, leases, self.queues[shard].head(at_ms), 0)

    # Running jobs.

    def _receive(
        self, member: _Member, shard: int, leases: Sequence[Lease], head: Sequence[LaneHead], taken_back: int
    ) -> None:
        if member.is_dead:
            for lease in leases:
                self.interrupted.setdefault(lease.job.job_id, NOTHING_DONE)
            return
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
        record, done = self.records[job_id], self.interrupted.get(job_id, NOTHING_DONE)
        job = member.rows.start(lease, shard, record.arrival.output_tokens, self.now_ms, done)
        if not done.tokens:
            record.first_ms = job.first_ms + self.shape.link_ms
            if self._admission is not None:
                self._at(record.first_ms, self._first_token, member, self._gateways[job_id], job_id)
        if member.rows.is_new_end(job.end_ms):
            self._at(job.end_ms, self._end, member)

    def _first_token(self, member: _Member, gateway: int, job_id: str) -> None:
        if self._admission is not None and not member.is_dead:
            self._admission.first_token(gateway, job_id, self.now_ms)

    def _end(self, member: _Member) -> None:
        if member.is_dead:
            return
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
        record = self.records[job.lease.job.job_id]
        arrival = record.arrival
        self._produced(record, job, job.output_tokens)
        record.tokens *= arrival.choices
        record.late_tokens *= arrival.choices
        self._close(arrival.job_id, Outcome.FINISHED, job.end_ms + self.shape.link_ms, job.shard)
        return arrival

    def _turn(self, member: _Member, shard: int, ended: Sequence[Progress]) -> None:
        """Report ends to their shard, and offer the free rows there or to another one."""
        rows, target = member.rows.unoffered, shard
        if len(member.shards) > 1:
            others = [one for one in member.shards if one != shard]
            target = member.rivals.choose(shard, self._random.choice(others), self.now_ms)
        for first in range(0, len(ended), JOBS_PER_CALL):
            is_last = first + JOBS_PER_CALL >= len(ended)
            self._call(member, shard, ended[first : first + JOBS_PER_CALL], rows if is_last and target == shard else 0)
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
        if member.is_dead:
            return
        core, queue, link_ms = self.cores[shard], self.queues[shard], self.shape.link_ms
        member.rows.offered[shard] += max(0, rows)
        begins_ms = core.begin(self.now_ms + link_ms)
        floors = member.rivals.floors(shard, self.now_ms) if len(member.shards) > 1 else ()
        leases, taken_back = queue.turn(int(begins_ms), member.number, ended, rows, floors)
        answered_ms = core.run(Call.TURN, len(ended) + len(leases), begins_ms) + link_ms
        self._close_expired(shard)
        if len(ended) + len(leases) >= JOBS_PER_CALL and queue.queued:
            self._at(answered_ms, self._call, member, shard, (), 0)
        if rows < 0 and not taken_back:
            member.recalls = False
        if leases or taken_back or len(member.shards) > 1:
            self._at(answered_ms, self._receive, member, shard, leases, queue.head(answered_ms), taken_back)

    def _beat_worker(self, member: _Member) -> None:
        if member.is_dead:
            return
        member.leased_until_ms = self.now_ms + LEASE_MS
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

    # Deaths of workers.

    def _plan_death(self) -> None:
        if self.shape.deaths_per_min:
            after_ms = self._random.expovariate(self.shape.deaths_per_min / MINUTE_MS)
            self._at(self.now_ms + after_ms, self._die)

    def _die(self) -> None:
        """Stop one worker. Until its lease expires, the queue may lease more jobs to it."""
        self._plan_death()
        living = [member for member in self._members if not member.is_dead]
        if not living:
            return
        member = self._random.choice(living)
        member.is_dead, self.deaths = True, self.deaths + 1
        for job_id, job in member.rows.running.items():
            record = self.records[job_id]
            tokens = min(job.tokens(self.now_ms, self.shape.kind.step_ms), job.output_tokens - 1)
            self._produced(record, job, tokens)
            record.first_ms = record.first_ms if tokens else None
            self.interrupted[job_id] = Done(tokens, job.reported)
        member.rows = RowsWorker(self.shape.kind)
        self._at(member.leased_until_ms, self._reclaim, member)
        self._at(self.now_ms + self.shape.replaced_after_ms, self._join)

    def _reclaim(self, member: _Member) -> None:
        """Return a dead worker's jobs to their shards, which lease them again where rows are free. A call takes as
        long as a `turn` with as many jobs."""
        for shard in member.shards:
            core, queue, lost = self.cores[shard], self.queues[shard], -1
            while lost:
                begins_ms = core.begin(self.now_ms + self.shape.link_ms)
                lost = queue.lose_worker(int(begins_ms), member.number)
                given = list[tuple[int, list[Lease]]]()
                while (found := queue.lease_now(int(begins_ms)))[1]:
                    given.append(found)
                jobs = lost + sum(len(leases) for _, leases in given)
                answered_ms = core.run(Call.TURN, jobs, begins_ms) + self.shape.link_ms
                self._close_expired(shard)
                for worker, leases in given:
                    self._give(answered_ms, worker, shard, leases)

    def _join(self) -> None:
        member = self._add_worker()
        for shard, rows in self._parts(member):
            self._call(member, shard, (), rows)
        self._beat_worker(member)

    def _look(self) -> None:
        for observer in self._observers:
            observer.look(self, self.now_ms)
        self._at(self.now_ms + LOOK_MS, self._look)
