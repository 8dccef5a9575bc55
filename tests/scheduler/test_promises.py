"""What all doors have promised fits the time until it is due, in both queues."""

from typing import Any

import pytest

from scheduler.lanes import LaneName
from scheduler.outcomes import Outcome
from tests.scheduler.queues import Clock, Queue, job, take_one, tokens

pytestmark = pytest.mark.anyio


async def promised(queue: Queue, flight_id: str, claim_ms: float, due_ms: float = 2_000.0, **fields: Any) -> bool:
    asked = job(
        flight_id, guaranteed=True, claim_ms=claim_ms, hard_ttft_ms=due_ms + 50.0, pace_ms=50.0, ttft_ms=9e5, **fields
    )
    return (await queue.put(asked)).guaranteed


async def test_promises_are_given_until_the_time_is_booked(queue: Queue) -> None:
    answers = [await promised(queue, f"a{number}", 600.0, gateway_id=f"g{number}") for number in range(5)]

    assert answers == [True, True, True, False, False]
    record = await queue.record("a3")
    assert record is not None
    assert not record.guaranteed
    assert not (await queue.put(job("a3"))).guaranteed
    lease = await take_one(queue)
    assert lease.job.guaranteed


async def test_what_is_due_later_may_still_be_promised_and_nothing_before_it_that_breaks_it(queue: Queue) -> None:
    assert await promised(queue, "soon", 1_700.0)
    assert await promised(queue, "later", 1_500.0, due_ms=4_000.0)

    assert not await promised(queue, "between", 900.0, due_ms=3_000.0)
    assert await promised(queue, "small", 200.0, due_ms=3_000.0)


async def test_a_lower_lane_is_promised_what_the_lanes_above_leave(queue: Queue) -> None:
    assert await promised(queue, "high", 1_500.0)
    assert not await promised(queue, "low", 600.0, lane=LaneName.THROUGHPUT)
    assert await promised(queue, "less", 400.0, lane=LaneName.THROUGHPUT)

    assert not await promised(queue, "would break it", 200.0)


async def test_what_has_its_first_token_or_is_over_claims_no_more(queue: Queue) -> None:
    assert await promised(queue, "a", 1_800.0)
    lease = await take_one(queue)
    assert not await promised(queue, "b", 1_800.0)
    await queue.publish("gw", "w1", [tokens(lease, 7)])
    assert await promised(queue, "c", 1_800.0)
    await queue.publish("gw", "w1", [tokens(lease, 8, first=1, ends=Outcome.FINISHED)])
    assert not await promised(queue, "d", 1_800.0)
    await queue.cancel("c")

    assert await promised(queue, "e", 1_800.0)


async def test_time_that_has_passed_cannot_be_promised(queue: Queue, clock: Clock) -> None:
    assert not await promised(queue, "a", 1.0, due_ms=0.0)
    assert await promised(queue, "b", 1_000.0)
    clock.advance(1_200)

    assert not await promised(queue, "c", 300.0, due_ms=800.0)
