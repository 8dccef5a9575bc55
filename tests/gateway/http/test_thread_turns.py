"""Work on what callers sent: one thread at a time, tenants in turn, whatever becomes of those who wait."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable

import pytest

from fairlane.gateway.http.thread_turns import ThreadTurns

pytestmark = pytest.mark.anyio

LIMIT_S = 10.0


class Work:
    """Work whose end the test decides."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.at_once = self.most_at_once = 0
        self.may_end = threading.Semaphore(0)
        self._loop, self._has_begun = asyncio.get_running_loop(), asyncio.Semaphore(0)

    def of(self, name: str) -> Callable[[], str]:
        def work() -> str:
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
            self.begun.append(name)
            self._loop.call_soon_threadsafe(self._has_begun.release)
            assert self.may_end.acquire(timeout=LIMIT_S)
            self.at_once -= 1
            return name

        return work

    async def next_begun(self) -> None:
        await asyncio.wait_for(self._has_begun.acquire(), LIMIT_S)


@pytest.fixture
async def work() -> AsyncIterator[Work]:
    made = Work()
    yield made
    made.may_end.release(100)


async def test_one_works_at_a_time_and_tenants_take_turns(work: Work) -> None:
    turns = ThreadTurns()
    names = [*(f"many-{number}" for number in range(8)), "few-0", "other-0"]
    running = [asyncio.create_task(turns.run(name.split("-")[0], work.of(name))) for name in names]
    work.may_end.release(len(names))

    assert await asyncio.gather(*running) == names
    assert work.most_at_once == 1
    assert work.begun[:4] == ["many-0", "many-1", "few-0", "other-0"]
    assert work.begun[4:] == [f"many-{number}" for number in range(2, 8)]


async def test_work_whose_caller_left_keeps_its_turn_until_it_ends(work: Work) -> None:
    turns = ThreadTurns()
    left = asyncio.create_task(turns.run("a", work.of("left")))
    await work.next_begun()
    waits = [asyncio.create_task(turns.run("a", work.of(name))) for name in ("gone", "served")]
    await asyncio.sleep(0)
    for task in (left, waits[0]):
        task.cancel()
    await asyncio.wait([left, waits[0]])

    assert (work.at_once, work.begun) == (1, ["left"])
    work.may_end.release(2)
    assert await asyncio.wait_for(waits[1], LIMIT_S) == "served"
    assert (work.most_at_once, work.begun) == (1, ["left", "served"])


async def test_a_turn_that_comes_to_one_who_leaves_goes_to_the_next(work: Work) -> None:
    turns = ThreadTurns()
    first = asyncio.create_task(turns.run("a", work.of("first")))
    await work.next_begun()
    waits = [asyncio.create_task(turns.run("a", work.of(name))) for name in ("gone", "served")]
    await asyncio.sleep(0)
    first.add_done_callback(lambda _: waits[0].cancel())  # at the same moment as its turn comes
    work.may_end.release(3)

    assert await asyncio.wait_for(waits[1], LIMIT_S) == "served"
    assert work.most_at_once == 1


async def test_a_fault_passes_the_turn_on() -> None:
    turns = ThreadTurns()
    with pytest.raises(ZeroDivisionError):
        await turns.run("a", lambda: 1 // 0)

    assert await asyncio.wait_for(turns.run("a", lambda: 1), LIMIT_S) == 1
