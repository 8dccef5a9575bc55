"""The streams of the queue in Redis: what gateways and workers hear, how they go on, and what bounds it."""

import asyncio

import pytest
import redis.asyncio

from fairlane.scheduler.protocol.lanes import DEFAULT_LANES
from fairlane.scheduler.protocol.messages import Cancel, Finished, Outcome
from fairlane.scheduler.queue.prefix_affinity import AFFINITY_GENERATION_MS, prefix_keys
from fairlane.scheduler.queue.redis_queue import TRIM_EVERY, RedisQueue
from fairlane.scheduler.queue.types import Wake
from tests.support.scheduler.queues import PLENTY, job, progress

pytestmark = pytest.mark.anyio


@pytest.fixture
def queue(store: redis.asyncio.Redis) -> RedisQueue:
    return RedisQueue(store, "model@1", DEFAULT_LANES)


async def end(queue: RedisQueue, job_id: str) -> None:
    """End a job by the store itself, so that its gateway is informed."""
    await queue.put(job(job_id))
    await queue.cancel(job_id)


def ended(events: list[Finished]) -> list[str]:
    return [event.job_id for event in events]


async def test_a_gateway_that_reads_on_from_its_last_id_misses_nothing(queue: RedisQueue) -> None:
    last_id, seen, names = "0-0", list[str](), [f"f{index}" for index in range(20)]

    for index, name in enumerate(names):
        await end(queue, name)
        if index % 3 == 0:
            last_id, events = await queue.read_events("gw", last_id, 0)
            seen += ended(events)
    _, events = await queue.read_events("gw", last_id, 0)

    assert seen + ended(events) == names


async def test_reading_waits_for_events(queue: RedisQueue, store: redis.asyncio.Redis) -> None:
    reading = asyncio.create_task(queue.read_events("gw", "0-0", 2_000))
    while not (await store.info("clients"))["blocked_clients"]:
        assert not reading.done()
    await end(queue, "a")

    assert ended((await reading)[1]) == ["a"]


async def test_reading_from_now_on_loses_nothing_between_two_reads(queue: RedisQueue) -> None:
    await end(queue, "before")

    last_id, events = await queue.read_events("gw", "$", 0)
    assert events == []
    await end(queue, "after")

    assert ended((await queue.read_events("gw", last_id, 0))[1]) == ["after"]


async def test_a_report_wakes_no_gateway(queue: RedisQueue, store: redis.asyncio.Redis) -> None:
    await queue.put(job("a"))
    [lease] = await queue.take("w1", PLENTY)

    await queue.report("w1", [progress(lease, 7, cost=512.0)])
    await queue.report("w1", [progress(lease, 8, ends=Outcome.FINISHED)])

    assert not await store.exists("fl:{model@1}:events:gw")


async def test_what_a_gateway_has_dealt_with_is_dropped(queue: RedisQueue, store: redis.asyncio.Redis) -> None:
    last_id = "0-0"
    for index in range(TRIM_EVERY + 1):
        await end(queue, f"f{index}")
        last_id, events = await queue.read_events("gw", last_id, 0)
        assert ended(events) == [f"f{index}"]

    assert await store.xlen("fl:{model@1}:events:gw") <= 3


async def test_a_stream_that_nobody_reads_is_bounded(
    store: redis.asyncio.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fairlane.scheduler.queue.keys.STREAM_LENGTH", 100)
    queue = RedisQueue(store, "model@1", DEFAULT_LANES)

    for index in range(250):
        await end(queue, f"ended {index}")
        await queue.put(job(f"stopped {index}"))
        await queue.take("w1", PLENTY)
        await queue.cancel(f"stopped {index}")

    assert await store.xlen("fl:{model@1}:events:gw") < 250  # whole nodes of a hundred entries go at once
    assert await store.xlen("fl:{model@1}:control:w1") < 250
    assert await store.pttl("fl:{model@1}:events:gw") > 3_500_000


async def test_a_worker_is_woken_when_a_job_comes(queue: RedisQueue) -> None:
    last_id, controls, woken = await queue.read_control("w1", "$", 0)
    assert (controls, woken) == ([], Wake.NOTHING)

    await queue.put(job("a"))
    last_id, controls, woken = await queue.read_control("w1", last_id, 0)
    assert (controls, woken) == ([], Wake.NOW)

    assert (await queue.read_control("w1", last_id, 0))[1:] == ([], Wake.NOTHING)


async def test_a_worker_is_woken_when_jobs_come_back(queue: RedisQueue) -> None:
    await queue.put(job("a"))
    await queue.take("w1", PLENTY)
    last_id, _, _ = await queue.read_control("w2", "$", 0)

    await queue.release("w1", ["a"])

    assert (await queue.read_control("w2", last_id, 2_000))[2]


async def test_a_jobs_home_is_told_to_ask_now_and_others_later(queue: RedisQueue, store: redis.asyncio.Redis) -> None:
    first, again = (job(name, prompt=tuple(range(300))) for name in "ab")
    await queue.put(first, prefixes=prefix_keys(first))
    await queue.take("w1", PLENTY)
    heard = {worker: (await queue.read_control(worker, "$", 0))[0] for worker in ("w1", "w2")}

    await queue.put(again, prefixes=prefix_keys(again))

    wakes = {worker: (await queue.read_control(worker, last_id, 0))[2] for worker, last_id in heard.items()}
    assert wakes == {"w1": Wake.NOW, "w2": Wake.LATER}
    [homes] = await store.keys("fl:{model@1}:homes:*")
    assert 0 < await store.pttl(homes) <= 2 * AFFINITY_GENERATION_MS


async def test_wake_ups_do_not_pile_up(queue: RedisQueue, store: redis.asyncio.Redis) -> None:
    for index in range(50):
        await queue.put(job(f"f{index}"))

    assert await store.xlen("fl:{model@1}:wake") == 1


async def test_commands_reach_the_holder_in_order(queue: RedisQueue) -> None:
    for name in "ab":
        await queue.put(job(name))
    await queue.take("w1", PLENTY)
    await queue.cancel("b")
    last_id, first, _ = await queue.read_control("w1", "0-0", 0)
    await queue.cancel("a")

    _, second, _ = await queue.read_control("w1", last_id, 0)

    assert first + second == [Cancel(job_id="b"), Cancel(job_id="a")]
