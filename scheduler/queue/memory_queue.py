"""The global queue in memory, for simulations: which worker gets which job.

Pure: `now_ms` is the first argument of every method that depends on time. `events` (by gateway) replaces the streams.
Invariants: a job is queued, leased to one worker, or ended; an end is final and reported to its gateway exactly once;
an epoch is never reused. The tests add the other calls of the Redis queue (`tests/support/scheduler/model_queue.py`)
and send both queues the same calls."""

from collections.abc import Collection, Iterable, Mapping
from functools import partial

from fairlane.scheduler.planner.ordering import QUEUE_WINDOW
from fairlane.scheduler.planner.steps import Capacity
from fairlane.scheduler.protocol.lanes import Lane, LaneName
from fairlane.scheduler.protocol.messages import Job, Lease, Outcome
from fairlane.scheduler.queue.memory_jobs import JobBook
from fairlane.scheduler.queue.prefix_affinity import AFFINITY_DELAY_MS, PrefixAffinity, is_light
from fairlane.scheduler.queue.promises import WHOLE
from fairlane.scheduler.queue.take_order import Order, QueuedJob
from fairlane.scheduler.queue.types import (
    GATEWAY_LEASES,
    SUSPECT_LOSSES,
    JobRecord,
    JobState,
    LaneDepth,
    LaneFull,
    Progress,
    Put,
    ReportExchange,
    TenantQueueFull,
    drain_ms,
)
from fairlane.store import bounds


class LaneQueue:
    """All jobs of one model, and their holders. `lease_ms`: how long a silent worker keeps its jobs."""

    def __init__(self, lanes: dict[LaneName, Lane], *, lease_ms: int = 6_000, window: float = QUEUE_WINDOW) -> None:
        self._book = JobBook(lanes, window)
        self.events = self._book.events
        self._lease_ms = lease_ms
        self._workers: dict[str, int] = {}
        self._reports: dict[str, tuple[bytes, int]] = {}
        self._affinity = PrefixAffinity()

    # Calls of gateways.

    def put(
        self,
        now_ms: int,
        job: Job,
        *,
        tenant_limit: int | None = None,
        waited_ms: int = 0,
        prefixes: bytes = b"",
        generated: int = 0,
    ) -> Put:
        """Queue a job, and reserve time for its guarantee.

        `waited_ms`: time in another queue from which it was withdrawn, so that it arrived earlier. `generated`: output
        tokens of an earlier run of the same request, which its gateway has and from which it continues. `prefixes`: the
        result of `prefix_keys`. Raises TenantQueueFull, LaneFull and Unattainable without changing anything."""
        known = self._book.entries.get(job.job_id)
        if known is not None:
            return Put(self.position(job.job_id) or 0, known.job.guaranteed, known.preferred, known.called)
        own, places = self.waiting(job.tenant), self._book.places[job.lane]
        oldest_wait_ms = places.oldest_wait_ms(now_ms)
        if tenant_limit is not None and own >= tenant_limit:
            raise TenantQueueFull(tenant_limit, own, drain_ms(own, oldest_wait_ms))
        if places.depth >= places.lane.max_queued:
            raise LaneFull(job.lane, places.depth, drain_ms(places.depth, oldest_wait_ms))
        entry = self._book.add(now_ms - waited_ms, job, now_ms, generated)
        entry.prefixes = prefixes
        is_free = oldest_wait_ms <= AFFINITY_DELAY_MS and not entry.job.guaranteed
        if is_free:
            entry.preferred = self._affinity.find(now_ms, prefixes, partial(self._may_be_preferred, now_ms))
        entry.called = self._place(now_ms, entry)
        return Put(self.position(job.job_id) or 0, entry.job.guaranteed, entry.preferred, entry.called)

    def _place(self, now_ms: int, entry: QueuedJob) -> str:
        """Queue a new job, or lease it at once. Return the worker that has it or was called for it; none here, since
        simulated workers ask for jobs all the time."""
        self._book.seat(entry)
        return ""

    def record(self, job_id: str) -> JobRecord | None:
        entry = self._book.entries.get(job_id)
        if entry is None:
            return None
        return JobRecord(
            state=entry.state,
            outcome=entry.outcome,
            generated=entry.generated,
            prompt_tokens=len(entry.job.prompt),
            worker_id=entry.worker_id,
            tenant=entry.job.tenant,
            lane=entry.job.lane,
            gateway_id=entry.job.gateway_id,
            cancelled=entry.cancelled,
            epoch=entry.epoch,
            guaranteed=entry.job.guaranteed,
        )

    def credit(self, job_id: str) -> float:
        entry = self._book.entries.get(job_id)
        return 0.0 if entry is None else entry.credit

    def forget(self, job_ids: Iterable[str]) -> set[str]:
        known = {job_id for job_id in job_ids if job_id in self._book.entries}
        ended = {job_id for job_id in known if self._book.entries[job_id].state is JobState.ENDED}
        for job_id in ended:
            del self._book.entries[job_id]
        return known - ended

    def position(self, job_id: str) -> int | None:
        entry = self._book.entries.get(job_id)
        if entry is None or entry.state is not JobState.QUEUED:
            return None
        return self._book.places[entry.job.lane].position(entry)

    def depths(self, now_ms: int) -> dict[LaneName, LaneDepth]:
        return {
            name: LaneDepth(places.depth, places.oldest_wait_ms(now_ms), places.queued_tokens)
            for name, places in self._book.places.items()
        }

    def exchange_reports(
        self, now_ms: int, gateway_id: str, report: bytes, refused_us: Mapping[LaneName, int]
    ) -> ReportExchange:
        """Publish this gateway's report (`scheduler.admission.open_requests`) and return those of the other gateways.

        `refused_us`: work refused since the last report that might have been in time, in microseconds of all workers.
        """
        oldest_ms = now_ms - GATEWAY_LEASES * self._lease_ms
        self._reports[gateway_id] = report, now_ms
        self._reports = {
            name: (blob, at_ms) for name, (blob, at_ms) in self._reports.items() if blob and at_ms > oldest_ms
        }
        asked = {}
        for lane, level in self._book.levels.items():
            self._book.promises.asked[level].add(refused_us.get(lane, 0), now_ms)
            asked[lane] = self._book.promises.asked[level].part(now_ms) / WHOLE
        others = [(blob, max(0, now_ms - at_ms)) for name, (blob, at_ms) in self._reports.items() if name != gateway_id]
        return ReportExchange(tuple(sorted(others)), asked)

    @property
    def queued(self) -> int:
        return sum([places.depth for places in self._book.places.values()])

    def waiting(self, tenant: str) -> int:
        return sum(places.requests_of(tenant) for places in self._book.places.values())

    # Calls of workers.

    def take(self, now_ms: int, worker_id: str, capacity: Capacity) -> list[Lease]:
        most = bounds.JOBS_PER_CALL - self._expire(now_ms, bounds.JOBS_PER_CALL)
        return self._pick(now_ms, worker_id, self._order(now_ms, worker_id, capacity), most)

    def _order(self, now_ms: int, worker_id: str, capacity: Capacity, unreached: Collection[str] = ()) -> Order:
        lanes = tuple(self._book.places.values())
        suspect = any(entry.losses >= SUSPECT_LOSSES for entry in self._book.held(worker_id))
        return Order(lanes, self._book.entries, capacity, now_ms, suspect=suspect, unreached=unreached)

    def _pick(self, now_ms: int, worker_id: str, order: Order, most: int) -> list[Lease]:
        self._workers.setdefault(worker_id, now_ms + self._lease_ms)
        leases: list[Lease] = []
        while len(leases) < most and (entry := order.pick()) is not None:
            leases.append(self._book.lease(entry, worker_id, now_ms))
            self._affinity.record(now_ms, entry.prefixes, worker_id)
        return leases

    def renew(self, now_ms: int, worker_id: str) -> None:
        self._workers[worker_id] = now_ms + self._lease_ms

    def report(self, worker_id: str, items: Iterable[Progress]) -> set[str]:
        """Record the progress of a worker's jobs. Return the jobs that were refused: unknown, ended, not this worker's,
        or under a stale epoch."""
        refused = {item.job_id for item in items if not self._book.report(worker_id, item)}
        self._book.settle()
        return refused

    def release(self, now_ms: int, worker_id: str, job_ids: Iterable[str]) -> None:
        """Return jobs to the head of their lane on drain, without counting a loss. Jobs held by others are
        ignored."""
        for job_id in job_ids:
            entry = self._book.entries.get(job_id)
            if entry is not None and entry.state is JobState.LEASED and entry.worker_id == worker_id:
                self._book.give_back(entry, now_ms)

    def _may_be_preferred(self, now_ms: int, worker_id: str) -> bool:
        lives = self._workers.get(worker_id, now_ms) > now_ms
        return lives and is_light(worker_id, self._book.held_by, self._workers)

    def _expire(self, now_ms: int, most: int) -> int:
        late = self._book.late(now_ms, most)
        for entry in late:
            self._book.end(entry, Outcome.EXPIRED)
        return len(late)
