"""What the worker holds in the store's eyes, and when it asks for more."""

import asyncio
from dataclasses import replace

import pytest
from msgspec.structs import replace as replace_lease

from fairlane.scheduler.planner.steps import Capacity, Yielding
from fairlane.scheduler.protocol.messages import Cancel
from fairlane.scheduler.queue.types import Turn
from fairlane.store.bounds import JOBS_PER_CALL
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


def test_a_message_about_a_job_of_a_later_answer_is_kept_for_it() -> None:
    """Leases come from turns and from the worker's stream, so the next ones may be of another job."""
    holdings = HeldLeases()
    holdings.received(Cancel(job_id="job"))
    assert holdings.took([lease("other")]) == []
    assert holdings.took([lease()]) == [Cancel(job_id="job")]


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


LANES = ("latency", "throughput")


def opened() -> Intake:
    """The intake of a worker that has asked with room for four and found nothing."""
    room = Intake(LANES)
    room.turned(report(room_for(4)), commands_sent=0)
    assert asks(room) == room_for(4)
    return room


def asks(room: Intake) -> Capacity | None:
    """What it would ask for now; None if it would not ask."""
    asked = room.ask()
    return None if asked is None else asked.capacity


def test_a_worker_asks_once_it_knows_its_room() -> None:
    room = Intake(LANES)
    assert asks(room) is None
    room.turned(report(room_for(4)), commands_sent=0)
    assert asks(room) == room_for(4)


def test_a_full_worker_does_not_ask() -> None:
    room = Intake(LANES)
    room.turned(report(FULL), commands_sent=0)
    room.woken()
    assert asks(room) is None


def test_a_full_worker_that_is_called_asks_with_the_jobs_that_it_was_called_for() -> None:
    room = Intake(LANES)
    room.turned(report(FULL), commands_sent=0)
    room.called(["a"])
    room.called(["b"])
    assert room.ask() == (FULL, ["a", "b"])
    assert room.ask() is None
    room.called(map(str, range(1_000)))
    asked = room.ask()
    assert asked is not None
    assert asked.called == [str(number) for number in range(1_000 - JOBS_PER_CALL, 1_000)]


def test_after_a_question_that_found_nothing_it_waits_for_news() -> None:
    room = opened()
    room.turned(report(room_for(4)), commands_sent=0)
    assert asks(room) is None
    room.woken()
    assert asks(room)


def test_more_room_is_news_and_a_little_less_is_not() -> None:
    room = opened()
    room.turned(report(room_for(3, 90)), commands_sent=0)
    assert asks(room) is None
    room.turned(report(room_for(3, 110)), commands_sent=0)
    assert asks(room) == room_for(3, 110)


@pytest.mark.parametrize(
    ("jobs_wait", "now", "is_due"),
    [
        (False, room_for(5, 110), False),
        (True, room_for(5, 110), True),
        (True, room_for(3, 90), False),
        (False, room_for(8, 100), True),
        (False, room_for(4, 200), True),
    ],
)
def test_a_worker_whose_room_grew_asks_at_once_if_jobs_wait_or_it_has_doubled(
    jobs_wait: bool, now: Capacity, is_due: bool
) -> None:
    room = opened()
    room.answered(Turn(set(), [], jobs_wait=jobs_wait))
    room.turned(report(now), commands_sent=0)
    assert room.is_due is is_due


def test_room_that_grew_a_little_is_mentioned_with_the_next_report() -> None:
    room = opened()
    room.turned(report(room_for(5, 110)), commands_sent=0)
    assert not room.is_due
    assert asks(room) == room_for(5, 110)
    assert asks(room) is None


def test_a_step_that_began_before_a_lease_does_not_tell_of_more_room() -> None:
    room, given = opened(), lease("a")
    room.given([given])
    room.turned(report(room_for(4)), commands_sent=1)
    room.turned(report(room_for(3, 100 - len(given.job.prompt) - 1), applied=1), commands_sent=1)
    assert asks(room) is None


def test_room_that_fell_below_half_of_what_the_queue_knows_is_news_even_if_none_is_left() -> None:
    for left in (room_for(4, 49), room_for(4, 0), FULL):
        room = opened()
        room.turned(report(left), commands_sent=0)
        assert asks(room) == left
        room.turned(report(left), commands_sent=0)
        assert asks(room) is None


def test_a_fall_by_a_small_part_of_the_pool_is_not() -> None:
    room = Intake(LANES)
    room.turned(report(replace(room_for(4, 20), pool_tokens=1_000)), commands_sent=0)
    assert asks(room)
    room.turned(report(replace(room_for(4, 0), pool_tokens=1_000)), commands_sent=0)
    assert asks(room) is None


def test_what_it_was_given_is_not_offered_again_and_its_end_is_news() -> None:
    room = opened()
    given = lease("a")
    need = len(given.job.prompt) + 1
    room.given([given])
    assert asks(room) is None
    room.turned(report(room_for(3, 100 - need), applied=1), commands_sent=1)
    assert asks(room) is None
    room.turned(report(room_for(4, 100), applied=1), commands_sent=1)
    assert asks(room) == room_for(4, 100)


def test_after_an_answer_that_was_cut_it_asks_at_once_with_what_is_left() -> None:
    room, given = opened(), lease("a")
    room.given([given])
    room.answered(Turn(set(), [], has_more=True))
    assert asks(room) == room_for(3, 100 - len(given.job.prompt) - 1)
    assert asks(room) is None


def test_room_that_grew_while_the_answer_was_on_its_way_is_news_if_jobs_wait() -> None:
    room = opened()
    room.turned(report(room_for(5)), commands_sent=0)

    room.answered(Turn(set(), [], jobs_wait=True))

    assert room.is_due
    assert asks(room) == room_for(5)


def test_after_a_lease_of_a_started_job_it_asks_again_since_the_queue_knows_its_output() -> None:
    """The queue has subtracted output tokens that the lease does not state."""
    room, given = opened(), lease("a")
    room.given([replace_lease(given, started=True)])
    room.turned(report(room_for(3, 60), applied=1), commands_sent=1)
    assert asks(room) == room_for(3, 60)

    room.answered(Turn(set(), [], jobs_wait=True))
    room.turned(report(room_for(3, 70), applied=1), commands_sent=1)

    assert asks(room) == room_for(3, 70)


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
def test_a_place_for_newcomers_that_were_not_asked_for_is_news(
    asked: Capacity, now: Capacity, *, is_news: bool
) -> None:
    """More places than it had for newcomers of the same length are not: the queue did not fill those."""
    room = Intake(LANES)
    room.turned(report(asked), commands_sent=0)
    assert asks(room) == asked

    room.turned(report(now), commands_sent=0)

    assert asks(room) == (now if is_news else None)


def test_while_leases_are_on_their_way_into_the_engine_it_does_not_ask() -> None:
    room = opened()
    room.given([lease("a"), lease("b")])
    room.woken()
    room.turned(report(room_for(4), applied=0), commands_sent=2)
    assert asks(room) is None
    room.turned(report(room_for(2), applied=2), commands_sent=2)
    assert asks(room) == room_for(2)


async def test_a_closed_intake_asks_no_more_and_lets_the_asker_go() -> None:
    room = Intake(LANES)
    asking = asyncio.ensure_future(room.due())
    room.close()
    assert not await asyncio.wait_for(asking, 5)
    room.turned(report(room_for(4)), commands_sent=0)
    assert asks(room) is None
    room.open()
    assert await room.due()
    assert asks(room) == room_for(4)
