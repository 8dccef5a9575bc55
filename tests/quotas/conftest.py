"""Every store that keeps budgets, behind one fixture."""

from collections.abc import AsyncIterator

import pytest
import redis
import redis.asyncio

from fairlane.cli.embedded_store import EmbeddedStore
from tests.support.quotas.house import START_MS, House, MemoryHouse, RedisHouse


@pytest.fixture(params=["memory", "valkey", "redis_server"])
async def house(request: pytest.FixtureRequest) -> AsyncIterator[House]:
    """An empty store at START_MS, with one tenant to be made by the test."""
    if request.param == "memory":
        yield MemoryHouse()
        return
    server: EmbeddedStore = request.getfixturevalue(request.param)
    client = redis.asyncio.Redis.from_pool(
        redis.asyncio.BlockingConnectionPool.from_url(server.url, max_connections=16)
    )
    await client.flushall()
    house = RedisHouse(client)
    await house.set_clock(START_MS)
    yield house
    await client.aclose()


@pytest.fixture
async def client(valkey: EmbeddedStore) -> AsyncIterator[redis.asyncio.Redis]:
    """Of an empty store."""
    found = redis.asyncio.from_url(valkey.url)
    await found.flushall()
    yield found
    await found.aclose()
