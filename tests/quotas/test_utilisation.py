"""A budget that fifty streams want: never more than it allows in any minute, and hardly less."""

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from quotas.limits import Limits
from quotas.memory_store import MemoryQuotaStore
from quotas.store import Denied, Need, QuotaStore
from tests.quotas.house import START_MS, ask, charge

pytestmark = pytest.mark.anyio

LIMIT, STREAMS, MINUTES = 100, 50, 10
TOKEN_MS, HOP_MS, QUANTUM = 25, 5, 64
"""A token of one stream, one way to the store, and what a stream asks for at a time."""
MOST = 400


@dataclass
class Stream:
    """One client that wants as much as it can get: a request, and the next when that has ended."""

    name: str
    store: QuotaStore
    now_ms: Callable[[], int]
    made_ms: list[int]
    number: int = 0
    granted: int = 0
    portion: int = 0
    published: int = 0
    asks_at_ms: int = 0

    @property
    def flight_id(self) -> str:
        return f"{self.name}-{self.number}"

    async def act(self) -> int:
        """Do what is due; in how many ms the next thing is."""
        if not self.granted:
            return await self._begin()
        if self.published < self.granted:
            self.published += 1
            self.made_ms.append(self.now_ms())
        if self.published == MOST:
            await self.store.settle("acme", self.flight_id, charge(MOST, 1))
            self.number, self.granted = self.number + 1, 0
            return HOP_MS
        is_low = self.granted - self.published <= max(1, self.portion // 2)
        if is_low and self.now_ms() >= self.asks_at_ms:
            await self._extend()
        return TOKEN_MS

    async def _begin(self) -> int:
        asked = ask(self.flight_id, prompts=(1,), max_output_tokens=MOST, explicit_max=False, quantum=QUANTUM)
        try:
            self.granted = self.portion = (await self.store.reserve(asked)).granted_tokens
        except Denied as denied:
            return max(HOP_MS, round(1000 * (denied.retry_after_s or 1)))
        self.published = 0
        self.made_ms.append(self.now_ms())  # its prompt
        return HOP_MS + TOKEN_MS

    async def _extend(self) -> None:
        stuck = self.published == self.granted
        need = Need(
            published=self.published, prompt_tokens=1, known=self.granted, most=MOST, quantum=QUANTUM, stuck=stuck
        )
        extension = await self.store.extend("acme", self.flight_id, need)
        if extension.granted_tokens > self.granted:
            self.portion = extension.granted_tokens - self.granted
            self.granted = extension.granted_tokens
        wait_ms = min(max(1000 * extension.retry_after_s, 20), 1000) if extension.limited_by else 0
        self.asks_at_ms = self.now_ms() + 2 * HOP_MS + round(wait_ms)


@dataclass
class World:
    """Streams on one clock."""

    now_ms: int = START_MS
    made_ms: list[int] = field(default_factory=list)

    async def run(self, store: QuotaStore) -> None:
        streams = [Stream(f"s{number}", store, lambda: self.now_ms, self.made_ms) for number in range(STREAMS)]
        due = [(START_MS + number, number) for number in range(STREAMS)]
        while due[0][0] < START_MS + MINUTES * 60_000:
            self.now_ms, number = heapq.heappop(due)
            heapq.heappush(due, (self.now_ms + await streams[number].act(), number))


async def test_fifty_streams_share_a_hundred_tokens_a_minute() -> None:
    world = World()
    store = MemoryQuotaStore(lambda: world.now_ms)
    store.put_tenant("acme", "acme", Limits(tokens_per_minute=LIMIT))

    await world.run(store)

    made = world.made_ms
    first = 0
    for last, at_ms in enumerate(made):
        while made[first] <= at_ms - 60_000:
            first += 1
        assert last - first + 1 <= LIMIT
    assert len(made) >= 0.98 * LIMIT * MINUTES
