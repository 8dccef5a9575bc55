"""The pools of a gateway: when they are made, the exchange of their rights, and their end.

`quotas/escrow/pool.py` has the policy. A pool has a task, which exchanges its rights until it is over."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

from fairlane.quotas.escrow.pool import EXCHANGE_EVERY_S, Flight, Pair, Pool, Rate
from fairlane.quotas.escrow.transfers import EscrowStore
from fairlane.quotas.store import Ask, Reservation
from fairlane.store.circuit_breaker import StoreAway
from fairlane.store.errors import STORE_ERRORS
from fairlane.store.retry import until_answered

log = logging.getLogger(__name__)

MOST_PAIRS = 10_000
RETRY_AFTER_S = 0.1
# How long a pair whose limits spared no rights goes without a pool.
SHUNNED_S = 1.0
# Live gateways are counted anew this often while there are pools.
COUNT_EVERY_S = 2.0


@dataclass(eq=False, slots=True)
class Served:
    """A pair, its rate, and its pool, if it has one."""

    pair: Pair
    rate: Rate = field(default_factory=Rate)
    pool: Pool | None = None
    # Serialises the exchanges of the pool.
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    # Set to exchange before the next one is due.
    early: asyncio.Event = field(default_factory=asyncio.Event)
    shunned_until_s: float = 0.0


async def pause(until: asyncio.Event, most_s: float) -> None:
    """Wait for an event, for up to `most_s`."""
    with suppress(TimeoutError):
        async with asyncio.timeout(most_s):
            await until.wait()


class Pools:
    """The pairs that this gateway serves, and their pools. `aclose` ends the pools and reports everything."""

    def __init__(
        self,
        store: EscrowStore,
        count_gateways: Callable[[], Awaitable[int]],
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[asyncio.Event, float], Awaitable[None]] = pause,
    ) -> None:
        """`count_gateways` records that this gateway has pools, and returns how many gateways have. `clock` and `pause`
        are replaced together, by tests in virtual time."""
        self.store = store
        self.clock = clock
        self._count_gateways = count_gateways
        self._pause = pause
        self._gateways, self._counted_s = 1, float("-inf")
        # Oldest first. Above MOST_PAIRS the oldest pair without a pool is removed.
        self._served: dict[Pair, Served] = {}
        # Pairs with a pool, by root.
        self._pooling: dict[str, dict[Pair, Served]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        # Requests of a lost pool that are being recorded again.
        self.booking: dict[str, asyncio.Task[None]] = {}
        # Number of pools that have ended.
        self.ended = 0
        self._is_closing = False

    @property
    def count(self) -> int:
        return sum(map(len, self._pooling.values()))

    @property
    def unreported(self) -> int:
        pooling = [served for pairs in self._pooling.values() for served in pairs.values()]
        return sum(len(served.pool.left()) for served in pooling if served.pool is not None) + len(self.booking)

    def has_any(self, root: str) -> bool:
        return root in self._pooling

    def next_name(self, pair: Pair) -> str | None:
        """Return a name for a request that may be made within a pool; None if the pair has no rights."""
        if pair.root not in self._pooling:
            return None
        served = self._pooling[pair.root].get(pair)
        if served is None or served.pool is None:
            return None
        name = served.pool.next_name(self.clock())
        if served.pool.needs_exchange:
            served.early.set()
        return name

    def of(self, ask: Ask) -> Served:
        pair = Pair(ask.root, ask.account, ask.key_id, ask.model, ask.lane)
        if pair in self._served:
            return self._served[pair]
        served = self._served[pair] = Served(pair)
        if len(self._served) > MOST_PAIRS:
            del self._served[next(old for old, other in self._served.items() if other.pool is None)]
        return served

    def reserved(self, served: Served, ask: Ask, reservation: Reservation) -> None:
        """Count a request that the store admitted, and give its pair a pool if that is hot."""
        rate, now_s = served.rate, self.clock()
        rate.add(now_s, 1, ask.prompts[0], reservation.granted_tokens * ask.n)
        if served.pool is not None or not rate.is_hot(now_s) or self._is_closing or now_s < served.shunned_until_s:
            return
        pair = served.pair
        if self._served.get(pair) is served:  # else it was removed, and a later entry of the pair may get the pool
            served.pool = Pool(pair, rate)
            self._pooling.setdefault(pair.root, {})[pair] = served
            self._start(self._serve(served, served.pool))

    async def report(self, root: str) -> None:
        for served in list(self._pooling.get(root, {}).values()):
            await self._return(served)

    async def yield_rights(self, root: str) -> None:
        """Return the root's rights, and request none for a while, because its limits have none to spare."""
        for served in list(self._pooling.get(root, {}).values()):
            await self._return(served)
            served.shunned_until_s = self.clock() + SHUNNED_S

    async def aclose(self, timeout_s: float) -> None:
        """Report everything, for up to `timeout_s`. What remains is settled by a reaper, as after a crash."""
        self._is_closing = True
        with suppress(TimeoutError, *STORE_ERRORS):
            async with asyncio.timeout(timeout_s):
                for root in list(self._pooling):
                    await self.report(root)
                if self._tasks:
                    await asyncio.wait(self._tasks)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def exchange(self, served: Served, *, closes: bool = False) -> None:
        """Exchange the rights of a pair's pool, if it has one. Raises StoreUnavailable; then the same call is due."""
        async with served.lock:
            pool = served.pool
            if pool is None:
                return
            await self._count()
            order = pool.order(self.clock(), self._gateways, closes=closes)
            try:
                answer = await self.store.transfer(order)
            except StoreAway:
                pool.not_sent()
                raise
            pool.answered(answer)
            if pool.is_over:
                self._end(served, pool, is_lost=answer.rights is None)
                if order.wanted.requests:
                    served.shunned_until_s = self.clock() + SHUNNED_S

    async def _serve(self, served: Served, pool: Pool) -> None:
        while served.pool is pool:
            pause_s = EXCHANGE_EVERY_S
            try:
                await self.exchange(served)
            except STORE_ERRORS:
                pause_s = RETRY_AFTER_S
            served.early.clear()
            if served.pool is pool:
                await self._pause(served.early, pause_s)

    async def _return(self, served: Served) -> None:
        while served.pool is not None:
            await self.exchange(served, closes=True)

    def _start(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _end(self, served: Served, pool: Pool, *, is_lost: bool) -> None:
        root, served.pool = pool.pair.root, None
        self.ended += 1
        served.early.set()  # ends its task
        self._pooling[root].pop(pool.pair, None)
        if not self._pooling[root]:
            del self._pooling[root]
        if is_lost:
            log.warning("the store took this gateway for dead: its requests are reported one by one")
        for flight in pool.left():
            name = flight.ask.reservation_id
            self.booking[name] = self._start(self._report_one(flight))
            self.booking[name].add_done_callback(partial(self._booked, name))

    def _booked(self, name: str, _: asyncio.Task[None]) -> None:
        del self.booking[name]

    async def _count(self) -> None:
        if self.clock() - self._counted_s >= COUNT_EVERY_S:
            with suppress(*STORE_ERRORS):
                self._counted_s, self._gateways = self.clock(), max(1, await self._count_gateways())

    async def _report_one(self, flight: Flight) -> None:
        ask, charge = flight.ask, flight.charge
        if charge is None or not charge.is_refund:
            await until_answered(lambda: self.store.book(ask))
        if charge is not None:
            await until_answered(lambda: self.store.settle(ask.root, ask.reservation_id, charge))
