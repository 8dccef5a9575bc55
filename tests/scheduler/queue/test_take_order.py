"""Which job a worker gets next: (owed, lane, returned, outside Θ, class, urgency, counter, due,
job_id)."""

import pytest

from fairlane.scheduler.planner.steps import Capacity
from fairlane.scheduler.protocol.lanes import LaneName
from fairlane.scheduler.protocol.messages import Outcome
from fairlane.scheduler.queue.types import TENANTS_PER_TAKE
from tests.scheduler.conftest import MakeQueue
from tests.support.scheduler.queues import Clock, Queue, job, lanes, progress, room, stay_alive, take_one, taken

pytestmark = pytest.mark.anyio

BATCH = LaneName.THROUGHPUT


async def serve(queue: Queue, count: int, worker_id: str = "w1") -> list[str]:
    """Take latency jobs one at a time and finish each at once for what its taking was charged; the tenants in order."""
    tenants = []
    for _ in range(count):
        lease = await take_one(queue, worker_id)
        tenants.append(lease.job.tenant)
        cost = len(lease.job.prompt) + 128.0
        await queue.report(worker_id, [progress(lease, cost=cost, ends=Outcome.FINISHED)])
    return tenants


async def test_the_latency_lane_goes_first(queue: Queue) -> None:
    await queue.put(job("a", lane=BATCH))
    await queue.put(job("b"))

    assert await taken(queue) == ["b", "a"]


async def test_ties_are_broken_by_flight_id(queue: Queue) -> None:
    for job_id, tenant in (("d", "t9"), ("b", "t1"), ("a", "t2"), ("c", "t0"), ("B", "t3"), ("a1", "t4")):
        await queue.put(job(job_id, tenant))

    assert await taken(queue) == ["d", "B", "a", "a1", "b", "c"], "the first waited before the others came''"


async def test_the_earlier_due_goes_first(queue: Queue) -> None:
    await queue.put(job("patient", "t1"))
    await queue.put(job("pressed", "t2", prompt=tuple(range(100)), ttft_ms=900.0))

    assert await taken(queue) == ["pressed", "patient"]


async def test_the_shorter_goes_first_where_its_time_is_known(queue: Queue) -> None:
    await queue.put(job("long", "t1", prompt=tuple(range(100))))
    await queue.put(job("short", "t2", ttft_ms=1_100.0))

    assert await taken(queue, room(latency=9, prefill_ms=5.0)) == ["short", "long"]


async def test_what_is_too_late_gives_way_to_what_can_be_in_time(queue: Queue) -> None:
    await queue.put(job("late", "t1", prompt=tuple(range(100)), ttft_ms=100.0))
    await queue.put(job("promised", "t2", prompt=tuple(range(100)), ttft_ms=100.0, guaranteed=True))
    await queue.put(job("in time", "t3", prompt=tuple(range(900))))

    assert await taken(queue, room(latency=9, prefill_ms=1.1)) == ["promised", "in time", "late"]


async def test_of_what_is_too_late_that_of_the_least_served_goes_first(queue: Queue) -> None:
    await queue.put(job("first", "t1"))
    await queue.put(job("other", "t2", ttft_ms=90_000.0))
    assert await taken(queue, room(latency=1)) == ["first"]
    await queue.put(job("short", "t1", prompt=tuple(range(100)), ttft_ms=90.0))
    await queue.put(job("long", "t2", prompt=tuple(range(300)), ttft_ms=100.0))

    assert await taken(queue, room(latency=3, prefill_ms=1.1)) == ["long", "other", "short"]


async def test_what_is_too_late_gives_way_for_half_its_lanes_longest_wait(queue: Queue, clock: Clock) -> None:
    await queue.put(job("late", "t1", ttft_ms=1.0))
    await stay_alive(queue, clock, 29_000)
    await queue.put(job("young", "t2"))
    known = room(latency=1, prefill_ms=1.0)
    assert await taken(queue, known) == ["young"]

    await stay_alive(queue, clock, 1_000)
    await queue.put(job("younger", "t3"))

    assert await taken(queue, known) == ["late"]


@pytest.mark.parametrize(("prefill_ms", "expected"), [(0.0, ["sooner", "later"]), (1.0, ["later", "sooner"])])
async def test_a_deadline_known_to_be_far_off_leaves_it_to_the_counters(
    queue: Queue, prefill_ms: float, expected: list[str]
) -> None:
    await queue.put(job("first", "t1"))
    await queue.put(job("sooner", "t1", ttft_ms=10_000.0))
    await queue.put(job("later", "t2", ttft_ms=90_000.0))
    assert await taken(queue, room(latency=1)) == ["first"]

    assert await taken(queue, room(latency=2, prefill_ms=prefill_ms)) == expected


async def test_guaranteed_work_goes_before_best_effort(queue: Queue) -> None:
    await queue.put(job("pressed", "t1", ttft_ms=10.0))
    await queue.put(job("promised", "t2", guaranteed=True))

    assert await taken(queue) == ["promised", "pressed"]


async def test_a_tenants_guaranteed_work_goes_before_its_best_effort_that_is_due_earlier(queue: Queue) -> None:
    await queue.put(job("plain", ttft_ms=100.0))
    await queue.put(job("promised", hard_ttft_ms=2_000.0, guaranteed=True))

    assert await queue.position("promised") == 1
    assert await taken(queue) == ["promised", "plain"]


async def test_guaranteed_work_of_a_tenant_outside_its_window_goes_before_best_effort(make_queue: MakeQueue) -> None:
    """However many are served less: its tenant is not among those whose heads are compared."""
    queue = make_queue(window=300.0)
    await queue.put(job("a", "greedy", prompt=tuple(range(1_000))))
    for number in range(TENANTS_PER_TAKE + 1):
        await queue.put(job(f"early {number}", f"t{number}"))
    assert (await take_one(queue)).job.job_id == "a"
    await queue.put(job("promised", "greedy", hard_ttft_ms=900.0, guaranteed=True))

    assert (await take_one(queue)).job.job_id == "promised"


async def test_what_came_back_goes_before_guaranteed_work(queue: Queue) -> None:
    await queue.put(job("plain"))
    await queue.release("w1", [lease.job.job_id for lease in await queue.take("w1", room(latency=1))])
    await queue.put(job("promised", guaranteed=True))

    assert await taken(queue) == ["plain", "promised"]


async def test_a_stated_end_counts_from_when_its_first_token_must_come(queue: Queue) -> None:
    """100 tokens at the door's pace of 90 ms: of the 9.5 s until its end, 0.5 s are left for the first."""
    await queue.put(job("first", hard_ttft_ms=800.0, guaranteed=True))
    await queue.put(job("end", deadline_ms=9_500.0, ttft_ms=60_000.0, pace_ms=90.0, guaranteed=True))

    assert await taken(queue) == ["end", "first"]


async def test_of_guaranteed_work_what_may_be_late_goes_first(queue: Queue) -> None:
    await queue.put(job("calm", "t1", prompt=tuple(range(100)), ttft_ms=900.0, guaranteed=True))
    await queue.put(job("pressed", "t2", prompt=tuple(range(100)), ttft_ms=100.0, guaranteed=True))

    assert await taken(queue, room(latency=9, prefill_ms=1.1)) == ["pressed", "calm"]


async def test_backlogged_tenants_are_served_alike(make_queue: MakeQueue) -> None:
    queue = make_queue(window=100.0)
    for index in range(12):
        await queue.put(job(f"a{index:02}", "flood"))
    for index in range(4):
        await queue.put(job(f"b{index:02}", "calm"))

    assert sorted(await serve(queue, 8)) == ["calm"] * 4 + ["flood"] * 4


async def test_weights_divide_the_service(make_queue: MakeQueue) -> None:
    queue = make_queue(window=100.0)
    for index in range(12):
        await queue.put(job(f"a{index:02}", "heavy", weight=3.0))
        await queue.put(job(f"b{index:02}", "light"))

    served = await serve(queue, 12)

    assert 8 <= served.count("heavy") <= 10


async def test_within_the_window_urgency_decides(make_queue: MakeQueue) -> None:
    queue = make_queue(window=1_000.0)
    for index in range(4):
        await queue.put(job(f"a{index}", "pressed", ttft_ms=100.0))
        await queue.put(job(f"b{index}", "patient"))

    assert await serve(queue, 4) == ["pressed"] * 4


async def test_a_newcomer_does_not_have_to_be_given_what_it_missed(make_queue: MakeQueue) -> None:
    queue = make_queue(window=100.0)
    for index in range(20):
        await queue.put(job(f"a{index:02}", "old"))
    await serve(queue, 6)

    for index in range(20):
        await queue.put(job(f"b{index:02}", "new"))

    assert 3 <= (await serve(queue, 8)).count("new") <= 5


async def test_who_had_the_lane_alone_does_not_wait_for_it_afterwards(make_queue: MakeQueue) -> None:
    queue = make_queue(window=100.0)
    for index in range(6):
        await queue.put(job(f"a{index}", "alone"))
    await serve(queue, 6)

    for index in range(8):
        await queue.put(job(f"b{index}", "new"))
        await queue.put(job(f"c{index}", "alone"))

    assert 3 <= (await serve(queue, 8)).count("alone") <= 5


async def test_a_flood_in_one_lane_does_not_count_in_the_other(make_queue: MakeQueue) -> None:
    queue = make_queue(window=100.0)
    for index in range(8):
        await queue.put(job(f"flood{index}", "acme", BATCH))
    await taken(queue, room(throughput=8))

    await queue.put(job("a", "acme"))
    await queue.put(job("b", "blue"))

    assert await taken(queue) == ["a", "b"]


async def test_computed_cost_is_charged_beyond_what_taking_was(make_queue: MakeQueue) -> None:
    queue = make_queue(window=1_000.0)
    for index in range(3):
        await queue.put(job(f"a{index}", "dear", ttft_ms=100.0))
        await queue.put(job(f"b{index}", "cheap"))
    both = [*await queue.take("w1", room(latency=1)), *await queue.take("w1", room(latency=1, kv_tokens=11))]
    assert {lease.job.tenant for lease in both} == {"dear"}

    await queue.report("w1", [progress(lease, cost=600.0) for lease in both])

    assert await taken(queue, room(latency=2)) == ["b0", "b1"]  # 1,200 tokens are more than the window


async def test_what_was_charged_in_advance_and_not_computed_comes_back(make_queue: MakeQueue) -> None:
    queue = make_queue(window=50.0)
    for index in range(4):
        await queue.put(job(f"a{index}", "a"))
        await queue.put(job(f"b{index}", "b"))
    both = await queue.take("w1", room(latency=2))
    assert [lease.job.job_id for lease in both] == ["a0", "b0"]
    costs = {"a0": 0.0, "b0": 200.0}
    await queue.report("w1", [progress(each, cost=costs[each.job.job_id], ends=Outcome.FINISHED) for each in both])

    assert await taken(queue, room(latency=2)) == ["a1", "a2"]


async def test_what_does_not_fit_is_passed_over(queue: Queue) -> None:
    await queue.put(job("wide", "t1", n=8, ttft_ms=100.0))
    await queue.put(job("long", "t2", prompt=tuple(range(500)), ttft_ms=100.0))
    await queue.put(job("small", "t3"))

    assert await taken(queue, room(latency=4, kv_tokens=200)) == ["small"]
    assert await taken(queue, room(latency=8, kv_tokens=500)) == ["wide"]
    assert await taken(queue, room(latency=1, kv_tokens=500)) == []
    assert await taken(queue, room(latency=1, kv_tokens=501)) == ["long"]


async def test_a_tenants_small_jobs_do_not_pass_its_own_large_one(queue: Queue) -> None:
    await queue.put(job("large", n=8, ttft_ms=500.0))
    await queue.put(job("small"))

    assert await taken(queue, room(latency=4, max_sequences=8)) == []


async def test_what_one_lane_takes_is_gone_for_the_lanes_below(queue: Queue) -> None:
    await queue.put(job("a1"))
    await queue.put(job("a2"))
    for index in range(3):
        await queue.put(job(f"b{index}", lane=BATCH))

    assert await taken(queue, room(latency=4, throughput=3)) == ["a1", "a2", "b0"]


async def test_nothing_is_taken_from_a_lane_without_room(queue: Queue) -> None:
    await queue.put(job("a", lane=BATCH))

    assert await taken(queue, room(latency=8)) == []
    assert await taken(queue, Capacity(sequences={}, kv_tokens={})) == []


async def test_the_heads_of_the_32_least_served_are_compared_for_each_job(queue: Queue) -> None:
    for index in range(39):
        await queue.put(job(f"f{index:02}", f"t{index:02}"))
    await queue.put(job("pressed", "t39", ttft_ms=10.0))

    job_ids = await taken(queue)
    while more := await taken(queue):
        job_ids += more

    assert job_ids[:9] == [*(f"f{index:02}" for index in range(8)), "pressed"]
    assert len(job_ids) == 40


async def test_of_what_came_back_the_first_8_are_compared_for_each_job(queue: Queue) -> None:
    for index in range(12):
        await queue.put(job(f"f{index:02}", f"t{index:02}", n=8 if index < 7 else 1))
    await queue.release("w1", await taken(queue))

    assert await taken(queue, room(latency=7)) == [f"f{index:02}" for index in range(7, 12)]


async def test_the_share_floor_lets_the_lower_lane_through(queue: Queue) -> None:
    await queue.put(job("batch", lane=BATCH))
    prompt = tuple(range(1_000))
    for index in range(6):
        await queue.put(job(f"chat{index}", prompt=prompt))

    order = [await taken(queue, room(latency=1, throughput=1)) for _ in range(6)]

    assert order[:3] == [["chat0"], ["chat1"], ["chat2"]]  # 5 % of three times 1,128 tokens pays for its 138
    assert order[3] == ["batch", "chat3"]


async def test_a_lane_pays_nothing_back_for_what_it_had_before_anybody_of_it_waited(queue: Queue) -> None:
    for index in range(40):
        await queue.put(job(f"batch{index:02}", lane=BATCH))
        await taken(queue)  # nobody else asks: some 5,000 tokens beyond its share
    await queue.put(job("newcomer", "other", lane=BATCH))
    prompt = tuple(range(1_000))
    for index in range(6):
        await queue.put(job(f"chat{index}", prompt=prompt))

    order = [await taken(queue, room(latency=1, throughput=1)) for _ in range(4)]

    assert order == [["chat0"], ["chat1"], ["chat2"], ["newcomer", "chat3"]]


async def test_of_tenants_that_were_served_alike_the_first_due_goes_first(queue: Queue, clock: Clock) -> None:
    for job_id, tenant in (("z", "t1"), ("m", "t2"), ("a", "t3")):
        await queue.put(job(job_id, tenant, BATCH, ttft_ms=600_000.0))
        clock.advance(10)

    assert await taken(queue, room(throughput=9, prefill_ms=1.0)) == ["z", "m", "a"], "with plenty of time"


async def test_a_lane_that_holds_all_rows_keeps_nobody_of_the_lanes_above_waiting(queue: Queue) -> None:
    """It is behind its share floor, and no row is free for it: its own jobs hold them."""
    for index in range(2):
        await queue.put(job(f"batch{index}", lane=BATCH))
    for index in range(6):
        await queue.put(job(f"chat{index}", prompt=tuple(range(1_000))))
        await taken(queue, room(latency=1))
    await queue.put(job("waits"))

    assert await taken(queue, room(latency=2, throughput=0, max_sequences=2)) == ["waits"]


async def test_a_lane_gets_no_more_than_its_floor_out_of_turn(queue: Queue) -> None:
    for index in range(40):
        await queue.put(job(f"chat{index:02}"))
        await queue.put(job(f"batch{index:02}", lane=BATCH))

    order = [job_id for _ in range(38) for job_id in await taken(queue, room(latency=1, throughput=1))]

    assert sum(job_id.startswith("batch") for job_id in order) == 1  # one in twenty


async def test_long_waiting_work_is_promoted_one_lane(make_queue: MakeQueue, clock: Clock) -> None:
    queue = make_queue(lanes(throughput={"max_wait_ms": 40_000.0, "share_floor": 0.0}))
    await queue.put(job("old", lane=BATCH, ttft_ms=10_000.0))
    await stay_alive(queue, clock, 19_000)
    await queue.put(job("young", "blue"))
    assert await queue.position("old") == 1
    assert await taken(queue, room(latency=1, throughput=1)) == ["young"]

    await stay_alive(queue, clock, 1_000)
    await queue.put(job("younger", "blue"))

    assert await taken(queue, room(latency=1, throughput=1)) == ["old", "younger"]


async def test_promotion_does_not_depend_on_being_its_tenants_head(make_queue: MakeQueue, clock: Clock) -> None:
    queue = make_queue(lanes(throughput={"max_wait_ms": 40_000.0, "share_floor": 0.0}))
    await queue.put(job("old", lane=BATCH, ttft_ms=30_000.0))
    await stay_alive(queue, clock, 21_000)
    await queue.put(job("head", lane=BATCH, ttft_ms=1_000.0))
    await queue.put(job("chat", "blue", ttft_ms=60_000.0))

    assert await taken(queue) == ["old", "chat", "head"]


async def test_room_gathers_for_a_job_that_is_due(queue: Queue, clock: Clock) -> None:
    await queue.put(job("wide", "t1", n=8))
    await queue.put(job("early", "t2"))
    assert await taken(queue, room(latency=4, max_sequences=8)) == ["early"]

    clock.advance(1_000)
    await queue.put(job("late", "t2"))

    assert await taken(queue, room(latency=4, max_sequences=8)) == []
    assert await taken(queue, room(latency=8)) == ["wide"]


async def test_room_does_not_gather_where_the_job_could_never_fit(queue: Queue, clock: Clock) -> None:
    await queue.put(job("wide", "t1", n=8))
    clock.advance(1_000)
    await queue.put(job("late", "t2"))

    assert await taken(queue, room(latency=4), "small worker") == ["late"]


async def test_gathering_in_one_lane_does_not_hold_up_the_others(queue: Queue, clock: Clock) -> None:
    await queue.put(job("wide", "t1", n=8))
    clock.advance(1_000)
    await queue.put(job("late", "t2"))
    await queue.put(job("batch", "t2", BATCH))

    assert await taken(queue, room(latency=4, throughput=4, max_sequences=8)) == ["batch"]


async def test_of_many_tenants_with_one_request_each_none_waits_for_ever_for_its_name(queue: Queue) -> None:
    for number in range(TENANTS_PER_TAKE + 8):
        await queue.put(job(f"old-{number:02}", f"tenant-{99 - number}"))

    order = []
    for number in range(3 * TENANTS_PER_TAKE):
        await queue.put(job(f"new-{number:02}", f"earlier-name-{number}"))
        order += await taken(queue, room(latency=1))

    assert order.count("old-00") == 1
    assert sum(job_id.startswith("old") for job_id in order) == TENANTS_PER_TAKE + 8


async def test_what_has_waited_long_goes_first_however_many_tenants_wait(make_queue: MakeQueue, clock: Clock) -> None:
    queue = make_queue(lanes(latency={"max_wait_ms": 40_000.0}))
    await queue.put(job("early", "t0"))
    await queue.put(job("paid", "regular", ttft_ms=500.0))
    assert await serve(queue, 1) == ["regular"]  # so all who come now start before it
    for number in range(TENANTS_PER_TAKE + 8):
        await queue.put(job(f"new-{number:02}", f"t{number}"))
    await queue.put(job("old", "regular"))
    await stay_alive(queue, clock, 21_000)
    await queue.cancel("early")
    for number in range(TENANTS_PER_TAKE + 8):
        await queue.cancel(f"new-{number:02}")
        await queue.put(job(f"newer-{number:02}", f"u{number}"))

    assert await taken(queue, room(latency=1)) == ["old"]
