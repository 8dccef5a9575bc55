"""Budgets of hot tenants without a call for each request: a QuotaStore in front of the store that moves rights.

`quotas/escrow/pool.py` decides what is admitted within a pool's rights, and `pools.py` exchanges them. Everything else,
and every request that the rights do not cover, goes to the store."""

import asyncio
from collections.abc import Coroutine, Iterable
from contextlib import suppress
from typing import Any

import msgspec

from fairlane.gateway.pipeline.pools import Pools, Served
from fairlane.quotas.escrow.pool import is_poolable
from fairlane.quotas.limits import LimitStatus
from fairlane.quotas.store import Ask, Charge, Denied, Extension, Lapsed, Need, Reservation, Settled
from fairlane.store.errors import STORE_ERRORS


class EscrowedQuotas:
    """The QuotaStore of a gateway with pools."""

    def __init__(self, pools: Pools) -> None:
        self.pools = pools
        self._store = pools.store
        # The pair of each open request that a pool admitted, or that was made while its pair had a pool.
        self._served: dict[str, Served] = {}

    async def reserve(self, ask: Ask) -> Reservation:
        served = self.pools.of(ask) if is_poolable(ask) else None
        if served is not None and served.pool is not None:
            if served.pool.is_asking and served.lock.locked():
                async with served.lock:  # the answer comes as soon as one of the store's own would
                    pass
            reservation = None if served.pool is None else served.pool.reserve(ask, self.pools.clock())
            if reservation is not None:
                self._served[ask.reservation_id] = served
                return reservation
        ended = self.pools.ended
        try:
            reservation = await self._store.reserve(ask)
        except Denied:  # a request is never refused for want of what its own gateway holds or held meanwhile
            if not self.pools.has_any(ask.root) and ended == self.pools.ended:
                raise
            await self.pools.yield_rights(ask.root)
            reservation = await self._store.reserve(ask)
        if served is None:
            return reservation
        self.pools.reserved(served, ask, reservation)
        if served.pool is None:
            return reservation
        self._served[ask.reservation_id] = served
        return msgspec.structs.replace(reservation, statuses=served.pool.shifted(reservation.statuses))

    async def extend(self, root: str, reservation_id: str, need: Need) -> Extension:
        served = self._served.get(reservation_id)
        if served is not None:
            async with served.lock:
                pass
            extension = self._extend_within(served, reservation_id, need)
            if extension is None and served.pool is not None and served.pool.is_due(reservation_id):
                await self.pools.exchange(served)  # the store has to know all that this request holds
                extension = self._extend_within(served, reservation_id, need)
            if extension is not None:
                return extension
        extension = await self._store.extend(root, reservation_id, need)
        if served is not None and served.pool is not None:
            served.pool.extended(reservation_id, need, extension)
        return extension

    def settle(self, root: str, reservation_id: str, charge: Charge) -> Coroutine[Any, Any, Settled]:
        if reservation_id in self._served or reservation_id in self.pools.booking:
            return self._settle(root, reservation_id, charge)
        return self._store.settle(root, reservation_id, charge)

    async def _settle(self, root: str, reservation_id: str, charge: Charge) -> Settled:
        served = self._served.get(reservation_id)
        pool = None if served is None else served.pool
        if served is None or pool is None or not pool.knows(reservation_id):
            booking = self.pools.booking.get(reservation_id)
            if booking is not None:
                await asyncio.shield(booking)
            settled = await self._store.settle(root, reservation_id, charge)
            self._served.pop(reservation_id, None)
            if pool is None or settled.statuses is None:
                return settled
            return msgspec.structs.replace(settled, statuses=pool.shifted(settled.statuses))
        del self._served[reservation_id]
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
            await self.pools.report(root)
        return await self._store.statuses(root, account, key_id, model=model, lane=lane)

    def _is_only_here(self, reservation_id: str) -> bool:
        served = self._served.get(reservation_id)
        pool = None if served is None else served.pool
        return pool is not None and pool.knows(reservation_id) and not pool.is_recorded(reservation_id)

    def _extend_within(self, served: Served, reservation_id: str, need: Need) -> Extension | None:
        pool = served.pool
        if pool is None or not pool.knows(reservation_id):
            return None
        return pool.extend(reservation_id, need, self.pools.clock())
