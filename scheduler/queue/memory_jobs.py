"""The job records of the in-memory queue. Only this module changes them."""

from bisect import bisect_left, bisect_right, insort
from collections import defaultdict
from operator import itemgetter

import msgspec

from fairlane.scheduler.protocol.lanes import Lane, LaneName
from fairlane.scheduler.protocol.messages import Finished, Job, Lease, Outcome
from fairlane.scheduler.queue.promises import Promises
from fairlane.scheduler.queue.take_order import Place, Places, QueuedJob
from fairlane.scheduler.queue.types import (
    MAX_LOSSES,
    JobState,
    Progress,
    Unattainable,
    claim_due_ms,
    claim_us,
    hard_end_ms,
    hard_first_ms,
    in_rank_order,
    work_us,
)

POISONED = f"the workers that held this request lost it or died {MAX_LOSSES} times"


class JobBook:
    """All jobs and their transitions: add → seat → lease → (give back → lease)* → end. Each keeps indexes, counters and
    shares consistent."""

    def __init__(self, lanes: dict[LaneName, Lane], window: float) -> None:
        self.places = {lane.name: Places(lane, window) for lane in in_rank_order(lanes)}
        self.levels = {name: level for level, name in enumerate(self.places)}
        self.promises = self._no_promises()
        self.entries: dict[str, QueuedJob] = {}
        self.events: dict[str, list[Finished]] = defaultdict(list)
        self._held: dict[str, set[str]] = defaultdict(set)
        self._expiry: list[Place] = []
        self._spent: dict[tuple[LaneName, str], float] = {}

    def held(self, worker_id: str) -> list[QueuedJob]:
        held = [self.entries[job_id] for job_id in self._held.get(worker_id, ())]
        return sorted(held, key=lambda entry: (entry.losses, entry.job.job_id))

    def held_by(self, worker_id: str) -> int:
        return len(self._held.get(worker_id, ()))

    def late(self, now_ms: int, most: int) -> list[QueuedJob]:
        count = bisect_right(self._expiry, float(now_ms), key=itemgetter(0))
        return [self.entries[job_id] for _, job_id in self._expiry[: min(count, most)]]

    def add(self, arrived_ms: int, job: Job, now_ms: int, generated: int) -> QueuedJob:
        """Record a new job; the caller queues or leases it.

        It becomes best effort if its claim does not fit, or if its tenant is outside Θ.
        `generated` is the number of tokens that it continues from. Raises Unattainable, unless the job waited in
        another queue before: an admitted job stays admitted."""
        claimed_us, bucket_ms, level = claim_us(job), None, self.levels[job.lane]
        if claimed_us:
            places = self.places[job.lane]
            is_ahead = places.lead(job.tenant, job.weight) > places.window(job.token_ms)
            if not is_ahead:
                bucket_ms = self.promises.book(level, arrived_ms + claim_due_ms(job), claimed_us, now_ms)
            if bucket_ms is None and not is_ahead and arrived_ms == now_ms:
                hard_ms = arrived_ms + min(hard_first_ms(job), hard_end_ms(job))
                late_ms = self.promises.late_ms(level, hard_ms, claimed_us, now_ms)
                if late_ms > 0:
                    raise Unattainable(late_ms)
            job = msgspec.structs.replace(job, guaranteed=bucket_ms is not None)
        self.promises.asked[level].add(work_us(job), now_ms)
        entry = QueuedJob(job=job, arrived_ms=arrived_ms, queued_ms=arrived_ms, generated=generated)
        if bucket_ms is not None:
            entry.claim_us, entry.bucket_ms = claimed_us, bucket_ms
        self.entries[job.job_id] = entry
        return entry

    def lease(self, entry: QueuedJob, worker_id: str, now_ms: int) -> Lease:
        self._unseat(entry)
        return self.hold(entry, worker_id, now_ms)

    def hold(self, entry: QueuedJob, worker_id: str, now_ms: int) -> Lease:
        """Lease a job that does not wait."""
        entry.state, entry.worker_id, entry.taken_ms, entry.returned = JobState.LEASED, worker_id, now_ms, False
        entry.epoch += 1
        entry.credit = entry.provisional_cost
        self._held[worker_id].add(entry.job.job_id)
        self._charge(entry, entry.credit)
        entry.marks = tuple(
            places.floor.lend(entry.credit, is_due=places.depth > 0, is_own=name == entry.job.lane)
            for name, places in self.places.items()
        )
        started = entry.epoch > 1 or entry.generated > 0
        return Lease(job=entry.job, epoch=entry.epoch, arrived_ms_ago=now_ms - entry.arrived_ms, started=started)

    def report(self, worker_id: str, item: Progress) -> bool:
        """Record a leased job's progress. Return False if it is refused."""
        entry = self.entries.get(item.job_id)
        if entry is None or entry.state is not JobState.LEASED:
            return False
        if (entry.worker_id, entry.epoch) != (worker_id, item.epoch):
            return False
        if item.generated > entry.generated:
            self._release_claim(entry)
        entry.generated = max(entry.generated, item.generated)
        covered = min(entry.credit, item.cost)
        entry.credit -= covered
        self._spend(entry, item.cost - covered)
        self._take_back(entry, covered, is_computed=True)
        self._serve(entry, item.cost - covered)
        if item.ends is not None:
            self.end(entry, item.ends, notifies=False)
        return True

    def settle(self) -> None:
        for (lane, tenant), service in self._spent.items():
            self.places[lane].counters.charge(tenant, service, 1.0)
        self._spent.clear()

    def give_back(self, entry: QueuedJob, now_ms: int) -> None:
        if entry.cancelled:
            self.end(entry, Outcome.CANCELLED)
            return
        self._held[entry.worker_id].discard(entry.job.job_id)
        self._refund(entry)
        entry.state, entry.worker_id, entry.returned, entry.queued_ms = JobState.QUEUED, "", True, now_ms
        entry.epoch += 1
        self.seat(entry)

    def lose(self, entry: QueuedJob, now_ms: int) -> None:
        """Return a leased job of a dead worker to the queue; after MAX_LOSSES it ends as failed."""
        entry.losses += 1
        if entry.losses >= MAX_LOSSES and not entry.cancelled:
            self.end(entry, Outcome.FAILED, POISONED)
        else:
            self.give_back(entry, now_ms)

    def end(self, entry: QueuedJob, outcome: Outcome, error: str = "", *, notifies: bool = True) -> None:
        """End a job permanently. `notifies`: report it to its gateway, unless its worker has done so."""
        job = entry.job
        if entry.state is JobState.QUEUED:
            self._unseat(entry)
        else:
            self._held[entry.worker_id].discard(job.job_id)
        self._refund(entry)
        self._release_claim(entry)
        entry.state, entry.outcome = JobState.ENDED, outcome
        if notifies:
            finished = Finished(job_id=job.job_id, epoch=entry.epoch, outcome=outcome, error=error)
            self.events[job.gateway_id].append(finished)

    def _no_promises(self) -> Promises:
        return Promises([places.lane.share_floor for places in self.places.values()])

    def seat(self, entry: QueuedJob) -> None:
        self.places[entry.job.lane].enter(entry)
        insort(self._expiry, self._end_of_wait(entry))

    def _unseat(self, entry: QueuedJob) -> None:
        self.places[entry.job.lane].leave(entry)
        del self._expiry[bisect_left(self._expiry, self._end_of_wait(entry))]

    def _end_of_wait(self, entry: QueuedJob) -> Place:
        max_wait_ms = self.places[entry.job.lane].lane.max_wait_ms
        return entry.expires_ms(max_wait_ms), entry.job.job_id

    def _charge(self, entry: QueuedJob, tokens: float) -> None:
        if tokens:
            self.places[entry.job.lane].counters.charge(entry.job.tenant, tokens / entry.job.weight, 1.0)

    def _spend(self, entry: QueuedJob, tokens: float) -> None:
        if tokens:
            spent = entry.job.lane, entry.job.tenant
            self._spent[spent] = self._spent.get(spent, 0.0) + tokens / entry.job.weight

    def _serve(self, entry: QueuedJob, tokens: float) -> None:
        if tokens:
            for name, places in self.places.items():
                places.floor.serve(tokens, is_due=places.depth > 0, is_own=name == entry.job.lane)

    def _take_back(self, entry: QueuedJob, tokens: float, *, is_computed: bool) -> None:
        if tokens:
            for mark, (name, places) in zip(entry.marks, self.places.items(), strict=True):
                places.floor.take_back(mark, tokens, is_own=name == entry.job.lane, is_computed=is_computed)

    def _release_claim(self, entry: QueuedJob) -> None:
        if entry.claim_us:
            self.promises.release(self.levels[entry.job.lane], entry.bucket_ms, entry.claim_us)
            entry.claim_us = 0

    def _refund(self, entry: QueuedJob) -> None:
        self._charge(entry, -entry.credit)
        self._take_back(entry, entry.credit, is_computed=False)
        entry.credit = 0.0
