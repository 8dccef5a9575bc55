"""The one connection for scripts: order kept, bounded in time, and open again after whatever befell it."""

import asyncio
import hashlib
from typing import cast

import pytest
import redis.asyncio
from redis.asyncio.connection import AbstractConnection

from fairlane.store.connections import BoundedRedis, Connections, connections
from fairlane.store.pipeline import MOST_UNSENT, Connect
from tests.support.store import topology

pytestmark = pytest.mark.anyio
ECHO = "return ARGV[1]"
WRITE = "return redis.call('SET', KEYS[1], ARGV[1])"
LIMIT_S = 20.0


def digest(script: str) -> str:
    return hashlib.sha1(script.encode(), usedforsecurity=False).hexdigest()


async def opened(url: str, timeout_s: float = LIMIT_S) -> Connections:
    """Clients of a store that knows the scripts."""
    async with topology.client(topology.one_master(url)) as client:
        await client.script_load(ECHO)
        await client.script_load(WRITE)
    return connections(url, timeout_s=timeout_s, limit=4)


async def echo(store: Connections, word: str) -> object:
    return await store.short.evalsha(digest(ECHO), 0, word)


async def pipes(url: str) -> list[int]:
    """Ids of the connections that scripts run on."""
    async with topology.client(url) as client:
        return [int(found["id"]) for found in await client.client_list() if found["cmd"] == "evalsha"]


async def test_calls_made_together_get_each_its_own_reply_over_one_connection(store_url: str) -> None:
    store = await opened(store_url)

    words = [str(number) for number in range(500)]
    replies = await asyncio.gather(*(echo(store, word) for word in words))

    assert replies == [word.encode() for word in words]
    assert len(await pipes(store_url)) == 1
    await store.aclose()


async def test_the_store_begins_while_the_loop_is_still_busy_asking(store_url: str) -> None:
    store = await opened(topology.one_server(store_url))
    await echo(store, "open")

    async def ask(number: int) -> None:
        await store.short.evalsha(digest(WRITE), 1, f"asked-{number}", "1")

    async def look() -> None:
        """In the same turn of the loop, before it could have sent what it keeps for the turn's end."""
        with redis.Redis.from_url(store_url) as client:
            assert any(client.exists("asked-0") for _ in range(1_000))

    await asyncio.gather(*map(ask, range(MOST_UNSENT)), look())

    await store.aclose()


async def test_an_unknown_script_says_so_and_fails_nobody_else(store_url: str) -> None:
    store = await opened(store_url)

    calls = (echo(store, "a"), store.short.evalsha("0" * 40, 0), echo(store, "b"))
    replies: list[object] = await asyncio.gather(*calls, return_exceptions=True)

    assert replies[::2] == [b"a", b"b"]
    assert isinstance(replies[1], redis.exceptions.NoScriptError)
    await store.aclose()


async def test_a_cancelled_call_leaves_its_place_to_nobody(store_url: str) -> None:
    store = await opened(store_url)
    await echo(store, "open")

    calls = [asyncio.create_task(echo(store, str(number))) for number in range(9)]
    await asyncio.sleep(0)
    for call in calls[::2]:
        call.cancel()
    replies = await asyncio.gather(*calls, return_exceptions=True)

    assert replies[1::2] == [b"1", b"3", b"5", b"7"]
    assert all(isinstance(reply, asyncio.CancelledError) for reply in replies[::2])
    await store.aclose()


async def test_a_connection_that_died_unnoticed_is_replaced(store_url: str) -> None:
    store = await opened(store_url)
    await echo(store, "open")
    async with topology.client(store_url) as client:
        for pipe in await pipes(store_url):
            await client.client_kill_filter(_id=str(pipe))

    assert await echo(store, "again") == b"again"
    await store.aclose()


async def test_a_connection_that_dies_as_it_opens_is_replaced(store_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store = await opened(store_url)
    pipe, opens = cast(BoundedRedis, store.short).pipe, list[AbstractConnection]()
    assert pipe is not None
    connect: Connect = pipe._connect

    async def lose_the_first() -> AbstractConnection:
        connection = await connect()
        opens.append(connection)
        if len(opens) == 1:
            assert connection._writer is not None
            connection._writer.transport.abort()
        return connection

    monkeypatch.setattr(pipe, "_connect", lose_the_first)

    assert await asyncio.gather(*(echo(store, word) for word in "abc")) == [b"a", b"b", b"c"]
    assert len(opens) == 2
    await store.aclose()


async def test_what_is_late_fails_and_the_next_call_takes_another_connection(store_url: str) -> None:
    store = await opened(store_url, timeout_s=0.3)
    await echo(store, "open")
    before = await pipes(store_url)
    async with topology.client(store_url) as blocker:
        await blocker.client_pause(20_000, all=False)  # writes only, so that it can be lifted

        with pytest.raises(TimeoutError):
            await store.short.evalsha(digest(WRITE), 1, "key", "late")

        await blocker.client_unpause()

    assert await echo(store, "again") == b"again"
    assert set(await pipes(store_url)).isdisjoint(before)
    await store.aclose()


async def test_without_a_store_a_call_fails_and_with_it_the_next_one_works(store_url: str) -> None:
    store = await opened(store_url)
    away = connections("unix:///nowhere/store.sock", timeout_s=LIMIT_S, limit=4)

    with pytest.raises(redis.ConnectionError):
        await echo(away, "x")

    assert await echo(store, "x") == b"x"
    await away.aclose()
    await store.aclose()


async def test_closing_fails_what_is_still_asked(store_url: str) -> None:
    store = await opened(store_url)
    await echo(store, "open")
    async with topology.client(store_url) as blocker:
        await blocker.client_pause(20_000, all=False)
        asked = asyncio.ensure_future(store.short.evalsha(digest(WRITE), 1, "key", "x"))
        await asyncio.sleep(0)

        await store.aclose()

        with pytest.raises(redis.ConnectionError):
            await asked
        await blocker.client_unpause()
