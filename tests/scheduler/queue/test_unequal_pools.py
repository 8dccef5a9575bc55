"""Workers of unequal pools at one queue: nobody is given what could not end there, and what has grown goes on."""

from typing import Any

import pytest

from fairlane.scheduler.protocol.lanes import LaneName
from fairlane.scheduler.queue.types import LOOKS_PER_TAKE, TENANTS_PER_TAKE
from tests.support.scheduler.queues import Clock, Queue, job, progress, room, stay_alive, taken

pytestmark = pytest.mark.anyio
BATCH = LaneName.THROUGHPUT


async def test_a_job_goes_to_a_worker_whose_pool_holds_all_that_it_can_grow_to(queue: Queue) -> None:
    await queue.put(job("long", max_tokens=200))
    await queue.put(job("short", "other", max_tokens=90))

    small = await taken(queue, room(latency=8, kv_tokens=100, pool_tokens=100), "small")
    assert await taken(queue, room(latency=8, kv_tokens=209, pool_tokens=209), "almost") == []
    large = await taken(queue, room(latency=8, kv_tokens=210, pool_tokens=210), "large")

    assert (small, large) == (["short"], ["long"])


async def test_a_job_with_more_choices_than_a_worker_has_rows_goes_elsewhere(queue: Queue) -> None:
    await queue.put(job("wide", n=4))

    assert await taken(queue, room(latency=3, max_sequences=3), "narrow") == []
    assert await taken(queue, room(latency=4, max_sequences=4), "wide enough") == ["wide"]


async def test_a_taken_over_stream_goes_to_a_worker_that_can_end_it(queue: Queue) -> None:
    """It could start in the small pool, and would have to be broken off there."""
    await queue.put(job("stream", max_tokens=500))
    [lease] = await queue.take("large", room(latency=1))
    await queue.report("large", [progress(lease, 3)])
    await queue.release("large", ["stream"])

    assert await taken(queue, room(latency=8, kv_tokens=300, pool_tokens=300), "small") == []
    [again] = await queue.take("other large", room(latency=1))
    assert again.started


async def test_what_has_grown_beyond_a_pool_goes_on_in_an_empty_one(queue: Queue) -> None:
    """Its choices run there in turns; together they have more tokens than the pool holds."""
    await queue.put(job("many", n=4, max_tokens=60))
    [lease] = await queue.take("first", room(latency=4, kv_tokens=100, pool_tokens=100))
    await queue.report("first", [progress(lease, 4 * 30)])
    await queue.release("first", ["many"])

    assert await taken(queue, room(latency=4, kv_tokens=99, pool_tokens=100), "busy") == []
    assert await taken(queue, room(latency=4, kv_tokens=100, pool_tokens=100), "empty") == ["many"]


async def test_room_does_not_gather_where_the_job_could_never_end(queue: Queue, clock: Clock) -> None:
    await queue.put(job("long", "t1", max_tokens=500))
    clock.advance(1_000)
    await queue.put(job("late", "t2"))

    assert await taken(queue, room(latency=4, kv_tokens=200, pool_tokens=200), "small worker") == ["late"]


async def test_a_job_that_nobody_here_holds_lets_others_pass_until_its_time_is_over(queue: Queue, clock: Clock) -> None:
    await queue.put(job("long", "t1", max_tokens=500))
    await queue.put(job("batch", "t1", BATCH))
    small = room(latency=8, throughput=8, kv_tokens=200, pool_tokens=200)

    assert await taken(queue, small, "small") == ["batch"]
    await stay_alive(queue, clock, 61_000, "small")
    assert await queue.position("long") is None


@pytest.mark.parametrize("tenants", [1, 32])
@pytest.mark.parametrize("wide", [{"n": 8}, {"max_tokens": 5_000}], ids=["choices", "tokens"])
async def test_a_tenants_job_does_not_wait_behind_its_own_that_could_never_end_here(
    queue: Queue, tenants: int, wide: dict[str, Any]
) -> None:
    for tenant in range(tenants):
        for number in range(LOOKS_PER_TAKE // tenants - 1):
            await queue.put(job(f"wide {tenant} {number}", f"t{tenant}", ttft_ms=500.0, **wide))
        await queue.put(job(f"fits {tenant:02}", f"t{tenant}"))
    small = room(latency=1, kv_tokens=1_000, max_sequences=4, pool_tokens=1_000)

    given = [await taken(queue, small) for _ in range(tenants)]

    assert given == [[f"fits {tenant:02}"] for tenant in range(tenants)]


async def test_what_could_end_here_is_found_behind_returned_work_that_could_not(queue: Queue) -> None:
    for number in range(20):
        await queue.put(job(f"wide {number:02}", n=8, ttft_ms=500.0))
    await queue.put(job("fits"))
    held = await taken(queue, room(latency=161), "large")
    await queue.release("large", held)

    assert await taken(queue, room(latency=4), "small") == ["fits"]
    assert await taken(queue, room(latency=8), "large") == ["wide 00"]


@pytest.mark.parametrize("kind", ["guaranteed", "elder"])
async def test_what_goes_first_whosever_it_is_does_not_wait_behind_what_could_never_end_here(
    queue: Queue, clock: Clock, kind: str
) -> None:
    """Its tenant is the one served most, so that no head of its is compared."""
    promised: dict[str, Any] = {"hard_ttft_ms": 900.0, "guaranteed": True} if kind == "guaranteed" else {}
    await queue.put(job("had", "greedy", prompt=tuple(range(4_000))))
    assert await taken(queue) == ["had"]
    for number in range(TENANTS_PER_TAKE):
        await queue.put(job(f"plain {number}", f"t{number}", n=8))
    for number in range(20):
        await queue.put(job(f"a wide one {number}", "greedy", n=8, **promised))
    await queue.put(job("fits", "greedy", **promised))
    if kind == "elder":
        await stay_alive(queue, clock, 31_000, "w1")

    assert await taken(queue, room(latency=4), "small") == ["fits"]
