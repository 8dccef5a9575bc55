"""The gateway's clients of the store: bounded in time, and never deaf to a cancellation."""

import asyncio
from typing import Any

import pytest

from fairlane.store.circuit_breaker import StoreAway
from fairlane.store.connections import server
from fairlane.store.errors import StoreUnavailable
from tests.support.store import topology

pytestmark = pytest.mark.anyio
LIMIT_S = 20.0


async def test_a_store_that_does_not_answer_ends_a_question_in_time(valkey_url: str) -> None:
    store = server(topology.one_master(valkey_url), timeout_s=0.5, limit=4)
    async with topology.client(valkey_url) as blocker:
        await blocker.client_pause(20_000, all=False)  # writes only, so that it can be lifted

        with pytest.raises(TimeoutError):
            await store.short.set("key", 0)

        await blocker.client_unpause()

    await store.patient.set("key", 1)
    assert await store.short.get("key") == b"1"
    await store.aclose()


async def test_a_script_that_a_store_forgot_is_not_said_to_have_been_left_unasked(valkey_url: str) -> None:
    """Sent, run, lost with the store's answer, then unknown by its digest, and in full while the breaker is open."""
    store = server(topology.one_master(valkey_url), timeout_s=LIMIT_S, limit=4)
    store.breaker.is_away = True

    with pytest.raises(StoreAway):
        await store.patient.evalsha("0" * 40, 1, "key")
    with pytest.raises(StoreUnavailable) as caught:
        await store.patient.eval("return 1", 1, "key")

    assert not isinstance(caught.value, StoreAway)
    await store.aclose()


async def test_every_cancelled_call_ends_as_cancelled(valkey_url: str) -> None:
    store = server(topology.one_master(valkey_url), timeout_s=5.0, limit=1)

    async def keep_asking() -> None:
        while True:
            await store.short.get("key")

    for _ in range(300):
        await store.short.get("key")  # connected: what is cut off while it connects, redis-py leaves to the collector
        asking = asyncio.create_task(keep_asking())
        await asyncio.sleep(0.002)  # any moment of a call will do
        asking.cancel()
        async with asyncio.timeout(LIMIT_S):
            with pytest.raises(asyncio.CancelledError):
                await asking
    await store.aclose()


async def test_a_reader_waits_for_news_and_says_where_it_stands(valkey_url: str) -> None:
    store = server(topology.one_master(valkey_url), timeout_s=LIMIT_S, limit=4)
    reader = store.reader()

    assert await reader.xread({"news": "0-0"}, count=9) == []
    assert await reader.xread({"news": "0-0"}, count=9, block=1) == []
    waiting = asyncio.create_task(reader.xread({"other": "0-0", "news": "0-0"}, count=1, block=900))
    await asyncio.sleep(0)
    first: Any = await store.short.xadd("news", {"a": "1", "b": "2"})
    second = await store.short.xadd("news", {"c": "3"})

    assert await waiting == [(b"news", [(first, {b"a": b"1", b"b": b"2"})])]
    assert await reader.xread({"news": first.decode()}, count=9) == [(b"news", [(second, {b"c": b"3"})])]
    await reader.aclose()
    await store.aclose()
