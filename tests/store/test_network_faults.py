"""A network in between that fails in every way: calls end in time, then at once, and go on when it is over."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import redis.asyncio

from fairlane.cli.embedded_store import EmbeddedStore
from fairlane.quotas.scripts import Database
from fairlane.scheduler.protocol.lanes import DEFAULT_LANES
from fairlane.scheduler.queue.redis_queue import RedisQueue
from fairlane.store.circuit_breaker import StoreAway
from fairlane.store.connections import Connections, connections
from fairlane.store.errors import STORE_ERRORS
from tests.support.store.proxy import StoreProxy, proxied

pytestmark = pytest.mark.anyio
LIMIT_S = 0.3
WAIT_S = 20.0
MANY = 3_000
Change = Callable[[StoreProxy], Awaitable[None]]


@pytest.fixture
async def proxy(valkey: EmbeddedStore) -> AsyncIterator[StoreProxy]:
    async with proxied(valkey.socket) as made:
        yield made


@pytest.fixture
async def store(proxy: StoreProxy, valkey_url: str) -> AsyncIterator[Connections]:
    """Clients of an empty store behind the proxy, who have asked it before."""
    made = connections(proxy.url, timeout_s=LIMIT_S, limit=4)
    await ask(made)
    yield made
    await made.aclose()


async def ask(store: Connections) -> None:
    """What a request asks: a script, and a plain command."""
    await Database(store.short).run("watch", "watched", 1_000)
    await store.short.get("key")


async def until_open(store: Connections) -> None:
    """Ask until the breaker opens; each call ends in time, as trouble."""
    async with asyncio.timeout(WAIT_S):
        while not store.breaker.is_away:
            with suppress(*STORE_ERRORS):
                await asyncio.gather(*(ask(store) for _ in range(5)))


async def until_closed(store: Connections) -> None:
    """Wait for the breaker's own trial, then ask."""
    async with asyncio.timeout(WAIT_S):
        while store.breaker.is_away:  # noqa: ASYNC110 - asked as its readers do
            await asyncio.sleep(0.01)
    await ask(store)


async def down(proxy: StoreProxy) -> None:
    await proxy.stop()


async def up(proxy: StoreProxy) -> None:
    await proxy.start()


async def stick(proxy: StoreProxy) -> None:
    proxy.is_stuck = True


async def let_go(proxy: StoreProxy) -> None:
    """What it has taken is lost for ever: those connections never answer."""
    proxy.is_stuck = False


async def load(proxy: StoreProxy) -> None:
    proxy.forbidden, proxy.refusal = (b"*",), b"-LOADING the data\r\n"


async def loaded(proxy: StoreProxy) -> None:
    proxy.forbidden = ()


@pytest.mark.parametrize(("begin", "end"), [(down, up), (stick, let_go), (load, loaded)])
async def test_calls_fail_at_once_until_the_trouble_is_over(
    begin: Change, end: Change, proxy: StoreProxy, store: Connections, caplog: pytest.LogCaptureFixture
) -> None:
    before = len(asyncio.all_tasks()), proxy.connected
    await begin(proxy)
    await until_open(store)

    for _ in range(MANY):
        with pytest.raises(StoreAway):
            await store.short.get("key")
        with pytest.raises(StoreAway):
            await Database(store.patient).run("watch", "watched", 1_000)
    await end(proxy)
    await until_closed(store)

    assert store.breaker.openings == 1
    assert [record.name for record in caplog.records if record.levelno >= logging.WARNING] == [
        "fairlane.store.circuit_breaker"
    ] * 2
    await proxy.cut()
    await ask(store)
    assert (len(asyncio.all_tasks()), proxy.connected) == before


async def test_it_survives_flapping(proxy: StoreProxy, store: Connections, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(3):
        await proxy.stop()
        await until_open(store)
        await proxy.start()
        await until_closed(store)

    warned = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(warned) == 2 * store.breaker.openings == 6


async def test_waits_for_a_pooled_connection_count(proxy: StoreProxy) -> None:
    store = connections(proxy.url, timeout_s=LIMIT_S, limit=1)
    await store.short.get("key")
    proxy.is_stuck = True

    ended = await asyncio.gather(*(store.short.get("key") for _ in range(9)), return_exceptions=True)

    assert all(isinstance(error, STORE_ERRORS) for error in ended)
    assert store.breaker.is_away
    await store.aclose()


async def test_scripts_go_on_where_script_is_forbidden(proxy: StoreProxy, store: Connections) -> None:
    proxy.forbidden = (b"SCRIPT",)
    queue = RedisQueue(store.short, "q", dict(DEFAULT_LANES))
    await queue.reclaim()
    async with redis.asyncio.from_url(f"unix://{proxy.socket}") as direct:
        await direct.script_flush()

    await asyncio.gather(ask(store), queue.reclaim(), queue.reclaim())

    assert not store.breaker.is_away


@pytest.fixture
def other(tmp_path: Path) -> Iterator[EmbeddedStore]:
    store = EmbeddedStore(tmp_path)
    store.start()
    yield store
    store.stop()


async def test_a_master_that_became_a_replica_is_left_for_the_new_one(
    proxy: StoreProxy, store: Connections, other: EmbeddedStore, valkey_url: str
) -> None:
    proxy.socket = other.socket  # where whoever connects from now on is sent
    async with redis.asyncio.from_url(valkey_url) as direct:
        await direct.replicaof("127.0.0.1", "1")
        try:
            await Database(store.short).run("watch", "watched", 1_000)
            await store.short.set("plain", "said")  # on a connection that was there before
        finally:
            await direct.replicaof("NO", "ONE")

    assert not store.breaker.is_away
    async with redis.asyncio.from_url(other.url) as direct:
        assert await direct.get("plain") == b"said"
        assert await direct.exists("watched")
