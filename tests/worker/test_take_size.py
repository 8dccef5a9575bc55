"""When a worker asks the queue for work."""

import asyncio

import pytest

from fairlane.scheduler.planner.steps import Capacity
from fairlane.worker.leases import Intake
from fairlane.worker.reports import Report, WorkerLoad

pytestmark = pytest.mark.anyio
FULL = Capacity({"latency": 0, "throughput": 0}, {"latency": 0, "throughput": 0})


def room_for(sequences: int, kv_tokens: int = 100) -> Capacity:
    return Capacity({"latency": sequences, "throughput": sequences}, {"latency": kv_tokens, "throughput": kv_tokens})


def report(capacity: Capacity, obeyed: int = 0) -> Report:
    return Report(obeyed=obeyed, by_gateway={}, capacity=capacity, jobs=0, load=WorkerLoad())


async def asks(room: Intake) -> Capacity | None:
    """What it would ask for now; None if it would not ask."""
    asking = asyncio.ensure_future(room.worth_asking())
    await asyncio.wait([asking], timeout=0.01)
    if asking.done():
        return asking.result()
    asking.cancel()
    return None


async def test_a_worker_asks_once_it_knows_its_room() -> None:
    room = Intake()
    assert await asks(room) is None
    room.turned(report(room_for(4)), told=0)
    assert await asks(room) == room_for(4)


async def test_a_full_worker_does_not_ask() -> None:
    room = Intake()
    room.turned(report(FULL), told=0)
    room.woken()
    assert await asks(room) is None


async def test_after_a_take_that_found_nothing_it_waits_for_news() -> None:
    room = Intake()
    room.turned(report(room_for(4)), told=0)
    assert await asks(room)
    room.took(0)
    room.turned(report(room_for(4)), told=0)
    assert await asks(room) is None
    room.woken()
    assert await asks(room)


async def test_more_room_is_news_and_less_is_not() -> None:
    room = Intake()
    room.turned(report(room_for(4)), told=0)
    assert await asks(room)
    room.turned(report(room_for(3, 90)), told=0)
    assert await asks(room) is None
    room.turned(report(room_for(3, 110)), told=0)
    assert await asks(room) == room_for(3, 110)


async def test_while_leases_are_on_their_way_into_the_engine_it_does_not_ask() -> None:
    room = Intake()
    room.turned(report(room_for(4)), told=0)
    assert await asks(room)
    room.took(2)
    assert await asks(room) is None
    room.turned(report(room_for(4), obeyed=0), told=2)
    assert await asks(room) is None
    room.turned(report(room_for(2), obeyed=2), told=2)
    assert await asks(room) == room_for(2)


async def test_a_closed_room_asks_no_more_and_lets_the_asker_go() -> None:
    room = Intake()
    asking = asyncio.ensure_future(room.worth_asking())
    room.close()
    assert await asyncio.wait_for(asking, 5) is None
