"""Streams that want more than a budget allows, on one virtual clock: how much they get of it, and when."""

import asyncio
import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import cast

from fairlane.gateway.pipeline.escrow import EscrowedQuotas
from fairlane.gateway.pipeline.pools import Pools
from fairlane.quotas.escrow.pool import Pair
from fairlane.quotas.escrow.transfers import EscrowStore
from fairlane.quotas.limits import Limits
from fairlane.quotas.memory_store import MemoryQuotaStore
from fairlane.quotas.store import Ask, Charge, Denied, Need, QuotaStore

LIMIT, STREAMS = 100, 50
"""Tokens that a minute allows, and who wants them."""
TENANT = "crowd"
PAIR = Pair(TENANT, TENANT, "", "any", "latency")
TURNS = 8
"""Of the event loop, in which a gateway exchanges its rights with a store that answers at once."""
MINUTE_MS = 60_000
TOKEN_MS, HOP_MS, QUANTUM = 25, 5, 64
"""A token of one stream, one way to the store, and what a stream asks for at a time."""
MOST = 400
"""Output tokens after which a stream has its answer, and asks the next."""
SOONEST_MS, LATEST_MS = 10, 1_000
"""When a stream that got nothing asks again: as gateways do."""


@dataclass
class Stream:
    """One client that wants as much as it can get: a request, and the next when that has ended."""

    name: str
    store: QuotaStore
    # Names a request within rights of its gateway, or returns None.
    next_name: Callable[[Pair], str | None]
    now_ms: Callable[[], int]
    made_ms: list[int]
    number: int = 0
    reservation_id: str = ""
    granted: int = 0
    portion: int = 0
    published: int = 0
    asks_at_ms: int = 0

    async def act(self) -> int:
        """Do what is due; in how many ms the next thing is."""
        if not self.granted:
            return await self._begin()
        if self.published < self.granted:
            self.published += 1
            self.made_ms.append(self.now_ms())
        if self.published == MOST:
            charge = Charge(prompt_tokens=1, output_tokens=MOST, outcome="finished")
            await self.store.settle(TENANT, self.reservation_id, charge)
            self.number, self.granted = self.number + 1, 0
            return HOP_MS
        is_low = self.granted - self.published <= max(1, self.portion // 2)
        if is_low and self.now_ms() >= self.asks_at_ms:
            await self._extend()
        return TOKEN_MS

    async def _begin(self) -> int:
        self.reservation_id = self.next_name(PAIR) or f"{self.name}-{self.number}"
        try:
            self.granted = self.portion = (await self.store.reserve(self._ask())).granted_tokens
        except Denied as denied:
            return max(HOP_MS, round(1000 * (denied.retry_after_s or 1)))
        self.published = 0
        self.made_ms.append(self.now_ms())  # its prompt
        return HOP_MS + TOKEN_MS

    def _ask(self) -> Ask:
        return Ask(
            reservation_id=self.reservation_id,
            root=TENANT,
            tenant=TENANT,
            key_id="",
            model="any",
            lane="latency",
            prompts=(1,),
            max_output_tokens=MOST,
            explicit_max=False,
            quantum=QUANTUM,
        )

    async def _extend(self) -> None:
        stuck = self.published == self.granted
        come = {"published": self.published, "prompt_tokens": 1, "known": self.granted}
        need = Need(**come, most=MOST, quantum=QUANTUM, stuck=stuck)
        extension = await self.store.extend(TENANT, self.reservation_id, need)
        if extension.granted_tokens > self.granted:
            self.portion = extension.granted_tokens - self.granted
            self.granted = extension.granted_tokens
        wait_ms = min(max(1000 * extension.retry_after_s, SOONEST_MS), LATEST_MS) if extension.limited_by else 0
        self.asks_at_ms = self.now_ms() + 2 * HOP_MS + round(wait_ms)


@dataclass
class World:
    """Streams on one clock, and when each of their tokens was made."""

    now_ms: int
    made_ms: list[int] = field(default_factory=list)

    _paused: list[tuple[float, int, asyncio.Event]] = field(default_factory=list)

    async def run(self, store: MemoryQuotaStore, minutes: int, gateways: int) -> None:
        """Run for so many minutes, with the streams divided among gateways that may hold rights."""
        ends_ms = self.now_ms + minutes * MINUTE_MS
        count = partial(_count, gateways)
        held = [
            EscrowedQuotas(Pools(cast(EscrowStore, store), count, clock=lambda: self.now_ms / 1e3, pause=self._pause))
            for _ in range(gateways)
        ]
        streams = []
        for number in range(STREAMS):
            own = held[number % gateways]
            streams.append(Stream(f"s{number}", own, own.pools.next_name, lambda: self.now_ms, self.made_ms))
        due = [(self.now_ms + number, number) for number in range(STREAMS)]
        while due[0][0] < ends_ms:
            self.now_ms, number = heapq.heappop(due)
            await self._wake()
            heapq.heappush(due, (self.now_ms + await streams[number].act(), number))
        for gateway in held:
            await gateway.pools.aclose(timeout_s=1.0)

    async def _pause(self, until: asyncio.Event, most_s: float) -> None:
        heapq.heappush(self._paused, (self.now_ms + 1e3 * most_s, len(self._paused), until))
        await until.wait()

    async def _wake(self) -> None:
        while self._paused and self._paused[0][0] <= self.now_ms:
            heapq.heappop(self._paused)[2].set()
            for _ in range(TURNS):
                await asyncio.sleep(0)


async def _count(gateways: int) -> int:
    return gateways


async def contend(start_ms: int, minutes: int, *, gateways: int = 1, limit: int = LIMIT) -> Sequence[int]:
    """Return when each token was made, prompts included, in ms: `limit` tokens a minute, wanted by STREAMS streams."""
    world = World(start_ms)
    store = MemoryQuotaStore(lambda: world.now_ms)
    store.put_tenant(TENANT, TENANT, Limits(tokens_per_minute=limit))
    await world.run(store, minutes, gateways)
    return world.made_ms


def most_within(made_ms: Sequence[float], length_ms: float) -> int:
    """Of these times, in ascending order, the most that fall into any window of this length."""
    most = first = 0
    for last, at_ms in enumerate(made_ms):
        while made_ms[first] <= at_ms - length_ms:
            first += 1
        most = max(most, last - first + 1)
    return most
