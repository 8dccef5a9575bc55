"""A gateway with rights, on a clock that the test moves, and tenants whose requests come at a steady rate."""

import asyncio
import heapq
import itertools
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field

import redis.asyncio

from fairlane.gateway.http.request_id import random_id
from fairlane.gateway.pipeline.escrow import EscrowedQuotas
from fairlane.gateway.pipeline.pools import Pools
from fairlane.quotas.escrow.pool import Pair
from fairlane.quotas.escrow.transfers import EscrowStore
from fairlane.quotas.store import Ask, Charge, Need, QuotaStore, Reservation
from tests.support.quotas.house import ask

QUANTUM = 64


@dataclass(eq=False)
class VirtualTime:
    """A clock, and what waits for it."""

    now_s: float = 1_000.0
    _waiting: list[tuple[float, int, asyncio.Event]] = field(default_factory=list)
    _order: Iterator[int] = field(default_factory=itertools.count)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    async def pause(self, until: asyncio.Event, most_s: float) -> None:
        heapq.heappush(self._waiting, (self.now_s + most_s, next(self._order), until))
        await until.wait()

    def move(self, by_s: float) -> None:
        self.now_s += by_s
        while self._waiting and self._waiting[0][0] <= self.now_s:
            heapq.heappop(self._waiting)[2].set()


@dataclass(eq=False)
class VirtualGateway:
    """Requests of a steady rate, by rights or each by the store alone."""

    quotas: QuotaStore
    time: VirtualTime
    next_name: Callable[[Pair], str | None] = lambda _: None
    # When each has published what it then has, its number, the request, that many tokens, and those granted.
    _streams: list[tuple[float, int, Ask, int, int]] = field(default_factory=list)
    _began: Iterator[int] = field(default_factory=itertools.count)

    @classmethod
    def with_rights(cls, store: EscrowStore, count: Callable[[], Awaitable[int]] | None = None) -> "VirtualGateway":
        time = VirtualTime()

        async def alone() -> int:
            return 1

        pools = Pools(store, count or alone, clock=lambda: time.now_s, pause=time.pause)
        return cls(EscrowedQuotas(pools), time, pools.next_name)

    @property
    def escrowed(self) -> EscrowedQuotas:
        assert isinstance(self.quotas, EscrowedQuotas)
        return self.quotas

    async def reserve(self, tenant: str, *, prompt: int = 10, output: int = 20) -> tuple[Ask, Reservation]:
        pair = Pair(tenant, tenant, "", "smol", "latency")
        asked = ask(
            self.next_name(pair) or random_id(),
            root=tenant,
            tenant=tenant,
            prompts=(prompt,),
            max_output_tokens=output,
            quantum=QUANTUM,
        )
        return asked, await self.quotas.reserve(asked)

    async def settle(self, asked: Ask, output: int) -> None:
        charge = Charge(prompt_tokens=asked.prompt_tokens, output_tokens=output, outcome="finished")
        await self.quotas.settle(asked.root, asked.reservation_id, charge)

    async def warm(self, tenant: str, *, seconds: float = 3.0) -> None:
        """Make the tenant hot."""
        for _ in range(round(seconds * 10)):
            asked, _ = await self.reserve(tenant)
            await self.settle(asked, 20)
            await self.sleep(0.1)

    async def sleep(self, by_s: float) -> None:
        self.time.move(by_s)
        await asyncio.sleep(0)
        while isinstance(self.quotas, EscrowedQuotas) and self.time.waiting < self.quotas.pools.count:  # noqa: ASYNC110
            await asyncio.sleep(0.001)

    async def load(self, tenants: int, *, seconds: float, rate: float, output: int, token_s: float) -> int:
        """Serve requests of each tenant at a rate, with output at a pace. Return how many began."""
        count, step_s, streams = 0, 1 / (rate * tenants), self._streams
        begins_s, end_s = self.time.now_s, self.time.now_s + seconds

        def goes_on(asked: Ask, at_s: float, published: int, granted: int) -> None:
            low = granted if granted >= output else max(published + 1, granted - QUANTUM // 2)
            heapq.heappush(streams, (at_s + (low - published) * token_s, next(self._began), asked, low, granted))

        while self.time.now_s < end_s:
            if not streams or begins_s <= streams[0][0]:
                await self._until(begins_s)
                asked, reservation = await self.reserve(f"t{count % tenants}", prompt=500, output=output)
                count, begins_s = count + 1, begins_s + step_s
                goes_on(asked, self.time.now_s, 0, reservation.granted_tokens)
                continue
            at_s, _, asked, published, granted = heapq.heappop(streams)
            await self._until(at_s)
            if published >= output:
                await self.settle(asked, output)
                continue
            need = Need(published=published, prompt_tokens=500, known=granted, most=output, quantum=QUANTUM)
            extension = await self.quotas.extend(asked.root, asked.reservation_id, need)
            goes_on(asked, at_s, published, extension.granted_tokens)
        return count

    async def _until(self, at_s: float) -> None:
        while self.time.now_s < at_s:
            await self.sleep(min(0.05, at_s - self.time.now_s))


async def commands(client: redis.asyncio.Redis) -> int:
    """How many commands the store has run, those inside functions included."""
    stats = await client.info("commandstats")
    return sum(one["calls"] for name, one in stats.items() if name not in ("cmdstat_info", "cmdstat_config|resetstat"))
