"""Who gets a new job: at once a worker that has room, else one that is called, and another where that one does not
come."""

import msgspec
import pytest

from fairlane.scheduler.planner.steps import Capacity, Yielding
from fairlane.scheduler.protocol.lanes import LaneName
from fairlane.scheduler.queue.prefix_affinity import prefix_keys
from fairlane.scheduler.queue.rooms import CALL_PATIENCE_MS, HANDED_PATIENCE_MS, ROOMS_PER_PUT
from fairlane.scheduler.queue.types import JobState, Put
from tests.support.scheduler.queues import LEASE_MS, PLENTY, Clock, Queue, job, lanes, room, stay_alive, take_one

pytestmark = pytest.mark.anyio

WORKERS = ("w1", "w2", "w3")
HUGE = 9
"""Choices of a job for which no worker of these tests has room."""


async def offer(queue: Queue, worker: str, capacity: Capacity) -> list[str]:
    """A worker's turn; returns the jobs that it gets."""
    return [lease.job.job_id for lease in (await queue.turn(worker, capacity)).leases]


async def all_offer(queue: Queue) -> None:
    for worker, kv_tokens in zip(WORKERS, (200, 300, 400), strict=True):
        await offer(queue, worker, room(latency=2, throughput=2, kv_tokens=kv_tokens))


async def given(queue: Queue) -> dict[str, list[str]]:
    """The jobs that workers were given since this was last called."""
    read = {worker: [lease.job.job_id for lease in await queue.given(worker)] for worker in WORKERS}
    return {worker: jobs for worker, jobs in read.items() if jobs}


async def called(queue: Queue) -> dict[str, list[str]]:
    """The jobs that workers were called for since this was last called."""
    read = {worker: await queue.calls(worker) for worker in WORKERS}
    return {worker: jobs for worker, jobs in read.items() if jobs}


def full(jobs: int = 1, tenant: str = "crowd") -> Capacity:
    """A worker without room, whose work in the latency lane would yield."""
    own = Yielding((tenant,), (), jobs, 4, 10_000)
    return Capacity({}, {}, max_sequences=8, pool_tokens=10_000, yielding={"latency": own})


async def test_a_new_job_is_leased_at_once_to_the_worker_with_the_most_room(queue: Queue) -> None:
    await all_offer(queue)

    assert await queue.put(job("a")) == Put(0, guaranteed=False, called="w3")

    assert (await given(queue), await called(queue)) == ({"w3": ["a"]}, {})
    record = await queue.record("a")
    assert record is not None
    assert (record.state, record.worker_id, record.epoch) == (JobState.LEASED, "w3", 1)


async def test_a_lease_from_the_stream_is_what_a_turn_returns(queue: Queue) -> None:
    await queue.put(job("waits"), waited_ms=70)
    [from_turn] = (await queue.turn("w1", room(latency=2))).leases

    await queue.put(job("handed"), waited_ms=70)

    [from_stream] = await queue.given("w1")
    assert from_stream == msgspec.structs.replace(from_turn, job=from_stream.job)
    assert from_stream.job == msgspec.structs.replace(from_turn.job, job_id="handed")


async def test_jobs_are_spread_over_what_rooms_have_left(queue: Queue) -> None:
    await all_offer(queue)
    prompt = tuple(range(100))

    puts = [await queue.put(job(f"f{number}", prompt=prompt, max_tokens=1)) for number in range(6)]

    assert [put.called for put in puts] == ["w3", "w2", "w3", "w1", "w2", "w1"]
    assert [put.position for put in puts] == [0, 0, 0, 0, 0, 1]
    assert await given(queue) == {"w1": ["f3"], "w2": ["f1", "f4"], "w3": ["f0", "f2"]}


async def test_a_turn_leaves_the_room_that_its_leases_do_not_need(queue: Queue) -> None:
    for name in "ab":
        await queue.put(job(name))
    assert await offer(queue, "w1", room(latency=3)) == ["a", "b"]

    assert [(await queue.put(job(name))).called for name in "cd"] == ["w1", ""]


async def test_where_no_room_fits_a_job_waits_for_room_to_grow(queue: Queue) -> None:
    await all_offer(queue)

    assert (await queue.put(job("a", n=3))).called == ""

    assert (await given(queue), await called(queue)) == ({}, {})
    assert await offer(queue, "w1", room(latency=3)) == ["a"]


async def test_a_worker_whose_room_may_have_grown_enough_is_asked(queue: Queue) -> None:
    await offer(queue, "w1", room(latency=8, kv_tokens=50, pool_tokens=1_000))

    assert (await queue.put(job("a", prompt=tuple(range(100))))).called == "w1"

    assert (await given(queue), await called(queue)) == ({}, {"w1": ["a"]})
    assert await offer(queue, "w1", room(latency=8, kv_tokens=500, pool_tokens=1_000)) == ["a"]


async def test_workers_that_know_that_jobs_wait_are_not_asked_about_their_growth(queue: Queue) -> None:
    little = room(latency=8, kv_tokens=50, pool_tokens=1_000)
    for worker in WORKERS:
        await offer(queue, worker, little)
    turns = 0

    for name in "abcd":
        await queue.put(job(name, prompt=tuple(range(100))))
        while calls := await called(queue):
            for worker, jobs in calls.items():
                turns += 1
                assert (await queue.turn(worker, little, called=jobs)).jobs_wait

    assert turns == len(WORKERS), "each of them once"
    for worker in WORKERS[1:]:
        await offer(queue, worker, room())
    assert await offer(queue, "w1", room(latency=8)) == ["a", "b", "c", "d"]
    assert not (await queue.turn("w1", little)).jobs_wait
    assert (await queue.put(job("e", prompt=tuple(range(100))))).called == "w1", "it would not ask by itself"


async def test_no_worker_is_called_to_yield_to_a_job_that_it_could_never_run(queue: Queue) -> None:
    yielding = {"latency": Yielding(("crowd",), (), 1, 4, 10_000)}
    await queue.turn("w1", Capacity({}, {}, max_sequences=8, pool_tokens=1_000, yielding=yielding))
    for worker, unreached in (("w2", ()), ("w3", ["gw"])):
        full = Capacity({}, {}, max_sequences=8, pool_tokens=50, yielding=yielding)
        await queue.turn(worker, full, unreached=unreached)

    assert (await queue.put(job("long", max_tokens=900))).called == "w1"
    assert (await queue.put(job("short", max_tokens=2))).called == "w2", "although a later name comes first"
    assert (await queue.put(job("next", max_tokens=2))).called == ""


async def test_a_worker_that_could_never_end_a_job_does_not_get_it(queue: Queue) -> None:
    await offer(queue, "w1", room(latency=8, kv_tokens=1_000, pool_tokens=1_000))
    await offer(queue, "w2", room(latency=1, kv_tokens=50))

    assert (await queue.put(job("long", max_tokens=2_000))).called == "w2"


async def test_the_room_of_the_jobs_own_lane_counts(queue: Queue) -> None:
    await offer(queue, "w1", room(latency=0, throughput=1))
    await offer(queue, "w2", room(latency=1, throughput=0))

    assert (await queue.put(job("chat"))).called == "w2"
    assert (await queue.put(job("batch", lane=LaneName.THROUGHPUT))).called == "w1"


async def test_what_a_lane_gets_is_gone_for_the_lanes_below(queue: Queue) -> None:
    await offer(queue, "w1", room(latency=1, throughput=1))

    assert (await queue.put(job("chat"))).called == "w1"
    assert (await queue.put(job("batch", lane=LaneName.THROUGHPUT))).called == ""


async def test_a_preferred_worker_that_has_room_comes_first(queue: Queue) -> None:
    first, again = (job(name, prompt=tuple(range(300))) for name in "ab")
    await offer(queue, "w1", room(latency=1))
    await queue.put(first, prefixes=prefix_keys(first))
    for worker, kv_tokens in (("w1", 500), ("w2", 10_000)):
        await offer(queue, worker, room(latency=1, kv_tokens=kv_tokens))

    put = await queue.put(again, prefixes=prefix_keys(again))

    assert (put.preferred, put.called) == ("w1", "w1")


async def test_a_new_job_does_not_pass_one_that_waits(queue: Queue) -> None:
    await queue.put(job("elder", n=HUGE))
    await all_offer(queue)

    assert await queue.put(job("a", tenant="other")) == Put(1, guaranteed=False, called="w3")

    assert (await given(queue), await called(queue)) == ({}, {"w3": ["a"]})
    assert (await queue.put(job("b"))).called == "w2", "and a called worker is not called again before it answers"


async def test_work_of_a_lower_lane_does_not_hold_a_new_job_up(queue: Queue) -> None:
    await queue.put(job("elder", lane=LaneName.THROUGHPUT, n=HUGE))
    await all_offer(queue)

    assert await queue.put(job("a")) == Put(0, guaranteed=False, called="w3")


async def test_work_that_is_about_to_be_promoted_does(queue: Queue, clock: Clock) -> None:
    await queue.put(job("elder", lane=LaneName.THROUGHPUT, n=HUGE))
    clock.advance(int(lanes()[LaneName.THROUGHPUT].long_wait_ms))
    await all_offer(queue)

    assert await queue.put(job("a")) == Put(1, guaranteed=False, called="w3")


async def test_a_full_worker_whose_work_may_yield_is_called(queue: Queue) -> None:
    await offer(queue, "w1", room())
    await offer(queue, "w2", full())

    assert await queue.put(job("a")) == Put(1, guaranteed=False, called="w2")

    assert await called(queue) == {"w2": ["a"]}
    assert (await queue.put(job("b"))).called == ""


async def test_a_job_that_a_called_worker_left_calls_another(queue: Queue) -> None:
    await queue.put(job("elder", n=HUGE))
    await all_offer(queue)
    assert (await queue.put(job("a"))).called == "w3"

    turn = await queue.turn("w3", room(), called=["a", "unknown"])

    assert turn.leases == []
    assert await called(queue) == {"w3": ["a"], "w2": ["a"]}


async def test_a_job_is_passed_on_a_bounded_number_of_times(queue: Queue, clock: Clock) -> None:
    await queue.put(job("elder", n=HUGE))
    await all_offer(queue)
    await queue.put(job("a"))
    calls = 0
    for _ in range(4 * ROOMS_PER_PUT):
        for worker, jobs in (await called(queue)).items():
            calls += len(jobs)
            await queue.turn(worker, full(jobs=0, tenant="acme"), called=jobs)

    assert calls == 1 + ROOMS_PER_PUT


async def test_a_job_that_comes_back_calls_a_worker(queue: Queue) -> None:
    await queue.put(job("a"))
    await take_one(queue, "w1")
    await all_offer(queue)

    await queue.release("w1", ["a"])

    assert await called(queue) == {"w3": ["a"]}
    assert await offer(queue, "w3", PLENTY) == ["a"]


async def test_a_dead_workers_jobs_call_others_and_its_stream_is_gone(queue: Queue, clock: Clock) -> None:
    await offer(queue, "w1", room(latency=1))
    await queue.put(job("a"))
    await offer(queue, "w2", room(latency=1))

    assert await stay_alive(queue, clock, 2 * LEASE_MS, "w2") == 1

    assert await called(queue) == {"w2": ["a"]}
    assert await queue.given("w1") == []


async def test_a_gateway_watches_until_a_called_worker_comes(queue: Queue, clock: Clock) -> None:
    await queue.put(job("elder", n=HUGE))
    await all_offer(queue)
    await queue.put(job("a"))
    assert await called(queue) == {"w3": ["a"]}

    assert await queue.rouse(["a"]) == {"a"}, "it was called just now"
    assert await called(queue) == {}
    clock.advance(CALL_PATIENCE_MS)
    assert await queue.rouse(["a"]) == {"a"}
    assert await called(queue) == {"w2": ["a"]}
    clock.advance(CALL_PATIENCE_MS)
    assert await queue.rouse(["a"]) == {"a"}
    clock.advance(CALL_PATIENCE_MS)

    assert await queue.rouse(["a", "elder"]) == set(), "no worker is left that has room"


async def test_a_worker_that_does_not_start_what_it_was_given_loses_it(queue: Queue, clock: Clock) -> None:
    await all_offer(queue)
    await queue.put(job("a"))
    clock.advance(HANDED_PATIENCE_MS - 1)
    assert await queue.rouse(["a"]) == {"a"}
    assert await queue.position("a") is None

    clock.advance(1)
    assert await queue.rouse(["a"]) == {"a"}

    assert (await queue.position("a"), await called(queue)) == (1, {"w2": ["a"]})
    assert await given(queue) == {}, "the worker that was too late does not start it either"
    [lease] = (await queue.turn("w2", room(latency=1))).leases
    assert (lease.job.job_id, lease.epoch, lease.started) == ("a", 3, True)
    assert (await queue.put(job("b"))).called == "w1", "and it gets no other before its next turn"


async def test_a_job_from_before_the_clock_went_back_is_late_at_once(queue: Queue, clock: Clock) -> None:
    await all_offer(queue)
    await queue.put(job("a"))

    clock.advance(-3_600_000)

    assert await queue.rouse(["a"]) == {"a"}
    assert await called(queue) == {"w2": ["a"]}


async def test_a_leased_job_that_a_worker_took_is_left_to_it(queue: Queue, clock: Clock) -> None:
    await queue.put(job("a"))
    await take_one(queue, "w1")
    clock.advance(10 * HANDED_PATIENCE_MS)

    assert await queue.rouse(["a", "unknown"]) == set()
    assert await queue.position("a") is None


async def test_a_worker_gets_no_job_of_a_gateway_that_it_cannot_reach(queue: Queue) -> None:
    await queue.turn("w3", room(latency=2, throughput=2, kv_tokens=400), unreached=["gw"])
    await offer(queue, "w2", room(latency=2, throughput=2, kv_tokens=300))

    assert (await queue.put(job("new"))).called == "w2", "although it has less room"
    assert (await queue.put(job("other", gateway_id="gw2"))).called == "w3"
    await queue.put(job("waits", n=2))
    assert await called(queue) == {"w2": ["waits"]}, "although it has fewer rows"
    turn = await queue.turn("w3", PLENTY, unreached=["gw"])

    assert turn.leases == []
    assert await offer(queue, "w3", PLENTY) == ["waits"], "it reaches the gateway again"


async def test_a_job_returned_by_a_worker_out_of_reach_goes_to_another(queue: Queue) -> None:
    await offer(queue, "w1", room(latency=2))
    await queue.put(job("a"))
    await queue.put(job("behind", gateway_id="gw2", n=2))
    await queue.turn("w1", room(latency=1), unreached=["gw"])
    await queue.release("w1", ["a"])
    assert await called(queue) == {"w1": ["behind"]}, "no other worker has room"

    turn = await queue.turn("w1", room(latency=2), unreached=["gw"])

    assert [lease.job.job_id for lease in turn.leases] == ["behind"]
    assert await offer(queue, "w2", room(latency=1)) == ["a"]


async def test_a_worker_that_retires_gets_no_new_job(queue: Queue) -> None:
    await all_offer(queue)

    await queue.retire("w3")

    assert (await queue.put(job("a"))).called == "w2"


async def test_a_worker_whose_lease_lapsed_gets_none(queue: Queue, clock: Clock) -> None:
    await all_offer(queue)

    await stay_alive(queue, clock, LEASE_MS, "w1")

    assert (await queue.put(job("a"))).called == "w1"


async def test_a_worker_that_lost_its_jobs_offers_nothing_before_it_knows(queue: Queue, clock: Clock) -> None:
    await queue.put(job("a"))
    await take_one(queue, "w1")
    await stay_alive(queue, clock, 2 * LEASE_MS)
    await offer(queue, "w1", PLENTY)

    assert (await queue.put(job("b"))).called == ""

    assert not await queue.renew("w1")
    assert await offer(queue, "w1", room(latency=4)) == ["a", "b"]
    assert (await queue.put(job("c"))).called == "w1"


async def test_a_job_that_is_put_again_names_the_worker_that_has_it(queue: Queue) -> None:
    await all_offer(queue)

    assert await queue.put(job("a")) == await queue.put(job("a"))
    assert await given(queue) == {"w3": ["a"]}
