"""Bounded waits: what comes in time comes, what does not is given up, and nobody else's cancellation is swallowed."""

import asyncio

import pytest

from fairlane.gateway.pipeline.settlement import Inline

pytestmark = pytest.mark.anyio
LONG_S, SHORT_S = 60.0, 0.01


async def never() -> None:
    await asyncio.Event().wait()


async def test_what_comes_in_time_is_given() -> None:
    inline = Inline(LONG_S)

    assert await asyncio.gather(*(inline.wait(asyncio.sleep(0, number)) for number in range(3))) == [0, 1, 2]


async def test_what_does_not_come_is_given_up_by_all_who_wait() -> None:
    inline = Inline(SHORT_S)

    ends = await asyncio.gather(*(inline.wait(never()) for _ in range(3)), return_exceptions=True)
    assert [type(end) for end in ends] == [TimeoutError] * 3
    with pytest.raises(TimeoutError):
        await inline.wait(never())
    assert await inline.wait(asyncio.sleep(0, "after")) == "after"


async def test_a_cancelled_task_stays_cancelled() -> None:
    waiting = asyncio.create_task(Inline(LONG_S).wait(never()))
    await asyncio.sleep(0)

    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting


async def test_a_task_cancelled_with_its_time_over_is_cancelled() -> None:
    inline = Inline(SHORT_S)
    late: asyncio.Task[None] | None = None

    async def stubborn() -> None:
        try:
            await never()
        except asyncio.CancelledError:
            assert late is not None
            late.cancel()
            raise

    late = asyncio.create_task(inline.wait(stubborn()))
    with pytest.raises(asyncio.CancelledError):
        await late


async def test_the_works_own_trouble_is_told() -> None:
    async def broken() -> None:
        raise ConnectionError

    with pytest.raises(ConnectionError):
        await Inline(LONG_S).wait(broken())
