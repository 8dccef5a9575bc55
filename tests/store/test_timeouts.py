"""Whose fault it is that an answer comes late: a loop that was held up itself does not say the store's."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from fairlane.store.circuit_breaker import FAILURES
from fairlane.store.connections import ServerConnections, server
from fairlane.store.timeouts import MOST_DEFERRED, Timeout, has_passed
from tests.support.store import topology

pytestmark = pytest.mark.anyio
LIMIT_S = 0.25
PATIENT_S = 20.0
ECHO = "return ARGV[1]"


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, bool]]:
    """The loop that the gateway runs on, which looks at its timers before it reads."""
    return "asyncio", {"use_uvloop": True}


@pytest.fixture
async def store(valkey_url: str) -> AsyncIterator[ServerConnections]:
    opened = server(topology.one_master(valkey_url), timeout_s=LIMIT_S, limit=8)
    await opened.short.get("warm")
    yield opened
    await opened.aclose()


async def held_up(calls: Sequence["asyncio.Future[Any]"], *, times: int) -> list[object]:
    """What calls come to while the loop does other work, for longer than they may take each time."""
    for _ in range(times):
        await asyncio.sleep(0)
        time.sleep(1.2 * LIMIT_S)  # noqa: ASYNC251 - the loop is to be held up
    async with asyncio.timeout(PATIENT_S):
        return [*await asyncio.gather(*calls, return_exceptions=True)]


async def test_a_loop_that_was_held_up_does_not_say_that_the_store_is_away(store: ServerConnections) -> None:
    asked = [asyncio.ensure_future(store.short.get(f"key-{number}")) for number in range(2 * FAILURES)]

    replies = await held_up(asked, times=2)

    assert replies == [None] * len(asked)
    assert store.breaker.is_whole
    assert store.breaker.openings == 0


async def test_nor_does_it_of_scripts(store: ServerConnections) -> None:
    digest = await store.short.script_load(ECHO)
    await store.short.evalsha(digest, 0, "open")
    asked = [asyncio.ensure_future(store.short.evalsha(digest, 0, str(number))) for number in range(2 * FAILURES)]

    replies = await held_up(asked, times=2)

    assert replies == [str(number).encode() for number in range(len(asked))]
    assert store.breaker.openings == 0


async def test_a_store_that_says_nothing_is_away_though_the_loop_is_late_as_well(store: ServerConnections) -> None:
    async with topology.client(store.url) as blocker:
        await blocker.client_pause(20_000, all=False)  # writes only, so that it can be lifted
        asked = [asyncio.ensure_future(store.short.set(f"key-{number}", "")) for number in range(FAILURES)]

        replies = await held_up(asked, times=1)

        await blocker.client_unpause()
    assert [type(reply) for reply in replies] == [TimeoutError] * FAILURES
    assert store.breaker.openings == 1


async def test_a_timeout_ends_what_it_is_around_and_leaves_others_cancellations_alone() -> None:
    with pytest.raises(TimeoutError):
        async with Timeout(0.01):
            await asyncio.Event().wait()

    async def waits() -> None:
        async with Timeout(PATIENT_S):
            await asyncio.Event().wait()

    waiting = asyncio.create_task(waits())
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting


def test_no_lateness_puts_a_limit_off_for_ever() -> None:
    assert not has_passed(1.0, 1.5, 0.6)
    assert has_passed(1.0, 1.7, 0.6)
    assert has_passed(1.0, MOST_DEFERRED + 1.0, 1e9)
