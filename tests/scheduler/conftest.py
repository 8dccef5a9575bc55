"""What tests of the scheduler begin with: queues by the rules in memory, on Valkey and on Redis, and a small pool."""

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack

import pytest

from fairlane.scheduler.planner.kv.blocks import BlockPool
from fairlane.scheduler.protocol.lanes import Lane, LaneName
from tests.support.scheduler.pools import small_pool
from tests.support.scheduler.queues import LEASE_MS, Clock, MemoryQueue, Queue, StoredQueue, lanes
from tests.support.store import topology

MakeQueue = Callable[..., Queue]


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=["memory", "valkey", "redis_server"])
async def make_queue(request: pytest.FixtureRequest, clock: Clock) -> AsyncIterator[MakeQueue]:
    """Builds an empty queue; takes the figures that the test cares about."""
    async with AsyncExitStack() as stack:
        store = None
        if request.param != "memory":
            store = topology.client(request.getfixturevalue(request.param).url)
            stack.push_async_callback(store.aclose)
            await store.flushall()

        def make(
            figures: dict[LaneName, Lane] | None = None, *, lease_ms: int = LEASE_MS, window: float = 4096.0
        ) -> Queue:
            figures = figures or lanes()
            if store is None:
                return MemoryQueue(figures, lease_ms=lease_ms, window=window, clock=clock)
            return StoredQueue(store, figures, lease_ms=lease_ms, window=window, clock=clock)

        yield make


@pytest.fixture
def queue(make_queue: MakeQueue) -> Queue:
    return make_queue()


@pytest.fixture
def pool() -> BlockPool:
    return small_pool()
