"""What all doors have promised fits the time until it is due, in both queues."""

from typing import Any

import pytest

from fairlane.scheduler.protocol.lanes import LaneName
from fairlane.scheduler.protocol.messages import Outcome
from fairlane.scheduler.queue.promises import RECENT_MS
from fairlane.scheduler.queue.types import Unattainable
from tests.support.scheduler.queues import LEASE_MS, Clock, Queue, job, progress, take_one

pytestmark = pytest.mark.anyio
PROMPT = tuple(range(800))
"""With what taking it is charged for its output, more than a fifth of the queue's window."""


async def promised(queue: Queue, job_id: str, claim_ms: float, due_ms: float = 2_000.0, **fields: Any) -> bool:
    known: dict[str, Any] = {
        "claim_ms": claim_ms,
        "work_ms": 1e-3,
        "hard_ttft_ms": due_ms + 50.0,
        "pace_ms": 50.0,
        "ttft_ms": 9e5,
    }
    asked = job(job_id, guaranteed=True, **known, **fields)
    try:
        return (await queue.put(asked)).guaranteed
    except Unattainable:
        return False


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
    await queue.report("w1", [progress(lease, 1)])
    assert await promised(queue, "c", 1_800.0)
    await queue.report("w1", [progress(lease, 2, ends=Outcome.FINISHED)])
    assert not await promised(queue, "d", 1_800.0)
    await queue.cancel("c")

    assert await promised(queue, "e", 1_800.0)


async def test_what_goes_on_elsewhere_claims_its_time_until_its_first_token_here(queue: Queue) -> None:
    again = job("a", guaranteed=True, claim_ms=1_800.0, work_ms=1e-3, pace_ms=50.0, ttft_ms=9e5, hard_ttft_ms=2_050.0)
    assert (await queue.put(again, generated=2)).guaranteed
    lease = await take_one(queue)

    await queue.report("w1", [progress(lease, 2)])
    assert not await promised(queue, "b", 1_800.0)
    await queue.report("w1", [progress(lease, 3)])

    assert await promised(queue, "c", 1_800.0)


async def test_time_that_has_passed_cannot_be_promised(queue: Queue, clock: Clock) -> None:
    assert not await promised(queue, "a", 1.0, due_ms=0.0)
    assert await promised(queue, "b", 1_000.0)
    clock.advance(1_200)

    assert not await promised(queue, "c", 300.0, due_ms=800.0)


async def test_a_lower_lane_is_not_promised_what_the_lanes_above_ask_for(queue: Queue, clock: Clock) -> None:
    """However they ask for it: let in, promised or not, or refused; as soon as they do, were it little before."""
    assert await promised(queue, "before", 900.0, lane=LaneName.THROUGHPUT)
    for number in range(4):
        await queue.put(job(f"undated{number}", gateway_id=f"g{number}", work_ms=62.5))
    half = await queue.exchange_reports("gw", b"", {})
    assert half.asked == pytest.approx({LaneName.LATENCY: 0.5, LaneName.THROUGHPUT: 0.0}, abs=0.05)

    assert not await promised(queue, "low", 200.0, lane=LaneName.THROUGHPUT)
    assert await promised(queue, "high", 50.0)
    clock.advance(RECENT_MS)
    assert await promised(queue, "later", 900.0, lane=LaneName.THROUGHPUT)
    await queue.exchange_reports("gw", b"", {LaneName.LATENCY: 3_000_000})
    assert not await promised(queue, "none", 1.0, lane=LaneName.THROUGHPUT, due_ms=9_000.0)


async def test_what_nobody_knows_the_work_of_may_be_all_that_the_lanes_above_can_take(
    queue: Queue, clock: Clock
) -> None:
    """Before workers have learnt what steps cost."""
    await queue.put(job("unknown"))
    assert not await promised(queue, "low", 1.0, lane=LaneName.THROUGHPUT)
    assert await promised(queue, "high", 1.0)
    clock.advance(RECENT_MS)

    assert await promised(queue, "later", 1.0, lane=LaneName.THROUGHPUT)


async def test_what_other_doors_promised_leaves_no_time_for_is_refused(queue: Queue) -> None:
    assert await promised(queue, "a", 1_900.0)
    late = job("late", guaranteed=True, claim_ms=1_500.0, hard_ttft_ms=2_050.0, pace_ms=50.0, gateway_id="other")

    with pytest.raises(Unattainable) as refusal:
        await queue.put(late)

    assert refusal.value.late_ms == pytest.approx((1_900.0 + 1_500.0) / 1.5 - 2_050.0, abs=1.0)
    assert await queue.record("late") is None
    assert await queue.waiting("acme") == 1
    assert not (await queue.put(late, waited_ms=1)).guaranteed


async def test_a_tenant_that_is_ahead_by_its_window_is_promised_nothing_while_others_wait(queue: Queue) -> None:
    alone = [await promised(queue, f"alone{number}", 1.0, tenant="greedy", prompt=PROMPT) for number in range(8)]
    await queue.put(job("other", "patient"))
    beside = [await promised(queue, f"beside{number}", 1.0, tenant="greedy", prompt=PROMPT) for number in range(2)]
    new = [await promised(queue, f"new{number}", 1.0, tenant="new", prompt=PROMPT) for number in range(8)]
    wide = await promised(queue, "wide", 1.0, tenant="greedy", token_ms=0.1)

    assert alone == [True] * 8
    assert beside == [False] * 2
    assert new == [True] * 5 + [False] * 3
    assert wide


async def test_doors_hear_each_other_until_they_are_silent(queue: Queue, clock: Clock) -> None:
    assert (await queue.exchange_reports("a", b"of a", {})).reports == ()
    clock.advance(300)
    assert (await queue.exchange_reports("b", b"of b", {})).reports == ((b"of a", 300),)
    assert (await queue.exchange_reports("a", b"more of a", {})).reports == ((b"of b", 0),)
    clock.advance(3 * LEASE_MS)

    assert (await queue.exchange_reports("b", b"again", {})).reports == ()
