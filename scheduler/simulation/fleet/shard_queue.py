"""One shard of the queue as the control plane calls it: `put` leases at once where there is room, and `turn` reports
ends and leases in one call."""

import heapq
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from fairlane.scheduler.planner.ordering import QUEUE_WINDOW
from fairlane.scheduler.planner.steps import Capacity
from fairlane.scheduler.protocol.lanes import Lane, LaneName
from fairlane.scheduler.protocol.messages import Finished, Job, Lease
from fairlane.scheduler.queue.memory_queue import LaneQueue
from fairlane.scheduler.queue.shards import LaneFloor, LaneHead, ShardCounters
from fairlane.scheduler.queue.take_order import Order
from fairlane.scheduler.queue.types import Progress
from fairlane.store.bounds import JOBS_PER_CALL

# Name of all gateways: the simulation knows each job's own.
GATEWAY = "gateway"


class WorkerShape(NamedTuple):
    """A worker as the queue sees it: rows and prefill speed. KV is not modelled, so any job fits that finds rows."""

    rows: int
    prefill_ms: float
    kv_tokens: int = 1 << 40


class ShardQueue(LaneQueue):
    """The jobs of one shard, and the rows that each worker offers it."""

    def __init__(self, lanes: dict[LaneName, Lane], shape: WorkerShape, *, is_only: bool) -> None:
        super().__init__(lanes)
        self._shape = shape
        self._places = tuple(self._book.places.values())
        if not is_only:
            for places in self._places:
                places.counters = ShardCounters(QUEUE_WINDOW)
        self._rows: dict[int, int] = {}
        # Workers by free rows, most first; an entry whose rows have changed is skipped.
        self._freest: list[tuple[int, int]] = []

    def put_now(self, now_ms: int, job: Job) -> tuple[int, list[Lease]]:
        """Queue a job, and lease to the worker that offers the most rows. Raises QueueError."""
        self.put(now_ms, job)
        return self.lease_now(now_ms)

    def lease_now(self, now_ms: int) -> tuple[int, list[Lease]]:
        """Lease to the worker that offers the most rows. Return it and the leases; -1 if no worker has free rows."""
        worker = self._freest_worker()
        return (-1, []) if worker is None else (worker, self._lease(now_ms, worker, JOBS_PER_CALL))

    def lose_worker(self, now_ms: int, worker: int) -> int:
        """Withdraw a dead worker's rows, and return its jobs to their lanes. Return the number of jobs,
        JOBS_PER_CALL at most."""
        self._offer(worker, 0)
        lost = self._book.held(str(worker))[:JOBS_PER_CALL]
        for entry in lost:
            self._book.lose(entry, now_ms)
        return len(lost)

    def turn(
        self, now_ms: int, worker: int, ended: Sequence[Progress], rows: int, floors: Sequence[LaneFloor]
    ) -> tuple[list[Lease], int]:
        """Record what ended, change the rows that a worker offers, and lease into them.

        Return the leases, and the rows that were taken back: a negative `rows` asks for as many that are still free."""
        if ended:
            self.report(str(worker), ended)
            self.forget(progress.job_id for progress in ended)
        self._receive(floors, now_ms)
        free = self._rows.get(worker, 0)
        taken_back = min(free, max(0, -rows))
        self._offer(worker, free + max(0, rows) - taken_back)
        return self._lease(now_ms, worker, JOBS_PER_CALL - len(ended)), taken_back

    def renew_jobs(self, now_ms: int, worker: int, progress: Sequence[Progress], floors: Sequence[LaneFloor]) -> None:
        self._receive(floors, now_ms)
        self.renew(now_ms, str(worker))
        self.report(str(worker), progress)

    def head(self, now_ms: float) -> list[LaneHead]:
        heads = []
        for places in self._places:
            oldest_ms = places.oldest_wait_ms(int(now_ms)) if places.depth else -1.0
            heads.append(LaneHead(places.least_counter(), oldest_ms, next(places.guaranteed(), None) is not None))
        return heads

    def backlogged_ms(self) -> Iterator[tuple[LaneName, str, int]]:
        """Return the tenants with waiting jobs by lane, and since when they have had some all the time."""
        for places in self._places:
            for tenant, since_ms in places.backlogged_ms.items():
                yield places.lane.name, tenant, since_ms

    def ends(self) -> list[Finished]:
        ended = self.events.pop(GATEWAY, [])
        self.forget(end.job_id for end in ended)
        return ended

    def _receive(self, floors: Sequence[LaneFloor], now_ms: int) -> None:
        for places, floor in zip(self._places, floors, strict=False):
            if isinstance(places.counters, ShardCounters):
                places.counters.receive(floor, now_ms)

    def _lease(self, now_ms: int, worker: int, most: int) -> list[Lease]:
        rows, leases = self._rows.get(worker, 0), list[Lease]()
        if not (rows and self.queued):
            return leases
        self._expire(now_ms, JOBS_PER_CALL)
        lanes, kv_tokens = self._book.places, self._shape.kv_tokens
        capacity = Capacity(
            sequences=dict.fromkeys(lanes, rows),
            kv_tokens=dict.fromkeys(lanes, kv_tokens),
            prefill_ms=self._shape.prefill_ms,
            max_sequences=self._shape.rows,
            pool_tokens=kv_tokens,
        )
        order = Order(self._places, self._book.entries, capacity, now_ms, suspect=False)
        while rows > 0 and len(leases) < most and (entry := order.pick()) is not None:
            leases.append(self._book.lease(entry, str(worker), now_ms))
            rows -= entry.job.n
        self._offer(worker, rows)
        return leases

    def _offer(self, worker: int, rows: int) -> None:
        if self._rows.get(worker, 0) != rows:
            self._rows[worker] = rows
            if rows:
                heapq.heappush(self._freest, (-rows, worker))

    def _freest_worker(self) -> int | None:
        while self._freest:
            rows, worker = self._freest[0]
            if self._rows[worker] == -rows:
                return worker
            heapq.heappop(self._freest)
        return None
