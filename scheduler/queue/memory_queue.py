"""The rules of the global queue, in memory: which worker gets which job, and what happens to jobs of dead holders.

Pure: `now_ms` is the first argument of every method that depends on time. `events` (by gateway) and `controls` (by
worker) replace the streams. The Redis queue answers every call like this one; tests send both the same calls.
Invariants: a job is queued, leased to one worker, or ended; an end is final and reported to its gateway exactly once;
an epoch is never reused; tokens are recorded in order, without gaps or repeats."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial

from fairlane.scheduler.planner.ordering import QUEUE_WINDOW
from fairlane.scheduler.planner.steps import Capacity
from fairlane.scheduler.protocol.lanes import Lane, LaneName
from fairlane.scheduler.protocol.messages import Grant, Job, Lease, Outcome
from fairlane.scheduler.queue.memory_jobs import JobBook
from fairlane.scheduler.queue.prefix_affinity import AFFINITY_DELAY_MS, PrefixAffinity, is_light
from fairlane.scheduler.queue.promises import WHOLE
from fairlane.scheduler.queue.rooms import WorkerCalls
from fairlane.scheduler.queue.take_order import Order
from fairlane.scheduler.queue.types import (
    GATEWAY_LEASES,
    KEPT_MS,
    RECORD_TTL_MS,
    SUSPECT_LOSSES,
    JobRecord,
    JobState,
    LaneDepth,
    LaneFull,
    Publication,
    Published,
    Put,
    QueuePresence,
    ReportExchange,
    TenantQueueFull,
    drain_ms,
    in_rank_order,
)
from fairlane.store import bounds


class LaneQueue:
    """All jobs of one model, and their holders. `lease_ms`: how long a silent worker keeps its jobs."""

    def __init__(self, lanes: dict[LaneName, Lane], *, lease_ms: int = 6_000, window: float = QUEUE_WINDOW) -> None:
        self._book = JobBook(lanes, window)
        self.events, self.controls = self._book.events, self._book.controls
        self._lease_ms = lease_ms
        self._workers: dict[str, int] = {}
        self._gateways: dict[str, int] = {}
        # Workers that lost their jobs and have not been notified, with the time of the loss.
        self._lost: dict[str, int] = {}
        # Each gateway's last report, and its time.
        self._reports: dict[str, tuple[bytes, int]] = {}
        # By gateway and worker: the serial of the last call, and the jobs that it refused.
        self._last_publish: dict[tuple[str, str], tuple[str, set[str]]] = {}
        self._affinity = PrefixAffinity()
        self.calls = WorkerCalls([lane.name for lane in in_rank_order(lanes)])
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
        generated: Sequence[Sequence[int]] = (),
    ) -> Put:
        """Queue a job, and book its guarantee.

        `waited_ms`: time in another queue from which it was withdrawn, so that it arrived earlier. `generated`: tokens
        of each choice from an earlier run of the same request, from which it continues. `prefixes`: the result of
        `prefix_keys`. Raises TenantQueueFull, LaneFull and Unattainable without changing anything."""
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
        lapses_ms = now_ms + GATEWAY_LEASES * self._lease_ms
        self._gateways[job.gateway_id] = max(lapses_ms, self._gateways.get(job.gateway_id, 0))
        is_free = oldest_wait_ms <= AFFINITY_DELAY_MS and not entry.job.guaranteed
        if is_free:
            entry.preferred = self._affinity.find(now_ms, prefixes, partial(self._may_be_preferred, now_ms))
        entry.called = self.calls.call(now_ms, job.job_id, self._book.levels[job.lane], entry.need, entry.preferred)
        return Put(places.position(entry), entry.job.guaranteed, entry.preferred, entry.called)

    def cancel(self, job_id: str) -> JobRecord | None:
        """End a waiting job, or ask a leased one's holder to stop it. Idempotent; returns None if it is unknown."""
        entry = self._book.entries.get(job_id)
        if entry is not None:
            self._book.stop(entry)
        return self.record(job_id)

    def grant(self, job_id: str, granted_until: int) -> bool:
        """Raise the token limit of each choice, in the record and at the holder. Return False if it is unknown or
        ended.

        A repeat is sent to the holder again, since the first one may have been lost."""
        entry = self._book.entries.get(job_id)
        if entry is None or entry.state is JobState.ENDED:
            return False
        if granted_until >= entry.granted_until:
            entry.granted_until = granted_until
            if entry.state is JobState.LEASED:
                self.controls[entry.worker_id].append(Grant(job_id=job_id, granted_until=granted_until))
        return True

    def record(self, job_id: str) -> JobRecord | None:
        """Return the record of a job, or None if it was never put, or was forgotten."""
        entry = self._book.entries.get(job_id)
        if entry is None:
            return None
        return JobRecord(
            state=entry.state,
            outcome=entry.outcome,
            generated=tuple(map(len, entry.generated)),
            prompt_tokens=len(entry.job.prompt),
            worker_id=entry.worker_id,
            tenant=entry.job.tenant,
            lane=entry.job.lane,
            gateway_id=entry.job.gateway_id,
            cancelled=entry.cancelled,
            epoch=entry.epoch,
            guaranteed=entry.job.guaranteed,
        )

    def published(self, job_id: str) -> Published | None:
        """Return the published tokens of a job, or None if it is unknown."""
        entry = self._book.entries.get(job_id)
        return None if entry is None else Published(entry.job.prompt_print, tuple(map(tuple, entry.generated)))

    def amend(self, now_ms: int, job_id: str, epoch: int, generated: Sequence[Sequence[int]]) -> bool:
        """Replace a job's recorded tokens by those of its client, and queue it again to continue from them.

        `epoch` published tokens that differ from the client's; nothing changes if the job has a later one. Return False
        if the job is unknown or has ended."""
        entry = self._book.entries.get(job_id)
        if entry is None or entry.state is JobState.ENDED:
            return False
        if entry.epoch <= epoch:
            entry.generated = [list(ids) for ids in generated]
            if entry.state is JobState.LEASED:
                self._book.give_back(entry, now_ms)
        return True

    def credit(self, job_id: str) -> float:
        entry = self._book.entries.get(job_id)
        return 0.0 if entry is None else entry.credit

    def forget(self, job_ids: Iterable[str]) -> None:
        """Drop the records of ended jobs; ignore others."""
        for job_id in job_ids:
            entry = self._book.entries.get(job_id)
            if entry is not None and entry.state is JobState.ENDED:
                del self._book.entries[job_id]

    def position(self, job_id: str) -> int | None:
        """Return 1 + the tenant's own jobs ahead in the lane, or None if it is not queued."""
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
        """Return the number of waiting requests of a tenant, over all lanes, which its `queued_requests` limits."""
        return sum(places.requests_of(tenant) for places in self._book.places.values())

    def gateway_alive(self, now_ms: int, gateway_id: str) -> None:
        """Record a gateway's heartbeat; after GATEWAY_LEASES leases without one, its jobs are cancelled."""
        self._gateways[gateway_id] = now_ms + GATEWAY_LEASES * self._lease_ms

    # Calls of workers.

    def take(self, now_ms: int, worker_id: str, capacity: Capacity) -> list[Lease]:
        """Lease the most urgent jobs that this worker can start, at most PER_CALL.

        Returns none until the worker knows, from `renew`, that it lost its jobs."""
        self._expire(now_ms)
        leases = [] if worker_id in self._lost else self._take(now_ms, worker_id, capacity)
        self.calls.settle(worker_id, self._waits)
        return leases

    def _take(self, now_ms: int, worker_id: str, capacity: Capacity) -> list[Lease]:
        self._workers.setdefault(worker_id, now_ms + self._lease_ms)
        lanes = tuple(self._book.places.values())
        suspect = any(entry.losses >= SUSPECT_LOSSES for entry in self._book.held(worker_id))
        order = Order(lanes, self._book.entries, capacity, now_ms, suspect=suspect)
        leases: list[Lease] = []
        while len(leases) < bounds.PER_CALL and (entry := order.pick()) is not None:
            leases.append(self._book.lease(entry, worker_id, now_ms))
            self._affinity.record(now_ms, entry.prefixes, worker_id)
        self.calls.withdraw(worker_id)
        if not leases:
            self.calls.offer(worker_id, capacity)
        return leases

    def retire(self, worker_id: str) -> None:
        """Stop calling a worker that takes no more jobs; a waiting job that it was called for wakes every worker."""
        self.calls.withdraw(worker_id)
        self.calls.settle(worker_id, self._waits, may_pass_on=False)

    def renew(self, now_ms: int, worker_id: str, holding: Collection[str] | None = None) -> bool:
        """Record a worker's heartbeat. Return False, once, if its lease had expired and its jobs were taken away.

        `holding` names the jobs that the worker knows, including those of publications not yet answered. A job leased
        for longer than one lease and not among them was in a `take` whose answer was lost; it is given back."""
        self._is_quiet(now_ms)
        self._workers[worker_id] = now_ms + self._lease_ms
        self._served_ms = now_ms
        if holding is not None:
            for entry in self._book.held(worker_id):
                if entry.job.job_id not in holding and entry.taken_ms <= now_ms - self._lease_ms:
                    self._book.give_back(entry, now_ms)
            self._wake_for_returned()
        return self._lost.pop(worker_id, None) is None

    def publish(
        self, now_ms: int, gateway_id: str, worker_id: str, items: Sequence[Publication], *, serial: str = ""
    ) -> set[str]:
        """Record what a step produced for one gateway's jobs. Return the jobs that were refused.

        Refused: unknown, ended, not this worker's or this gateway's, a stale epoch, a gap in the tokens; the last one
        returns to the queue. A call with the same non-empty `serial` as the worker's last to this gateway is a repeat:
        it changes nothing and returns the same."""
        last_serial, last_refused = self._last_publish.get((gateway_id, worker_id), ("", set()))
        if serial and last_serial == serial:
            return last_refused
        refused = {item.job_id for item in items if not self._book.publish(gateway_id, worker_id, item, now_ms)}
        self._book.settle()
        self._wake_for_returned()
        self._last_publish[gateway_id, worker_id] = serial, refused
        return refused

    def release(self, now_ms: int, worker_id: str, job_ids: Iterable[str]) -> None:
        """Give jobs back on drain, to the head of their lane, without counting a loss. Jobs held by others are
        ignored."""
        for job_id in job_ids:
            entry = self._book.entries.get(job_id)
            if entry is not None and entry.state is JobState.LEASED and entry.worker_id == worker_id:
                self._book.give_back(entry, now_ms)
        self._wake_for_returned()

    # Calls of the elected gateway, each second.

    def reclaim(self, now_ms: int) -> int:
        """Clear up after dead processes and expired jobs. Return how many jobs were taken from dead workers.

        Must be called more often than every half lease. After a longer time without any `renew` or `reclaim`, because
        the store was unavailable, it does nothing for one full lease, so that holders can renew first."""
        is_quiet = self._is_quiet(now_ms)
        self._served_ms = now_ms if self._served_ms is None else self._served_ms
        lost, is_more = 0, not is_quiet
        while is_more:
            count, is_more = self._reclaim_some(now_ms)
            lost += count
        return lost

    def rouse(self, now_ms: int) -> int:
        """Wake every worker if a called one has not taken its job in time.

        Return milliseconds until the next call is late, or 0 if none is open."""
        return self.calls.rouse(now_ms, self._waits)

    def orphan(self, now_ms: int, grace_ms: int) -> QueuePresence:
        """Handle a queue that no worker has served for `grace_ms`. Must be called after `reclaim`.

        Started latency jobs end as unavailable. All others keep waiting for a worker. After KEPT_MS an empty queue is
        removed."""
        if self._seen_ms is None and self._is_empty():
            return QueuePresence.REMOVED
        if not self._is_orphan(now_ms, grace_ms):
            return QueuePresence.SERVED
        self._book.end_started(LaneName.LATENCY)
        if not self._is_empty():
            return QueuePresence.ORPHANED
        if not self._is_orphan(now_ms, KEPT_MS):
            return QueuePresence.EMPTY
        self._book.reset()
        self._lost.clear()
        self._reports.clear()
        self._seen_ms, self._served_ms, self._quiet_until_ms = None, None, 0
        return QueuePresence.REMOVED

    def withdraw(self, now_ms: int, job_id: str, grace_ms: int) -> bool:
        """Remove a job without tokens from an orphaned queue, so that it can be put into another one; no event is
        published.

        Return whether the queue no longer holds the job."""
        entry = self._book.entries.get(job_id)
        if entry is None:
            return True
        if entry.state is not JobState.QUEUED or entry.produced or not self._is_orphan(now_ms, grace_ms):
            return False
        self._book.withdraw(entry)
        return True

    def _wake_for_returned(self) -> None:
        if self._book.has_returned:
            self._book.has_returned = False
            self.calls.wake()

    def _waits(self, job_id: str) -> bool:
        entry = self._book.entries.get(job_id)
        return entry is not None and entry.state is JobState.QUEUED

    def _is_empty(self) -> bool:
        return not (self.queued or self._workers or self._gateways)

    def _may_be_preferred(self, now_ms: int, worker_id: str) -> bool:
        lives = self._workers.get(worker_id, now_ms) > now_ms
        return lives and is_light(worker_id, self._book.held_by, self._workers)

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

    def _expire(self, now_ms: int) -> int:
        late = self._book.late(now_ms)
        for entry in late:
            self._book.end(entry, Outcome.EXPIRED)
        return len(late)

    def _reclaim_some(self, now_ms: int) -> tuple[int, bool]:
        """Do the work of one call of the `reclaim` script, for at most PER_CALL jobs.

        Return how many jobs were taken from dead workers, and whether more work is left."""
        left, lost = bounds.PER_CALL - self._expire(now_ms), 0
        self.rouse(now_ms)
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
        self._wake_for_returned()
        has_more_counters = self._book.forget_counters()
        return lost, has_more_counters or left <= 0 or bounds.PER_CALL in {len(gateways), len(workers)}

    def _abandon(self, gateway_id: str, most: int) -> int:
        """Cancel at most `most` jobs of a dead gateway and return how many."""
        job_ids = sorted(self._book.job_ids[gateway_id])[:most]
        for job_id in job_ids:
            self._book.stop(self._book.entries[job_id])
            self._book.job_ids[gateway_id].discard(job_id)
        if len(job_ids) < most:
            del self._gateways[gateway_id]
        return len(job_ids)

    def _lose(self, worker_id: str, most: int, now_ms: int) -> int:
        """Return at most `most` jobs of a dead worker to the queue and return how many."""
        held = self._book.held(worker_id)[:most]
        for entry in held:
            self._book.lose(entry, now_ms)
        self.retire(worker_id)
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
    return [name for _, name in late[: bounds.PER_CALL]]
