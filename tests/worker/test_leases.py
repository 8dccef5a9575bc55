"""What the worker holds in the store's eyes, and when it asks for more."""

import asyncio
from dataclasses import replace

import pytest

from fairlane.scheduler.planner.steps import Capacity, Yielding
from fairlane.scheduler.protocol.messages import Cancel
from fairlane.worker.leases import HeldLeases, Intake
from fairlane.worker.reports import Report, WorkerLoad
from tests.support.worker.scripted import lease

pytestmark = pytest.mark.anyio


def test_a_job_is_held_from_its_take_until_it_is_let_go() -> None:
    holdings = HeldLeases()
    holdings.took([lease("a"), lease("b")])
    assert holdings.ids() == ["a", "b"]
    holdings.remove("a", 1)
    assert holdings.ids() == ["b"]
    assert len(holdings) == 1


def test_a_job_that_has_come_again_is_not_let_go_for_its_former_life() -> None:
    holdings = HeldLeases()
    holdings.took([lease(epoch=1)])
    before = holdings.epochs(["job", "unknown"])
    holdings.took([lease(epoch=3)])
    for job_id, epoch in before:
        holdings.remove(job_id, epoch)
    assert holdings.ids() == ["job"]


def test_a_word_that_overtakes_the_answer_of_a_take_is_heard_behind_it() -> None:
    holdings = HeldLeases()
    cancel = Cancel(job_id="job")
    assert not holdings.received(Cancel(job_id="other"))
    assert not holdings.received(cancel)
    assert holdings.took([lease()]) == [cancel]
    assert holdings.received(cancel)


def test_a_word_about_what_the_take_did_not_bring_is_forgotten_with_it() -> None:
    holdings = HeldLeases()
    holdings.received(Cancel(job_id="job"))
    assert holdings.took([]) == []
    assert holdings.took([lease()]) == []


def test_a_word_about_a_job_that_is_taken_anew_is_heard_behind_it_again() -> None:
    holdings = HeldLeases()
    holdings.took([lease(epoch=1)])
    cancel = Cancel(job_id="job")
    assert holdings.received(cancel)
    assert holdings.took([lease(epoch=3)]) == [cancel]


def test_a_lease_that_is_no_newer_than_what_is_held_is_known() -> None:
    holdings = HeldLeases()
    holdings.took([lease("a", epoch=2), lease("b", epoch=2)])
    leases = [lease("a", epoch=2), lease("b", epoch=3), lease("c")]
    assert holdings.known(leases) == leases[:1]


FULL = Capacity({"latency": 0, "throughput": 0}, {"latency": 0, "throughput": 0})


def room_for(sequences: int, kv_tokens: int = 100) -> Capacity:
    return Capacity({"latency": sequences, "throughput": sequences}, {"latency": kv_tokens, "throughput": kv_tokens})


def report(capacity: Capacity, applied: int = 0) -> Report:
    return Report(applied=applied, capacity=capacity, jobs=0, load=WorkerLoad())


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
    room.turned(report(room_for(4)), commands_sent=0)
    assert await asks(room) == room_for(4)


async def test_a_full_worker_does_not_ask() -> None:
    room = Intake()
    room.turned(report(FULL), commands_sent=0)
    room.woken()
    assert await asks(room) is None


async def test_after_a_take_that_found_nothing_it_waits_for_news() -> None:
    room = Intake()
    room.turned(report(room_for(4)), commands_sent=0)
    assert await asks(room)
    room.took(0)
    room.turned(report(room_for(4)), commands_sent=0)
    assert await asks(room) is None
    room.woken()
    assert await asks(room)


async def test_what_another_worker_is_to_ask_for_first_is_news_a_little_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    room = Intake()
    room.turned(report(room_for(4)), commands_sent=0)
    assert await asks(room)
    room.took(0)

    monkeypatch.setattr("fairlane.worker.leases.AFFINITY_DELAY_MS", 60_000)
    room.woken_after_another()
    assert await asks(room) is None
    room.woken()
    assert await asks(room)
    room.took(0)

    monkeypatch.setattr("fairlane.worker.leases.AFFINITY_DELAY_MS", 0)
    room.woken_after_another()
    assert await asyncio.wait_for(room.worth_asking(), 5) == room_for(4)


async def test_more_room_is_news_and_less_is_not() -> None:
    room = Intake()
    room.turned(report(room_for(4)), commands_sent=0)
    assert await asks(room)
    room.turned(report(room_for(3, 90)), commands_sent=0)
    assert await asks(room) is None
    room.turned(report(room_for(3, 110)), commands_sent=0)
    assert await asks(room) == room_for(3, 110)


def full_but_for(newcomers: int, shorter_than: int = 0) -> Capacity:
    """A worker without room that asks for so many newcomers in the latency lane."""
    own = Yielding(("crowd",), (), newcomers, sequences=4, kv_tokens=100, shorter_than=shorter_than)
    return replace(FULL, yielding={"latency": own})


@pytest.mark.parametrize(
    ("asked", "now", "is_news"),
    [
        (full_but_for(0), full_but_for(1), True),
        (full_but_for(0), full_but_for(8, shorter_than=100), True),
        (full_but_for(8, shorter_than=100), full_but_for(8, shorter_than=300), True),
        (full_but_for(8, shorter_than=100), full_but_for(1), True),
        (full_but_for(0), full_but_for(0), False),
        (full_but_for(0), full_but_for(0, shorter_than=100), False),
        (full_but_for(1), full_but_for(8), False),
        (full_but_for(8, shorter_than=100), full_but_for(7, shorter_than=84), False),
    ],
)
async def test_a_place_for_newcomers_that_were_not_asked_for_is_news(
    asked: Capacity, now: Capacity, *, is_news: bool
) -> None:
    """More places than it had for newcomers of the same length are not: the queue did not fill those."""
    room = Intake()
    room.turned(report(asked), commands_sent=0)
    assert await asks(room) == asked
    room.took(0)

    room.turned(report(now), commands_sent=0)

    assert await asks(room) == (now if is_news else None)


async def test_while_leases_are_on_their_way_into_the_engine_it_does_not_ask() -> None:
    room = Intake()
    room.turned(report(room_for(4)), commands_sent=0)
    assert await asks(room)
    room.took(2)
    assert await asks(room) is None
    room.turned(report(room_for(4), applied=0), commands_sent=2)
    assert await asks(room) is None
    room.turned(report(room_for(2), applied=2), commands_sent=2)
    assert await asks(room) == room_for(2)


async def test_a_closed_room_asks_no_more_and_lets_the_asker_go() -> None:
    room = Intake()
    asking = asyncio.ensure_future(room.worth_asking())
    room.close()
    assert await asyncio.wait_for(asking, 5) is None
