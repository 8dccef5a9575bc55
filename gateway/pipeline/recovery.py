"""Renews this gateway's reservations, settles those of dead gateways, and finds lost jobs."""

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from fairlane.gateway.errors import ApiError, tenant_deleted
from fairlane.gateway.fleet import FleetCache
from fairlane.gateway.pipeline.delivery import Dispatcher
from fairlane.gateway.pipeline.settlement import recorded
from fairlane.gateway.request.live_request import LiveJob, LiveRequest, job_ids, total
from fairlane.quotas.store import TOMBSTONE_MS, Charge, Lapsed, QuotaStore
from fairlane.quotas.tenants import Tenant, TenantStore
from fairlane.scheduler.queue.shards import shard_for
from fairlane.scheduler.queue.types import JobState
from fairlane.store.errors import STORE_ERRORS, StoreFailures
from fairlane.store.retry import every

log = logging.getLogger(__name__)

REAP_EVERY_S = 1.0
WATCH_EVERY_S = 1.0
RENEWALS_PER_LEASE = 3
# At least: if no reaper ran for half a lease, no reservation counts as lapsed.
REAPS_PER_LEASE = 4
REAP_BATCH = 500
RENEW_BATCH = 500


@dataclass(eq=False)
class Reaper:
    """Three background loops over the reservations in the store: a reservation is a lease."""

    quotas: QuotaStore
    tenants: TenantStore
    dispatcher: Dispatcher
    fleet_cache: FleetCache
    lease_s: float
    # Called once with each settlement; may raise STORE_ERRORS.
    on_reaped: Callable[[Lapsed, Charge], Awaitable[None]]
    is_elected: Callable[[], bool] = lambda: True
    reaped: int = field(default=0, init=False)
    _renewed_s: float = field(default_factory=time.monotonic, init=False)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for period_s, what, work in (
                (self.lease_s / RENEWALS_PER_LEASE, "renewing reservations", self.renew),
                (min(REAP_EVERY_S, self.lease_s / REAPS_PER_LEASE), "reaping reservations", self.reap),
                (WATCH_EVERY_S, "watching tenants", self.watch),
            ):
                tasks.create_task(every(period_s, what, work))

    async def renew(self) -> None:
        """Extend the leases of this gateway's requests.

        A reservation that the store has lost, as after a failover, is recorded again. One that another gateway has
        settled ends its request."""
        requests = {job.request.id: job.request for job in self.dispatcher.jobs.values()}
        failures, lost, began_s = StoreFailures(), set[str](), time.monotonic()
        ids_of: dict[str, list[str]] = defaultdict(list)
        for request in requests.values():
            ids_of[request.ask.root].append(request.id)
        for root, ids in ids_of.items():
            for start in range(0, len(ids), RENEW_BATCH):
                with failures:
                    lost |= await self.quotas.renew(root, ids[start : start + RENEW_BATCH])
        for booking_id in lost:
            with failures:
                await self._reassert(requests[booking_id])
        failures.raise_last()
        self._renewed_s = began_s

    async def _reassert(self, request: LiveRequest) -> None:
        """Record a lost reservation again, or fail its request.

        Settlements by others are marked in the store for a limited time. If this gateway was silent for longer, the
        mark may be gone, and the request fails. A request that was settled here meanwhile has no jobs."""
        if not request.jobs:
            return
        is_marked = time.monotonic() - self._renewed_s < TOMBSTONE_MS / 2e3
        if is_marked and await self.quotas.book(request.ask):
            log.warning("the store had lost the reservation of job %s: recorded it again", request.id)
            return
        for job in request.jobs:
            if not job.settled:
                job.fail(ApiError("The request's reservation was lost.", "quota_store_unavailable"))

    async def reap(self) -> None:
        """Settle lapsed reservations. A job that still runs is cancelled first and settled in a later round."""
        if not (self.is_elected() and self.fleet_cache.is_fresh):
            return  # jobs in queues that are not known yet would count as never enqueued
        failures = StoreFailures()
        for lapsed in await self.quotas.expired(REAP_BATCH):
            if lapsed.reservation_id not in self.dispatcher.jobs:
                with failures:
                    await self._reap_one(lapsed)
        failures.raise_last()

    async def watch(self) -> None:
        """End the jobs of tenants that were suspended or deleted, or whose parents were."""
        jobs, failures = list(self.dispatcher.jobs.values()), StoreFailures()
        known = await self._look_up({job.request.ask.tenant for job in jobs}, failures)
        above = {name for tenant in known.values() if tenant is not None for name in tenant.above}
        known |= await self._look_up(above - known.keys(), failures)
        for job in jobs:
            if job.request.ask.tenant not in known:
                continue
            tenant = known[job.request.ask.tenant]
            parents = tenant.above if tenant else ()
            error = _refusal(job.request, tenant, [known[name] for name in parents if name in known])
            if error is not None and not job.settled:
                job.fail(error)
        failures.raise_last()

    async def _look_up(self, names: Iterable[str], failures: StoreFailures) -> dict[str, Tenant | None]:
        found = {}
        for name in names:
            with failures:
                found[name] = await self.tenants.get(name)
        return found

    async def _reap_one(self, lapsed: Lapsed) -> None:
        found = []
        for job_id in job_ids(lapsed.reservation_id, lapsed.prompts):
            for queue in sorted(self.fleet_cache.queues_of(lapsed.model)):
                name = shard_for(queue, lapsed.root)
                record = await self.dispatcher.queue(name).cancel(job_id)
                if record is not None:  # else its gateway died before it enqueued the job
                    found.append((name, job_id, record))
        if any(record.state is not JobState.ENDED for _, _, record in found):
            return
        await self._settle(lapsed, total([recorded(record) for _, _, record in found]))
        for name, job_id, _ in found:
            self.dispatcher.forget(name, job_id, until_ms=lapsed.once_until_ms)

    async def _settle(self, lapsed: Lapsed, charge: Charge) -> None:
        if (await self.quotas.settle(lapsed.root, lapsed.reservation_id, charge)).first:
            self.reaped += 1
            log.info(
                "settled the lapsed reservation %s of %s: %s, %d output tokens",
                lapsed.reservation_id,
                lapsed.tenant,
                charge.outcome,
                charge.output_tokens,
            )
            with suppress(*STORE_ERRORS):
                await self.on_reaped(lapsed, charge)


def _refusal(request: LiveRequest, tenant: Tenant | None, above: Iterable[Tenant | None]) -> ApiError | None:
    """Return the error that ends a running request, if any.

    `tenant` has its tenant's id now and may be a new tenant; `above` are its parents."""
    if tenant is None or tenant.created_at != request.tenant_since:
        return tenant_deleted()
    if tenant.state != "active":
        return ApiError("This tenant is suspended.", "tenant_suspended")
    if any(parent is None or parent.state != "active" for parent in above):
        return ApiError("A parent of this tenant is suspended.", "tenant_suspended")
    return None


LOOK_EVERY_S = 5.0
# Lookups per round: bounds the load on the store, however many requests wait.
MOST_LOOKS = 100
# Leases of a job whose workers could not open it here, one after the other, before its request fails.
MOST_UNREACHED = 3


@dataclass(eq=False)
class LostJobs:
    """Finds jobs that no worker runs any more.

    A store that failed over may have lost a job, or the event of its end; or no worker reaches this gateway, so that
    each returns the job to the queue. The record of a job without events in a round is looked up. If it is missing or
    has ended, the event has one more round to arrive. If it has new leases again and again, none of which opened the
    job here, the request fails."""

    dispatcher: Dispatcher
    _received: Mapping[str, int] = field(default_factory=dict, init=False)
    _due: list[str] = field(default_factory=list, init=False)
    _missed: set[str] = field(default_factory=set, init=False)
    # Epochs of leases that have not opened their job here, oldest first.
    _unreached: dict[str, list[int]] = field(default_factory=dict, init=False)

    async def run(self) -> None:
        await every(LOOK_EVERY_S, "looking for lost jobs", self.look)

    async def look(self) -> None:
        jobs = self.dispatcher.jobs
        received = {job.id: _received_tokens(job) for job in jobs.values() if job.awaits_end and job.stream is None}
        quiet = {name for name, count in received.items() if self._received.get(name) == count}
        self._received = received
        for name in self._missed & quiet:
            log.error("job %s is lost", name)
            jobs[name].fail(ApiError("The request's job was lost.", "internal_error"))
        self._missed = set()
        self._unreached = {name: epochs for name, epochs in self._unreached.items() if name in quiet}
        self._due = [name for name in self._due if name in quiet] or sorted(quiet)
        now, self._due = self._due[:MOST_LOOKS], self._due[MOST_LOOKS:]
        for name in now:
            job = jobs.get(name)
            if job is not None:
                record = await self.dispatcher.queue(job.queue).record(name)
                if record is None or record.state is JobState.ENDED:
                    self._missed.add(name)
                elif record.epoch > job.fence:
                    self._note_unreached(job, record.epoch)

    def _note_unreached(self, job: LiveJob, epoch: int) -> None:
        epochs = self._unreached.setdefault(job.id, [])
        if epoch not in epochs:
            epochs.append(epoch)
        if len(epochs) > MOST_UNREACHED:
            log.error("job %s was leased %d times, and no worker reached this gateway", job.id, len(epochs))
            job.fail(ApiError("No worker can reach this gateway.", "unavailable", retry_after_s=1.0))


def _received_tokens(job: LiveJob) -> int:
    return job.preemptions + sum(choice.published for choice in job.choices)
