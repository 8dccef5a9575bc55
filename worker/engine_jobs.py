"""The jobs in the engine, as their gateways move them: started, granted more, cancelled, dropped."""

import asyncio
import logging
from collections.abc import Iterable, Sequence

from fairlane.common.log_lines import about
from fairlane.scheduler.planner.steps import Capacity
from fairlane.scheduler.protocol.messages import Cancel, Grant, Lease
from fairlane.worker.engine_thread import AskCapacity, Drop, EngineThread
from fairlane.worker.leases import HeldLeases
from fairlane.worker.reports import EngineObserver

log = logging.getLogger(__name__)


class EngineJobs:
    """Moves jobs between the outlet, whose `JobOwner` it is, and the engine."""

    def __init__(self, engine: EngineThread, observers: Sequence[EngineObserver]) -> None:
        self.leases = HeldLeases()
        # Set while the engine has no job.
        self.idle = asyncio.Event()
        self._engine = engine
        self._observers = observers

    def start_job(self, lease: Lease, *, again: bool) -> None:
        job_id, epoch = lease.job.job_id, lease.epoch
        self.idle.clear()
        self._engine.send(*((Drop(job_id, epoch), lease) if again else (lease,)))

    def too_large(self, leases: Sequence[Lease], capacity: Capacity) -> list[Lease]:
        """Return the leases of jobs that exceed the worker's capacity, which may fit elsewhere. The second time the
        planner ends such a job."""
        large = self.leases.too_large(leases, capacity)
        for job in large:
            extra = about(job.request_id, job.traceparent)
            log.warning("job %s exceeds this worker's capacity: returned", job.job_id, extra=extra)
        return [lease for lease in leases if lease.job in large]

    def grant_job(self, job_id: str, granted_until: int) -> None:
        self._engine.send(Grant(job_id=job_id, granted_until=granted_until))

    def cancel_job(self, job_id: str) -> None:
        self._engine.send(Cancel(job_id=job_id))

    def drop_jobs(self, jobs: Sequence[tuple[str, int]], why: str) -> None:
        log.warning("%d jobs dropped: %s", len(jobs), why)
        self._engine.send(*(Drop(job_id, epoch) for job_id, epoch in jobs))
        self.notify_lost(job_id for job_id, epoch in jobs if self.leases.holds(job_id, epoch))

    def ask_capacity(self) -> None:
        """Let the engine report its capacity, though no job of it has changed."""
        self._engine.send(AskCapacity())

    def drop_restarted(self, job_ids: Iterable[str]) -> None:
        """Drop jobs that a gateway's answer has restarted while the engine handed them back."""
        self._engine.send(*(Drop(job_id, epoch) for job_id, epoch in self.leases.epochs(job_ids)))

    def forget_job(self, job_id: str, epoch: int) -> None:
        self.leases.remove(job_id, epoch)

    def notify_lost(self, job_ids: Iterable[str]) -> None:
        lost = list(job_ids)
        for observer in self._observers:
            observer.lost(lost)
