"""Budgets of hot tenants without a call for each request: a QuotaStore in front of the store that moves rights.

`quotas/escrow/pool.py` decides what is admitted within a pool's rights, and `pools.py` exchanges them. Everything else,
and every request that the rights do not cover, goes to the store."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress

import msgspec

from fairlane.gateway.pipeline.pools import Pools, Served, pause
from fairlane.quotas.escrow.pool import Pair, is_poolable
from fairlane.quotas.escrow.transfers import EscrowStore
from fairlane.quotas.limits import LimitStatus
from fairlane.quotas.store import Ask, Charge, Denied, Extension, Lapsed, Need, Reservation, Settled
from fairlane.store.errors import STORE_ERRORS


class EscrowedQuotas:
    """The QuotaStore of a gateway with pools."""

    def __init__(
        self,
        store: EscrowStore,
        count_gateways: Callable[[], Awaitable[int]],
        *,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[asyncio.Event, float], Awaitable[None]] = pause,
    ) -> None:
        """`count_gateways` records that this gateway has pools, and returns how many gateways have. `clock` and `pause`
        are replaced together, by tests in virtual time."""
        self._store = store
        self._clock = clock
        self._pools = Pools(store, count_gateways, clock, pause)
        # The pair of each open request that a pool admitted, or that was made while its pair had a pool.
        self._pair_of: dict[str, Pair] = {}

    @property
    def unreported(self) -> int:
        return self._pools.unreported

    @property
    def pools(self) -> int:
        return self._pools.count

    def next_name(self, pair: Pair) -> str | None:
        """Return a name for a request that may be made within a pool; None if any other will do."""
        served = self._pools.get(pair)
        pool = None if served is None else served.pool
        if served is None or pool is None:
            return None
        name = pool.next_name(self._clock())
        if pool.needs_exchange:
            served.early.set()
        return name

    async def reserve(self, ask: Ask) -> Reservation:
        if not is_poolable(ask):
            return await self._ask_store(ask)
        pair = Pair.of(ask)
        served = self._pools.of(pair)
        if served.pool is not None:
            if served.pool.is_asking and served.lock.locked():
                async with served.lock:  # the answer comes as soon as one of the store's own would
                    pass
            reservation = None if served.pool is None else served.pool.reserve(ask, self._clock())
            if reservation is not None:
                self._pair_of[ask.reservation_id] = pair
                return reservation
        reservation = await self._ask_store(ask)
        output = reservation.granted_tokens * ask.choices
        served.rate.add(self._clock(), 1, ask.prompt_tokens, output)
        self._pools.open_if_hot(pair, served)
        if served.pool is None:
            return reservation
        self._pair_of[ask.reservation_id] = pair
        return msgspec.structs.replace(reservation, statuses=served.pool.shifted(reservation.statuses))

    async def extend(self, root: str, reservation_id: str, need: Need) -> Extension:
        served = self._pooled(reservation_id)
        if served is not None:
            async with served.lock:
                pass
            extension = self._extend_within(served, reservation_id, need)
            if extension is None and served.pool is not None and served.pool.is_due(reservation_id):
                await self._pools.exchange(served)  # the store has to know all that this request holds
                extension = self._extend_within(served, reservation_id, need)
            if extension is not None:
                return extension
        extension = await self._store.extend(root, reservation_id, need)
        if served is not None and served.pool is not None:
            served.pool.extended(reservation_id, need, extension)
        return extension

    async def settle(self, root: str, reservation_id: str, charge: Charge) -> Settled:
        served = self._pooled(reservation_id)
        pool = None if served is None else served.pool
        if served is None or pool is None or not pool.knows(reservation_id):
            booking = self._pools.booking.get(reservation_id)
            if booking is not None:
                await asyncio.shield(booking)
            settled = await self._store.settle(root, reservation_id, charge)
            self._pair_of.pop(reservation_id, None)
            if pool is None or settled.statuses is None:
                return settled
            return msgspec.structs.replace(settled, statuses=pool.shifted(settled.statuses))
        self._pair_of.pop(reservation_id, None)
        settled = pool.settle(reservation_id, charge)
        if pool.needs_exchange:
            served.early.set()
        return settled

    async def book(self, ask: Ask) -> bool:
        return await self._store.book(ask)

    async def renew(self, root: str, reservation_ids: Iterable[str]) -> set[str]:
        """Extend leases. A pool's own call extends those of the requests that the store does not know yet."""
        stored = [name for name in reservation_ids if not self._is_only_here(name)]
        return await self._store.renew(root, stored)

    async def expired(self, limit: int) -> list[Lapsed]:
        return await self._store.expired(limit)

    async def statuses(
        self, root: str, account: str, key_id: str | None = None, *, model: str = "", lane: str = ""
    ) -> list[LimitStatus]:
        with suppress(*STORE_ERRORS):
            await self.report(root)
        return await self._store.statuses(root, account, key_id, model=model, lane=lane)

    async def report(self, root: str) -> None:
        await self._pools.report(root)

    async def aclose(self, timeout_s: float) -> None:
        await self._pools.aclose(timeout_s)

    async def _ask_store(self, ask: Ask) -> Reservation:
        """Reserve at the store. A request is never refused for want of what its own gateway holds or held meanwhile."""
        ended = self._pools.ended
        try:
            return await self._store.reserve(ask)
        except Denied:
            if not self._pools.has_any(ask.root) and ended == self._pools.ended:
                raise
        await self._pools.yield_rights(ask.root)
        return await self._store.reserve(ask)

    def _pooled(self, reservation_id: str) -> Served | None:
        pair = self._pair_of.get(reservation_id)
        return None if pair is None else self._pools.get(pair)

    def _is_only_here(self, reservation_id: str) -> bool:
        served = self._pooled(reservation_id)
        pool = None if served is None else served.pool
        return pool is not None and pool.knows(reservation_id) and not pool.is_recorded(reservation_id)

    def _extend_within(self, served: Served, reservation_id: str, need: Need) -> Extension | None:
        pool = served.pool
        if pool is None or not pool.knows(reservation_id):
            return None
        return pool.extend(reservation_id, need, self._clock())
