"""The model of the Redis queue: every call of it, in memory.

A state-machine test sends both queues the same calls, so a rule that changes in `fairlane/scheduler/queue/lua` must
change here or in `fairlane.scheduler.queue.memory_queue`, which simulations use."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence

from fairlane.scheduler.planner.ordering import QUEUE_WINDOW
from fairlane.scheduler.planner.steps import Capacity
from fairlane.scheduler.protocol.lanes import Lane, LaneName
from fairlane.scheduler.protocol.messages import Cancel, Control, Job, Lease, Outcome
from fairlane.scheduler.queue.memory_jobs import JobBook
from fairlane.scheduler.queue.memory_queue import LaneQueue
from fairlane.scheduler.queue.rooms import CALL_PATIENCE_MS, HANDED_PATIENCE_MS, ROOMS_PER_PUT
from fairlane.scheduler.queue.take_order import Places, QueuedJob
from fairlane.scheduler.queue.types import (
    GATEWAY_LEASES,
    KEPT_MS,
    QUANTUM_COST,
    RECORD_TTL_MS,
    JobRecord,
    JobState,
    Progress,
    Published,
    Put,
    QueuePresence,
    Turn,
    in_rank_order,
)
from fairlane.store import bounds
from tests.support.scheduler.worker_rooms import WorkerRooms


class ModelJobs(JobBook):
    """The records, with the transitions that simulations do not need."""

    def __init__(self, lanes: dict[LaneName, Lane], window: float) -> None:
        super().__init__(lanes, window)
        self.controls: dict[str, list[Control]] = defaultdict(list)
        # Of each job whose worker reported its output: the tokens of each choice.
        self.token_ids: dict[str, tuple[tuple[int, ...], ...]] = {}
        # Jobs of each gateway that have not ended and were not asked to when the gateway died.
        self.job_ids: dict[str, set[str]] = defaultdict(set)
        # Jobs that came back from a worker, since the caller last reset this.
        self.returned: list[QueuedJob] = []

    def add(self, arrived_ms: int, job: Job, now_ms: int, generated: int) -> QueuedJob:
        entry = super().add(arrived_ms, job, now_ms, generated)
        self.job_ids[job.gateway_id].add(job.job_id)
        return entry

    def report(self, worker_id: str, item: Progress) -> bool:
        is_accepted = super().report(worker_id, item)
        if is_accepted and item.token_ids:
            self.token_ids[item.job_id] = item.token_ids
        return is_accepted

    def end(self, entry: QueuedJob, outcome: Outcome, error: str = "", *, notifies: bool = True) -> None:
        super().end(entry, outcome, error, notifies=notifies)
        self.job_ids[entry.job.gateway_id].discard(entry.job.job_id)

    def give_back(self, entry: QueuedJob, now_ms: int) -> None:
        super().give_back(entry, now_ms)
        self.returned.append(entry)

    def forget_counters(self) -> bool:
        """Drop counters that do not affect the order, at most PER_CALL per lane. Return whether more are left."""
        waiting = [places for places in self.places.values() if places.depth]
        has_more = [one.counters.forget(one.least_counter(), bounds.PER_CALL) for one in waiting]
        return any(has_more)

    def stop(self, entry: QueuedJob) -> None:
        """End a waiting job; ask the holder of a leased one to stop, once. Ended jobs are ignored."""
        if entry.state is JobState.QUEUED:
            self.end(entry, Outcome.CANCELLED)
        elif entry.state is JobState.LEASED and not entry.cancelled:
            entry.cancelled = True
            self.controls[entry.worker_id].append(Cancel(job_id=entry.job.job_id))

    def withdraw(self, entry: QueuedJob) -> None:
        self._unseat(entry)
        self._release_claim(entry)
        self.job_ids[entry.job.gateway_id].discard(entry.job.job_id)
        del self.entries[entry.job.job_id]
        self.token_ids.pop(entry.job.job_id, None)

    def reset(self) -> None:
        self.promises = self._no_promises()
        for name, places in self.places.items():
            self.places[name] = Places(places.lane, places.counters.window)


class ModelQueue(LaneQueue):
    """All jobs of one model, and their holders. `controls` (by worker) replaces the streams.

    The contract of each call is that of `RedisQueue`."""

    def __init__(self, lanes: dict[LaneName, Lane], *, lease_ms: int = 6_000, window: float = QUEUE_WINDOW) -> None:
        super().__init__(lanes, lease_ms=lease_ms, window=window)
        self._book = self._jobs = ModelJobs(lanes, window)
        self.events, self.controls = self._jobs.events, self._jobs.controls
        self._gateways: dict[str, int] = {}
        # Workers that lost their jobs and have not been notified, with the time of the loss.
        self._lost: dict[str, int] = {}
        # By worker and part of its report: the last serial, and the jobs that were refused.
        self._reported: dict[tuple[str, int], tuple[str, set[str]]] = {}
        self.rooms = WorkerRooms([lane.name for lane in in_rank_order(lanes)])
        self._seen_ms: int | None = None
        self._quiet_until_ms = 0
        # When a worker last renewed its lease.
        self._served_ms: int | None = None

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
        is_new = job.job_id not in self._jobs.entries
        put = super().put(
            now_ms, job, tenant_limit=tenant_limit, waited_ms=waited_ms, prefixes=prefixes, generated=generated
        )
        if is_new:
            lapses_ms = now_ms + GATEWAY_LEASES * self._lease_ms
            self._gateways[job.gateway_id] = max(lapses_ms, self._gateways.get(job.gateway_id, 0))
        return put

    def _place(self, now_ms: int, entry: QueuedJob) -> str:
        level, worker_id = self._jobs.levels[entry.job.lane], ""
        if not self._has_elder(now_ms, level):
            worker_id = self.rooms.find(level, entry.need, entry.preferred)
        if not worker_id:
            self._jobs.seat(entry)
            return self._call_worker(entry, entry.preferred)
        entry.handed = True
        self.rooms.occupy(worker_id, level, entry.need)
        self.rooms.given[worker_id].append(self._jobs.hold(entry, worker_id, now_ms))
        self._affinity.record(now_ms, entry.prefixes, worker_id)
        return worker_id

    def _has_elder(self, now_ms: int, level: int) -> bool:
        """Return whether waiting work may come before a new job of this lane."""
        for other, places in enumerate(self._jobs.places.values()):
            if places.depth:
                is_owed = places.lane.share_floor > 0 and places.floor.debt >= QUANTUM_COST
                is_promoted = other == level + 1 and places.oldest_wait_ms(now_ms) >= places.lane.long_wait_ms
                if other <= level or is_owed or is_promoted:
                    return True
        return False

    def _call_worker(self, entry: QueuedJob, preferred: str = "") -> str:
        return self.rooms.call(entry.job.job_id, self._jobs.levels[entry.job.lane], entry.need, preferred)

    def _call_again(self, now_ms: int, entry: QueuedJob) -> bool:
        entry.passes += 1
        entry.called = self._call_worker(entry) if entry.passes <= ROOMS_PER_PUT else ""
        entry.roused_ms = now_ms
        return bool(entry.called)

    def rouse(self, now_ms: int, job_ids: Iterable[str]) -> set[str]:
        watched = {job_id for job_id in job_ids if self._may_start(now_ms, self._jobs.entries.get(job_id))}
        self._jobs.returned.clear()
        return watched

    def _may_start(self, now_ms: int, entry: QueuedJob | None) -> bool:
        if entry is None or entry.state is JobState.ENDED:
            return False
        if entry.state is JobState.LEASED:
            if not entry.handed or entry.epoch > 1:
                return False
            if 0 <= now_ms - entry.taken_ms < HANDED_PATIENCE_MS:
                return True
            self.rooms.withdraw(entry.worker_id)
            given, job_id = self.rooms.given[entry.worker_id], entry.job.job_id
            self.rooms.given[entry.worker_id] = [lease for lease in given if lease.job.job_id != job_id]
            self._jobs.give_back(entry, now_ms)
        elif 0 <= now_ms - max(entry.queued_ms, entry.roused_ms) < CALL_PATIENCE_MS / 2:
            return bool(entry.called)
        return self._waits(entry) and self._call_again(now_ms, entry)

    def cancel(self, job_id: str) -> JobRecord | None:
        entry = self._book.entries.get(job_id)
        if entry is not None:
            self._jobs.stop(entry)
        return self.record(job_id)

    def published(self, job_id: str) -> Published | None:
        entry = self._book.entries.get(job_id)
        if entry is None:
            return None
        return Published(entry.job.prompt_print, self._jobs.token_ids.get(job_id, ((),) * entry.job.n))

    def forget(self, job_ids: Iterable[str]) -> set[str]:
        unended = super().forget(job_ids)
        for job_id in self._jobs.token_ids.keys() - self._jobs.entries.keys():
            del self._jobs.token_ids[job_id]
        return unended

    def gateway_alive(self, now_ms: int, gateway_id: str) -> None:
        self._gateways[gateway_id] = now_ms + GATEWAY_LEASES * self._lease_ms

    # Calls of workers.

    def turn(
        self,
        now_ms: int,
        worker_id: str,
        capacity: Capacity,
        items: Sequence[Progress] = (),
        *,
        called: Iterable[str] = (),
        unreached: Sequence[str] = (),
        serial: str = "",
    ) -> Turn:
        refused = self.report(worker_id, items, serial=serial)
        most = bounds.JOBS_PER_CALL
        most -= len(items[:most])
        most = max(0, most - self._expire(now_ms, bounds.JOBS_PER_CALL))
        leases, has_more = list[Lease](), False
        if worker_id not in self._lost:
            order = self._order(now_ms, worker_id, capacity, unreached)
            leases = self._pick(now_ms, worker_id, order, most)
            has_more = len(leases) >= most and self.queued > 0
            self.rooms.withdraw(worker_id)
            for entry in filter(None, map(self._jobs.entries.get, called)):
                if self._waits(entry):
                    self._call_again(now_ms, entry)
            self.rooms.register(worker_id, order.room, order.yielding, jobs_wait=self.queued > 0)
        return Turn(refused, leases, has_more, self.queued > 0)

    def take(self, now_ms: int, worker_id: str, capacity: Capacity) -> list[Lease]:
        return self.turn(now_ms, worker_id, capacity).leases

    def retire(self, worker_id: str) -> None:
        self.rooms.withdraw(worker_id)

    def renew_lease(self, now_ms: int, worker_id: str, holding: Collection[str] | None = None) -> bool:
        self._is_quiet(now_ms)
        self.renew(now_ms, worker_id)
        self._served_ms = now_ms
        if holding is not None:
            for entry in self._jobs.held(worker_id):
                if entry.job.job_id not in holding and entry.taken_ms <= now_ms - self._lease_ms:
                    self._jobs.give_back(entry, now_ms)
            self._leave_returned(worker_id)
        return self._lost.pop(worker_id, None) is None

    def report(self, worker_id: str, items: Iterable[Progress], *, serial: str = "") -> set[str]:
        refused = set[str]()
        for part, chunk in enumerate(bounds.chunks(items, bounds.JOBS_PER_CALL)):
            last_serial, last_refused = self._reported.get((worker_id, part), ("", set()))
            if not serial or last_serial != serial:
                last_refused = super().report(worker_id, chunk)
                self._reported[worker_id, part] = serial, last_refused
            refused |= last_refused
        return refused

    def release(self, now_ms: int, worker_id: str, job_ids: Iterable[str]) -> None:
        super().release(now_ms, worker_id, job_ids)
        self._leave_returned(worker_id)

    # Calls of the elected gateway.

    def reclaim(self, now_ms: int) -> int:
        is_quiet = self._is_quiet(now_ms)
        self._served_ms = now_ms if self._served_ms is None else self._served_ms
        lost, is_more = 0, not is_quiet
        while is_more:
            count, is_more = self._reclaim_some(now_ms)
            lost += count
        return lost

    def orphan(self, now_ms: int, grace_ms: int) -> QueuePresence:
        if self._seen_ms is None and self._is_empty():
            return QueuePresence.REMOVED
        if not self._is_orphan(now_ms, grace_ms):
            return QueuePresence.SERVED
        if not self._is_empty():
            return QueuePresence.ORPHANED
        if not self._is_orphan(now_ms, KEPT_MS):
            return QueuePresence.EMPTY
        self._jobs.reset()
        self._lost.clear()
        self._reports.clear()
        self._seen_ms, self._served_ms, self._quiet_until_ms = None, None, 0
        return QueuePresence.REMOVED

    def withdraw(self, now_ms: int, job_id: str, grace_ms: int) -> bool:
        entry = self._jobs.entries.get(job_id)
        if entry is None:
            return True
        if entry.state is not JobState.QUEUED or entry.generated or not self._is_orphan(now_ms, grace_ms):
            return False
        self._jobs.withdraw(entry)
        return True

    def _leave_returned(self, worker_id: str) -> None:
        if self._jobs.returned:
            self.rooms.withdraw(worker_id)
        self._call_for_returned()

    def _call_for_returned(self) -> None:
        for entry in self._jobs.returned:
            if self._waits(entry):
                self._call_worker(entry)
        self._jobs.returned.clear()

    def _waits(self, entry: QueuedJob) -> bool:
        return entry.state is JobState.QUEUED

    def _is_empty(self) -> bool:
        return not (self.queued or self._workers or self._gateways)

    def _is_orphan(self, now_ms: int, grace_ms: int) -> bool:
        """Return whether no worker has renewed its lease for `grace_ms`, although the queue was checked regularly."""
        if self._seen_ms is None or self._served_ms is None or now_ms - self._seen_ms > self._lease_ms / 2:
            return False
        is_quiet = now_ms < self._quiet_until_ms <= now_ms + self._lease_ms
        return not is_quiet and now_ms - self._served_ms >= grace_ms

    def _is_quiet(self, now_ms: int) -> bool:
        if self._seen_ms is not None and now_ms - self._seen_ms > self._lease_ms / 2:
            self._quiet_until_ms = now_ms + self._lease_ms
        self._seen_ms = now_ms
        return now_ms < self._quiet_until_ms <= now_ms + self._lease_ms  # the clock may have jumped ahead and back

    def _reclaim_some(self, now_ms: int) -> tuple[int, bool]:
        """Do the work of one call of the `reclaim` script, for at most JOBS_PER_CALL jobs.

        Return how many jobs were taken from dead workers, and whether more work is left."""
        left, lost = bounds.JOBS_PER_CALL - self._expire(now_ms, bounds.JOBS_PER_CALL), 0
        gateways = _lapsed(self._gateways, now_ms, GATEWAY_LEASES * self._lease_ms)
        workers = _lapsed(self._workers, now_ms, self._lease_ms)
        for gateway_id in gateways:
            if left > 0:
                left -= self._abandon(gateway_id, left)
        for worker_id in workers:
            if left > 0:
                count = self._lose(worker_id, left, now_ms)
                left, lost = left - count, lost + count
        self._lost = {worker: lost_ms for worker, lost_ms in self._lost.items() if lost_ms > now_ms - RECORD_TTL_MS}
        self._call_for_returned()
        has_more_counters = self._jobs.forget_counters()
        return lost, has_more_counters or left <= 0 or bounds.JOBS_PER_CALL in {len(gateways), len(workers)}

    def _abandon(self, gateway_id: str, most: int) -> int:
        """Cancel at most `most` jobs of a dead gateway and return how many."""
        job_ids = sorted(self._jobs.job_ids[gateway_id])[:most]
        for job_id in job_ids:
            self._jobs.stop(self._jobs.entries[job_id])
            self._jobs.job_ids[gateway_id].discard(job_id)
        if len(job_ids) < most:
            del self._gateways[gateway_id]
        return len(job_ids)

    def _lose(self, worker_id: str, most: int, now_ms: int) -> int:
        """Return at most `most` jobs of a dead worker to the queue and return how many."""
        held = self._jobs.held(worker_id)[:most]
        for entry in held:
            self._jobs.lose(entry, now_ms)
        self.retire(worker_id)
        self.rooms.given.pop(worker_id, None)
        if held:
            self._lost[worker_id] = now_ms
        if len(held) < most:
            del self._workers[worker_id]
        return len(held)


def _lapsed(leases: dict[str, int], now_ms: int, length_ms: int) -> list[str]:
    """Return the ids with expired leases. Leases longer than the maximum, after the clock was set back, start anew."""
    for name, expires_ms in leases.items():
        leases[name] = min(expires_ms, now_ms + length_ms)
    late = sorted((expires_ms, name) for name, expires_ms in leases.items() if expires_ms <= now_ms)
    return [name for _, name in late[: bounds.JOBS_PER_CALL]]
