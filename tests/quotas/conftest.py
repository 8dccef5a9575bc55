"""Every store that keeps budgets, behind one fixture."""

from collections.abc import AsyncIterator

import pytest
import redis
import redis.asyncio

from fairlane.cli.embedded_store import EmbeddedStore
from tests.support.quotas.house import START_MS, House, MemoryHouse, RedisHouse
from tests.support.store import topology


@pytest.fixture(params=["memory", "valkey", "redis_server"])
async def house(request: pytest.FixtureRequest) -> AsyncIterator[House]:
    """An empty store at START_MS, with one tenant to be made by the test."""
    if request.param == "memory":
        yield MemoryHouse()
        return
    server: EmbeddedStore = request.getfixturevalue(request.param)
    client = topology.client(server.url)
    await client.flushall()
    house = RedisHouse(client)
    await house.set_clock(START_MS)
    yield house
    await client.aclose()


@pytest.fixture
async def client(valkey: EmbeddedStore) -> AsyncIterator[redis.asyncio.Redis]:
    """Of an empty store."""
    found = topology.client(valkey.url)
    await found.flushall()
    yield found
    await found.aclose()
