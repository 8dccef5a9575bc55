"""Who is called for a new job: one worker that has room, and others only where that one does not come for it."""

import pytest

from fairlane.scheduler.planner.steps import Capacity
from fairlane.scheduler.protocol.lanes import LaneName
from fairlane.scheduler.queue.prefix_affinity import prefix_keys
from fairlane.scheduler.queue.rooms import CALL_PATIENCE_MS
from fairlane.scheduler.queue.types import Wake
from tests.support.scheduler.queues import LEASE_MS, Clock, Queue, job, room, stay_alive, taken

pytestmark = pytest.mark.anyio

WORKERS = ("w1", "w2", "w3")


async def offer(queue: Queue, worker: str, capacity: Capacity) -> None:
    """This worker finds nothing that it could start, and hears of nothing so far."""
    assert await taken(queue, capacity, worker) == []
    await queue.wake(worker)


async def heard(queue: Queue) -> dict[str, Wake]:
    """Who was woken since this was last asked."""
    wakes = {worker: await queue.wake(worker) for worker in WORKERS}
    return {worker: wake for worker, wake in wakes.items() if wake}


async def all_offer(queue: Queue) -> None:
    for worker, kv_tokens in zip(WORKERS, (200, 300, 400), strict=True):
        await offer(queue, worker, room(latency=2, throughput=2, kv_tokens=kv_tokens))


ALL = dict.fromkeys(WORKERS, Wake.NOW)


async def test_one_worker_with_the_most_room_is_called(queue: Queue) -> None:
    await all_offer(queue)

    assert (await queue.put(job("a"))).called == "w3"

    assert await heard(queue) == {"w3": Wake.CALLED}


async def test_jobs_are_spread_over_what_rooms_have_left_and_each_worker_is_called_once(queue: Queue) -> None:
    await all_offer(queue)
    prompt = tuple(range(100))

    called = [(await queue.put(job(f"f{number}", prompt=prompt, max_tokens=1))).called for number in range(6)]

    assert called == ["w3", "w2", "w3", "w1", "w2", ""]
    assert await heard(queue) == dict.fromkeys(WORKERS, Wake.CALLED)


async def test_where_no_room_fits_every_worker_is_woken(queue: Queue) -> None:
    await all_offer(queue)

    assert (await queue.put(job("a", n=3))).called == ""

    assert await heard(queue) == ALL


async def test_a_worker_that_could_never_end_a_job_is_not_called_for_it(queue: Queue) -> None:
    await offer(queue, "w1", room(latency=8, kv_tokens=1_000, pool_tokens=1_000))
    await offer(queue, "w2", room(latency=1, kv_tokens=50))

    assert (await queue.put(job("long", max_tokens=2_000))).called == "w2"


async def test_the_room_of_the_jobs_own_lane_counts(queue: Queue) -> None:
    await offer(queue, "w1", room(latency=0, throughput=1))
    await offer(queue, "w2", room(latency=1, throughput=0))

    assert (await queue.put(job("chat"))).called == "w2"
    assert (await queue.put(job("batch", lane=LaneName.THROUGHPUT))).called == "w1"


async def test_what_a_lane_is_called_for_is_gone_for_the_lanes_below(queue: Queue) -> None:
    await offer(queue, "w1", room(latency=1, throughput=1))

    assert (await queue.put(job("chat"))).called == "w1"
    assert (await queue.put(job("batch", lane=LaneName.THROUGHPUT))).called == ""


async def test_a_home_that_has_room_is_called_first(queue: Queue) -> None:
    first, again = (job(name, prompt=tuple(range(300))) for name in "ab")
    await queue.put(first, prefixes=prefix_keys(first))
    await queue.take("w1", room(latency=1))
    for worker, kv_tokens in (("w1", 500), ("w2", 10_000)):
        await offer(queue, worker, room(latency=1, kv_tokens=kv_tokens))

    put = await queue.put(again, prefixes=prefix_keys(again))

    assert (put.preferred, put.called) == ("w1", "w1")


async def test_a_worker_that_takes_is_called_no_more_until_it_finds_nothing(queue: Queue) -> None:
    await offer(queue, "w1", room(latency=2))
    await queue.put(job("a"))
    assert await taken(queue, room(latency=2), "w1") == ["a"]

    assert (await queue.put(job("b"))).called == ""
    assert await taken(queue, room(latency=1), "w1") == ["b"]
    await offer(queue, "w1", room(latency=1))
    assert (await queue.put(job("c"))).called == "w1"


async def test_a_job_that_its_worker_left_passes_on_to_another_that_is_still_to_take(queue: Queue) -> None:
    await all_offer(queue)
    assert (await queue.put(job("later", prompt=tuple(range(150)), ttft_ms=5_000.0))).called == "w3"
    assert (await queue.put(job("sooner", prompt=tuple(range(250))))).called == "w2"
    await heard(queue)

    assert await taken(queue, room(latency=1), "w3") == ["sooner"]
    assert await heard(queue) == {}, "w2 takes what is left"
    assert await taken(queue, room(latency=1), "w2") == ["later"]
    assert await heard(queue) == {}


async def test_a_job_that_all_called_workers_left_wakes_every_worker(queue: Queue) -> None:
    await all_offer(queue)
    await queue.put(job("a"))
    await heard(queue)

    assert await taken(queue, room(), "w3") == [], "its room is gone"

    assert await heard(queue) == ALL


async def test_a_worker_that_does_not_come_is_waited_for_a_fraction_of_a_second(queue: Queue, clock: Clock) -> None:
    await all_offer(queue)
    await queue.put(job("a"))
    await heard(queue)

    clock.advance(CALL_PATIENCE_MS - 1)
    assert await queue.rouse() == 1
    assert await heard(queue) == {}
    clock.advance(1)
    assert await queue.rouse() == 0

    assert await heard(queue) == ALL
    assert (await queue.put(job("b"))).called == "w2", "and it is not called again"


async def test_a_call_from_before_the_clock_went_back_is_late_at_once(queue: Queue, clock: Clock) -> None:
    await all_offer(queue)
    await queue.put(job("a"))
    await heard(queue)

    clock.advance(-3_600_000)

    assert await queue.rouse() == 0
    assert await heard(queue) == ALL


async def test_calls_that_were_answered_wake_nobody(queue: Queue, clock: Clock) -> None:
    await all_offer(queue)
    await queue.put(job("a"))
    await heard(queue)
    assert await taken(queue, room(latency=1), "w3") == ["a"]

    clock.advance(10 * CALL_PATIENCE_MS)

    assert await queue.rouse() == 0
    assert await heard(queue) == {}


async def test_reclaim_gives_up_on_a_worker_too(queue: Queue, clock: Clock) -> None:
    """Where the gateway that put the job does not ask any more."""
    await all_offer(queue)
    await queue.put(job("a"))
    await heard(queue)

    await stay_alive(queue, clock, 1_000, *WORKERS)

    assert await heard(queue) == ALL


async def test_a_worker_that_retires_is_not_called_and_leaves_its_jobs_to_all(queue: Queue) -> None:
    await all_offer(queue)
    await queue.retire("w2")
    await queue.put(job("a"))
    await heard(queue)

    await queue.retire("w3")

    assert await heard(queue) == ALL
    assert (await queue.put(job("b"))).called == "w1"


async def test_a_worker_whose_lease_lapsed_is_not_called(queue: Queue, clock: Clock) -> None:
    await all_offer(queue)

    await stay_alive(queue, clock, LEASE_MS, "w1")

    assert (await queue.put(job("a"))).called == "w1"


async def test_a_job_that_is_put_again_names_the_worker_that_was_called(queue: Queue) -> None:
    await all_offer(queue)

    assert await queue.put(job("a")) == await queue.put(job("a"))
    assert await heard(queue) == {"w3": Wake.CALLED}
