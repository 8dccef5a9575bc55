"""Patience with the store: every call is repeated until it is answered, and the log says so once."""

import asyncio

import pytest
import redis

from fairlane.store.retry import StoreLink

pytestmark = pytest.mark.anyio


async def test_a_call_is_repeated_until_it_is_answered(caplog: pytest.LogCaptureFixture) -> None:
    link = StoreLink(1.0)
    faults = [redis.ConnectionError(), ConnectionRefusedError(), redis.BusyLoadingError()]

    async def call() -> int:
        if faults:
            raise faults.pop(0)
        return 7

    assert await asyncio.wait_for(link.persist("call", call), 5) == 7
    first, second = (record.getMessage() for record in caplog.records)
    assert first.startswith("the store fails at call (ConnectionError)")
    assert second.startswith("the store answers again")
    assert link.returned.is_set()


async def test_a_call_that_is_never_answered_is_given_up_and_repeated() -> None:
    link = StoreLink(0.02)
    calls = 0

    async def call() -> int:
        nonlocal calls
        calls += 1
        if calls == 1:
            await asyncio.Event().wait()
        return calls

    assert await asyncio.wait_for(link.persist("call", call), 5) == 2


async def test_what_is_no_fault_of_the_store_is_not_repeated() -> None:
    async def call() -> None:
        raise KeyError("ours")

    with pytest.raises(KeyError):
        await StoreLink(1.0).persist("call", call)


def test_the_store_is_away_until_every_kind_of_call_succeeds_again(caplog: pytest.LogCaptureFixture) -> None:
    link = StoreLink(1.0)
    link.failed("take", redis.ConnectionError())
    link.failed("publish", redis.ConnectionError())
    link.answered("take")
    link.answered("renew")
    assert len(caplog.records) == 1
    link.answered("publish")
    assert len(caplog.records) == 2
