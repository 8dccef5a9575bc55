"""Putting, finding, ending: what gateways do with the queue."""

from typing import Any

import pytest

from fairlane.scheduler.protocol.lanes import LaneName
from fairlane.scheduler.protocol.messages import Cancel, Finished, Outcome
from fairlane.scheduler.queue.types import JobRecord, JobState, LaneDepth, LaneFull, TenantQueueFull
from tests.scheduler.conftest import MakeQueue
from tests.support.scheduler.queues import (
    LEASE_MS,
    PLENTY,
    Clock,
    Queue,
    job,
    lanes,
    progress,
    room,
    stay_alive,
    take_one,
    taken,
)

pytestmark = pytest.mark.anyio


async def test_position_counts_the_tenants_own_jobs_ahead_in_the_lane(queue: Queue) -> None:
    await queue.put(job("a1"))
    await queue.put(job("b1", "blue"))
    await queue.put(job("a2", lane=LaneName.THROUGHPUT))

    assert (await queue.put(job("a3"))).position == 2
    assert [await queue.position(job_id) for job_id in ("a1", "b1", "a2", "a3")] == [1, 1, 1, 2]


async def test_a_stated_deadline_goes_before_a_tenants_earlier_jobs(queue: Queue) -> None:
    await queue.put(job("patient"))

    assert (await queue.put(job("urgent", ttft_ms=500.0))).position == 1
    assert (await queue.put(job("hard", deadline_ms=400.0))).position == 1
    assert await taken(queue) == ["hard", "urgent", "patient"]


async def test_putting_the_same_job_again_changes_nothing(queue: Queue) -> None:
    await queue.put(job("a"))
    await queue.put(job("b"))

    assert (await queue.put(job("b"))).position == 2
    assert (await queue.depths())[LaneName.LATENCY].queued == 2
    await taken(queue)
    assert (await queue.put(job("b"))).position == 0
    assert await taken(queue) == []


async def test_a_job_comes_out_as_it_was_put(queue: Queue, clock: Clock) -> None:
    sent = job("a", n=2, weight=2.5, guaranteed=True, deadline_ms=9_000.0, traceparent="00-ab-cd-01")
    await queue.put(sent)
    clock.advance(250)

    [lease] = await queue.take("w1", PLENTY)

    assert lease.job == sent
    assert (lease.epoch, lease.arrived_ms_ago, lease.started) == (1, 250, False)


async def test_a_full_lane_refuses_and_says_when_a_place_frees(make_queue: MakeQueue, clock: Clock) -> None:
    queue = make_queue(lanes(latency={"max_queued": 2}))
    await queue.put(job("a"))
    clock.advance(3_000)
    await queue.put(job("b", "blue"))

    with pytest.raises(LaneFull) as refusal:
        await queue.put(job("c", "cyan"))

    assert (refusal.value.lane, refusal.value.depth, refusal.value.retry_after_ms) == (LaneName.LATENCY, 2, 1_500)
    assert await queue.record("c") is None
    assert (await queue.put(job("c", "cyan", LaneName.THROUGHPUT))).position == 1


async def test_a_tenants_own_limit_counts_its_jobs_in_all_lanes(queue: Queue, clock: Clock) -> None:
    await queue.put(job("a1"), tenant_limit=2)
    clock.advance(3_000)
    await queue.put(job("a2", lane=LaneName.THROUGHPUT), tenant_limit=2)
    await queue.put(job("b1", "blue"), tenant_limit=2)

    with pytest.raises(TenantQueueFull) as refusal:
        await queue.put(job("a3"), tenant_limit=2)

    assert (refusal.value.limit, refusal.value.depth, refusal.value.retry_after_ms) == (2, 2, 1_500)
    await take_one(queue)
    assert (await queue.put(job("a3"), tenant_limit=2)).position == 1


async def test_the_jobs_of_one_request_count_once_and_as_long_as_the_first_waits(queue: Queue) -> None:
    await queue.put(job("a1"), tenant_limit=1)
    await queue.put(job("a1-1", follows=True))
    await queue.put(job("a1-2", follows=True))
    before = await queue.waiting("acme")
    with pytest.raises(TenantQueueFull):
        await queue.put(job("a2"), tenant_limit=1)

    await take_one(queue)

    assert (before, await queue.waiting("acme")) == (1, 0)
    assert (await queue.put(job("a2"), tenant_limit=1)).position == 3
    for job_id in ("a1-1", "a1-2"):
        await queue.cancel(job_id)
    assert await queue.waiting("acme") == 1


async def test_depths_say_how_many_wait_and_since_when(queue: Queue, clock: Clock) -> None:
    await queue.put(job("a"))
    clock.advance(700)
    await queue.put(job("b"))

    assert await queue.depths() == {
        LaneName.LATENCY: LaneDepth(queued=2, oldest_wait_ms=700, queued_tokens=2 * len(job("a").prompt)),
        LaneName.THROUGHPUT: LaneDepth(queued=0, oldest_wait_ms=0),
    }


async def test_queued_tokens_are_those_of_the_prompts_that_wait(queue: Queue) -> None:
    for job_id in ("a", "b", "c"):
        await queue.put(job(job_id))
    each = len(job("a").prompt)

    await queue.cancel("b")
    after_cancel = (await queue.depths())[LaneName.LATENCY].queued_tokens
    await take_one(queue)

    assert after_cancel == 2 * each
    assert (await queue.depths())[LaneName.LATENCY].queued_tokens == each


async def test_what_a_tenant_has_waiting_is_counted_over_all_lanes(queue: Queue) -> None:
    await queue.put(job("a"))
    await queue.put(job("b", lane=LaneName.THROUGHPUT))
    await queue.put(job("c", "other"))
    await take_one(queue)

    assert [await queue.waiting(tenant) for tenant in ("acme", "other", "nobody")] == [1, 1, 0]


async def test_a_record_follows_its_job(queue: Queue) -> None:
    await queue.put(job("a", n=2))
    assert await queue.record("a") == JobRecord(
        state=JobState.QUEUED,
        outcome=None,
        generated=0,
        prompt_tokens=10,
        worker_id="",
        tenant="acme",
        lane=LaneName.LATENCY,
        gateway_id="gw",
        cancelled=False,
    )

    [lease] = await queue.take("w1", PLENTY)
    await queue.report("w1", [progress(lease, 2)])
    record = await queue.record("a")
    assert record is not None
    assert (record.state, record.worker_id, record.generated) == (JobState.LEASED, "w1", 2)

    await queue.report("w1", [progress(lease, ends=Outcome.FINISHED)])
    record = await queue.record("a")
    assert record is not None
    assert (record.state, record.outcome, record.worker_id) == (JobState.ENDED, Outcome.FINISHED, "w1")


async def test_nothing_is_known_of_a_job_that_was_never_put(queue: Queue) -> None:
    assert await queue.record("ghost") is None
    assert await queue.position("ghost") is None
    assert await queue.cancel("ghost") is None
    await queue.forget(["ghost"])


async def test_forget_drops_ended_jobs_and_returns_the_others(queue: Queue) -> None:
    await queue.put(job("ended"))
    await queue.cancel("ended")
    await queue.put(job("leased"))
    await taken(queue)
    await queue.put(job("queued"))

    assert await queue.forget(["ended", "leased", "queued", "unknown"]) == {"leased", "queued"}

    assert await queue.record("ended") is None
    assert await queue.record("leased") is not None
    assert await queue.position("queued") == 1


async def test_cancelling_a_waiting_job_ends_it_and_tells_its_gateway(queue: Queue) -> None:
    await queue.put(job("a"))
    await queue.put(job("b"))

    record = await queue.cancel("a")

    assert record is not None
    assert (record.state, record.outcome) == (JobState.ENDED, Outcome.CANCELLED)
    assert await queue.events("gw") == [Finished(job_id="a", epoch=0, outcome=Outcome.CANCELLED)]
    assert await taken(queue) == ["b"]


async def test_cancelling_a_leased_job_tells_its_holder_once(queue: Queue) -> None:
    await queue.put(job("a"))
    await take_one(queue)

    records = [await queue.cancel("a"), await queue.cancel("a")]

    assert records[0] == records[1]
    assert records[0] is not None
    assert records[0].cancelled
    assert records[0].state is JobState.LEASED
    assert await queue.controls("w1") == [Cancel(job_id="a")]
    assert await queue.events("gw") == []


async def test_a_cancelled_job_may_still_report_until_its_holder_ends_it(queue: Queue) -> None:
    await queue.put(job("a"))
    lease = await take_one(queue)
    await queue.cancel("a")

    assert await queue.report("w1", [progress(lease, 1, ends=Outcome.CANCELLED)]) == set()

    record = await queue.record("a")
    assert record is not None
    assert (record.outcome, record.generated) == (Outcome.CANCELLED, 1)


async def test_cancelling_an_ended_job_leaves_it_as_it_is(queue: Queue) -> None:
    await queue.put(job("a"))
    lease = await take_one(queue)
    await queue.report("w1", [progress(lease, ends=Outcome.FINISHED)])

    record = await queue.cancel("a")

    assert record is not None
    assert record.outcome is Outcome.FINISHED
    assert await queue.controls("w1") == []


async def test_a_job_expires_when_its_lanes_longest_wait_has_passed(queue: Queue, clock: Clock) -> None:
    await queue.put(job("a"))
    await queue.put(job("b", lane=LaneName.THROUGHPUT))
    await stay_alive(queue, clock, 59_000)
    assert await queue.position("a") == 1

    await stay_alive(queue, clock, 1_000)

    assert await queue.events("gw") == [Finished(job_id="a", epoch=0, outcome=Outcome.EXPIRED)]
    assert await taken(queue) == ["b"]


@pytest.mark.parametrize("stated", [{"deadline_ms": 2_000.0}, {"hard_ttft_ms": 2_000.0}])
async def test_a_job_expires_in_the_queue_at_its_stated_deadline(
    queue: Queue, clock: Clock, stated: dict[str, Any]
) -> None:
    await queue.put(job("a", **stated))
    clock.advance(1_999)
    assert await taken(queue, room()) == []
    assert await queue.position("a") == 1

    clock.advance(1)

    assert await taken(queue) == []
    assert await queue.events("gw") == [Finished(job_id="a", epoch=0, outcome=Outcome.EXPIRED)]


@pytest.mark.parametrize("stated", [{"deadline_ms": 90_000.0}, {"hard_ttft_ms": 90_000.0}])
async def test_a_stated_deadline_beyond_the_lanes_longest_wait_replaces_it(
    queue: Queue, clock: Clock, stated: dict[str, Any]
) -> None:
    await queue.put(job("patient", **stated))
    await queue.put(job("other"))

    await stay_alive(queue, clock, 89_000)
    assert await queue.position("patient") == 1
    assert await queue.position("other") is None

    await stay_alive(queue, clock, 1_000)
    assert await taken(queue) == []
    assert await queue.position("patient") is None


async def test_a_job_that_has_begun_no_longer_expires_by_its_age(queue: Queue, clock: Clock) -> None:
    await queue.put(job("a", hard_ttft_ms=2_000.0))
    lease = await take_one(queue)
    await queue.report("w1", [progress(lease, 1)])
    await stay_alive(queue, clock, 70_000, "w1")

    await queue.release("w1", ["a"])

    assert await taken(queue) == ["a"]


async def test_a_job_that_came_back_expires_by_the_end_that_it_states_alone(queue: Queue, clock: Clock) -> None:
    """Its worker may have died before a report, after its gateway had the first token. That gateway knows, and enforces
    the deadline of the first token."""
    for job_id, deadline_ms in (("a", None), ("b", 20_000.0)):
        await queue.put(job(job_id, hard_ttft_ms=2_000.0, deadline_ms=deadline_ms))
        await take_one(queue)
    await queue.release("w1", ["a", "b"])

    await stay_alive(queue, clock, 25_000, "w1")

    assert await taken(queue) == ["a"]
    assert [event.job_id for event in await queue.events("gw")] == ["b"]


async def test_the_jobs_of_a_silent_gateway_are_cancelled(queue: Queue, clock: Clock) -> None:
    await queue.put(job("waiting"))
    await queue.put(job("running", lane=LaneName.THROUGHPUT))
    await queue.put(job("others", "blue", gateway_id="gw2"))
    await taken(queue, room(throughput=1))

    await stay_alive(queue, clock, 3 * LEASE_MS, "w1", gateways=["gw2"])

    assert await queue.events("gw") == [Finished(job_id="waiting", epoch=0, outcome=Outcome.CANCELLED)]
    assert await queue.controls("w1") == [Cancel(job_id="running")]
    assert await queue.position("others") == 1


async def test_a_gateway_that_says_it_lives_keeps_its_jobs(queue: Queue, clock: Clock) -> None:
    await queue.put(job("a"))

    await stay_alive(queue, clock, 3 * LEASE_MS)

    assert await queue.position("a") == 1
