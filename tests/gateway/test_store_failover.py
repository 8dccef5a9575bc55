"""Stores that Sentinels watch: every kind of call finds the master, and the next one when it changes."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from gateway.commands.store import valkey_binary
from gateway.store import STORE_TROUBLE, Connections
from gateway.store_server import server
from quotas.database import Database
from tests.sentinel import Watch, watched

pytestmark = pytest.mark.anyio
WAIT_S = 60.0


@pytest.fixture
async def watch(tmp_path: Path) -> AsyncIterator[Watch]:
    async with watched(tmp_path, valkey_binary()) as made:
        yield made


async def ask(store: Connections) -> None:
    """Each way that calls take: a script, a plain command, and a reader's."""
    await Database(store.short).run("watch", "watched", 1_000)
    await store.patient.set("plain", 1)


async def until_asked(store: Connections) -> None:
    async with asyncio.timeout(WAIT_S):
        while True:
            with suppress(*STORE_TROUBLE):
                return await ask(store)
            await asyncio.sleep(0.05)


async def test_calls_follow_the_master_when_it_dies(watch: Watch) -> None:
    store = server(watch.url, timeout_s=2.0, limit=4)
    reader = store.reader()
    await ask(store)
    first: Any = await store.short.xadd("news", {"a": "1"})
    assert await reader.xread({"news": "0-0"}, count=1) == [(b"news", [(first, {b"a": b"1"})])]
    await watch.replicated()

    await watch.kill_master()
    await until_asked(store)

    second = await store.short.xadd("news", {"b": "2"})
    async with asyncio.timeout(WAIT_S):
        assert await reader.xread({"news": first.decode()}, count=1) == [(b"news", [(second, {b"b": b"2"})])]
    assert await store.short.get("plain") == b"1"
    await reader.aclose()
    await store.aclose()
