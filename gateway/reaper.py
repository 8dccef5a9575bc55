"""Keeps what this gateway reserved, and settles what no gateway keeps any more.

A reservation is a lease. `renew` extends those of our flights in batches; `reap` finds the lapsed ones of anyone, ends
their jobs and charges what the job's record says was published. `watch` ends the flights of suspended tenants.
"""

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Protocol

from gateway.directory import Directory
from gateway.dispatch import Dispatcher
from gateway.errors import ApiError, invalid_api_key
from gateway.flight import Booking, flight_ids, total
from gateway.settle import recorded
from gateway.store import Troubles, every
from quotas.store import TOMBSTONE_MS, Charge, Lapsed, QuotaStore
from quotas.tenants import Tenant
from scheduler.queue_types import JobState

log = logging.getLogger(__name__)

REAP_EVERY_S = 1.0
WATCH_EVERY_S = 1.0
RENEWALS_PER_LEASE = 3
REAPS_PER_LEASE = 4
"""At least: nobody is reported as lapsed where nobody looked for half a lease."""
REAP_BATCH = 500
RENEW_BATCH = 500


class Tenants(Protocol):
    """Where tenants are looked up; `quotas.tenants.TenantStore` is one."""

    async def get(self, tenant_id: str) -> Tenant | None:
        """The tenant, or None where it was deleted."""


class Reaper:
    """Three loops over the store. Nothing here is on a request's way."""

    def __init__(
        self,
        quotas: QuotaStore,
        tenants: Tenants,
        dispatcher: Dispatcher,
        directory: Directory,
        *,
        lease_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`directory`: knows the queues that jobs for a model may stand in. `lease_s`: of a reservation."""
        self._quotas = quotas
        self._tenants = tenants
        self._dispatcher = dispatcher
        self._directory = directory
        self._lease_s = lease_s
        self._clock = clock
        self._renewed_s = clock()
        self.reaped = 0
        """Lapsed reservations settled here."""

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for period_s, what, work in (
                (self._lease_s / RENEWALS_PER_LEASE, "renewing reservations", self.renew),
                (min(REAP_EVERY_S, self._lease_s / REAPS_PER_LEASE), "reaping reservations", self.reap),
                (WATCH_EVERY_S, "watching tenants", self.watch),
            ):
                tasks.create_task(every(period_s, what, work))

    async def renew(self) -> None:
        """Extend the leases of all our bookings. One that a store has forgotten, as when it failed over, is noted anew;
        one that was settled by others was taken from us, and ends."""
        bookings = {flight.booking.id: flight.booking for flight in self._dispatcher.flights.values()}
        troubles, lost, began_s = Troubles(), set[str](), self._clock()
        for root, ids in _by_root(bookings.values()).items():
            for start in range(0, len(ids), RENEW_BATCH):
                with troubles:
                    lost |= await self._quotas.renew(root, ids[start : start + RENEW_BATCH])
        for booking_id in lost:
            with troubles:
                await self._reassert(bookings[booking_id])
        troubles.tell()
        self._renewed_s = began_s

    async def _reassert(self, booking: Booking) -> None:
        """What others settled is marked for a while: after a longer silence of ours it may be unmarked again. One that
        was settled here while the store was asked is no longer ours to note."""
        if not booking.flights:
            return
        is_marked = self._clock() - self._renewed_s < TOMBSTONE_MS / 2e3
        if is_marked and await self._quotas.book(booking.ask):
            log.warning("the store had forgotten flight %s, which goes on", booking.id)
            return
        for flight in booking.flights:
            if not flight.settled:
                flight.fail(ApiError("The request's reservation was lost.", "quota_store_unavailable"))

    async def reap(self) -> None:
        """Settle what has lapsed. What a worker still holds is cancelled first and settled on a later round."""
        if not self._directory.is_fresh:
            return  # a job in a queue that is not known yet would pass for one that never was
        troubles = Troubles()
        for lapsed in await self._quotas.expired(REAP_BATCH):
            if lapsed.flight_id not in self._dispatcher.flights:
                with troubles:
                    await self._reap_one(lapsed)
        troubles.tell()

    async def watch(self) -> None:
        """End the flights of tenants that were suspended or deleted, or are below one that was."""
        flights, troubles = list(self._dispatcher.flights.values()), Troubles()
        known = await self._look_up({flight.booking.ask.tenant for flight in flights}, troubles)
        above = {name for tenant in known.values() if tenant is not None for name in tenant.parents}
        known |= await self._look_up(above - known.keys(), troubles)
        for flight in flights:
            if flight.booking.ask.tenant not in known:
                continue
            tenant = known[flight.booking.ask.tenant]
            parents = tenant.parents if tenant else ()
            error = _refusal(flight.booking, tenant, [known[name] for name in parents if name in known])
            if error is not None and not flight.settled:
                flight.fail(error)
        troubles.tell()

    async def _look_up(self, names: Iterable[str], troubles: Troubles) -> dict[str, Tenant | None]:
        """Tenants by name, but for those that nobody can say anything of now."""
        found = {}
        for name in names:
            with troubles:
                found[name] = await self._tenants.get(name)
        return found

    async def _reap_one(self, lapsed: Lapsed) -> None:
        found = []
        for flight_id in flight_ids(lapsed.flight_id, lapsed.prompts):
            for name in sorted(self._directory.queues_of(lapsed.model)):
                record = await self._dispatcher.queue(name).cancel(flight_id)
                if record is not None:  # otherwise its gateway died before the job was put
                    found.append((name, flight_id, record))
        if any(record.state is not JobState.ENDED for _, _, record in found):
            return
        await self._settle(lapsed, total(recorded(record) for _, _, record in found))
        for name, flight_id, _ in found:
            self._dispatcher.forget(name, flight_id, until_ms=lapsed.once_until_ms)

    async def _settle(self, lapsed: Lapsed, charge: Charge) -> None:
        if (await self._quotas.settle(lapsed.root, lapsed.flight_id, charge)).first:
            self.reaped += 1
            log.info(
                "settled the lapsed flight %s of %s: %s, %d output tokens",
                lapsed.flight_id,
                lapsed.tenant,
                charge.outcome,
                charge.output_tokens,
            )


def _by_root(bookings: Iterable[Booking]) -> dict[str, list[str]]:
    """Ids of bookings by the root of their budgets."""
    grouped: dict[str, list[str]] = defaultdict(list)
    for booking in bookings:
        grouped[booking.ask.root].append(booking.id)
    return grouped


def _refusal(booking: Booking, tenant: Tenant | None, above: Iterable[Tenant | None]) -> ApiError | None:
    """Why a running request ends, if so. `tenant`: who has its tenant's id now; `above`: the line of its parents."""
    if tenant is None or tenant.created_at != booking.tenant_since:
        return invalid_api_key()
    if tenant.state != "active":
        return ApiError("This tenant is suspended.", "tenant_suspended")
    if any(parent is None or parent.state != "active" for parent in above):
        return ApiError("A tenant above this one is suspended.", "tenant_suspended")
    return None
