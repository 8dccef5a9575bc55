"""The streams of the queue in Redis: what gateways and workers hear, how they go on, and what bounds it."""

import asyncio

import pytest
import redis.asyncio

from fairlane.scheduler.protocol.lanes import DEFAULT_LANES
from fairlane.scheduler.protocol.messages import Cancel, Finished, Outcome
from fairlane.scheduler.queue.prefix_affinity import AFFINITY_GENERATION_MS, prefix_keys
from fairlane.scheduler.queue.redis_queue import TRIM_EVERY
from tests.support.scheduler.queues import PLENTY, TakingQueue, job, progress, room

pytestmark = pytest.mark.anyio


@pytest.fixture
def queue(store: redis.asyncio.Redis) -> TakingQueue:
    return TakingQueue(store, "model@1", DEFAULT_LANES)


async def end(queue: TakingQueue, job_id: str) -> None:
    """End a job by the store itself, so that its gateway is informed."""
    await queue.put(job(job_id))
    await queue.cancel(job_id)


def ended(events: list[Finished]) -> list[str]:
    return [event.job_id for event in events]


async def test_a_gateway_that_reads_on_from_its_last_id_misses_nothing(queue: TakingQueue) -> None:
    last_id, seen, names = "0-0", list[str](), [f"f{index}" for index in range(20)]

    for index, name in enumerate(names):
        await end(queue, name)
        if index % 3 == 0:
            last_id, events = await queue.read_events("gw", last_id, 0)
            seen += ended(events)
    _, events = await queue.read_events("gw", last_id, 0)

    assert seen + ended(events) == names


async def test_reading_waits_for_events(queue: TakingQueue, store: redis.asyncio.Redis) -> None:
    reading = asyncio.create_task(queue.read_events("gw", "0-0", 2_000))
    while not (await store.info("clients"))["blocked_clients"]:
        assert not reading.done()
    await end(queue, "a")

    assert ended((await reading)[1]) == ["a"]


async def test_reading_from_now_on_loses_nothing_between_two_reads(queue: TakingQueue) -> None:
    await end(queue, "before")

    last_id, events = await queue.read_events("gw", "$", 0)
    assert events == []
    await end(queue, "after")

    assert ended((await queue.read_events("gw", last_id, 0))[1]) == ["after"]


async def test_a_report_wakes_no_gateway(queue: TakingQueue, store: redis.asyncio.Redis) -> None:
    await queue.put(job("a"))
    [lease] = await queue.take("w1", PLENTY)

    await queue.report("w1", [progress(lease, 7, cost=512.0)])
    await queue.report("w1", [progress(lease, 8, ends=Outcome.FINISHED)])

    assert not await store.exists("fl:{model@1}:events:gw")


async def test_what_a_gateway_has_dealt_with_is_dropped(queue: TakingQueue, store: redis.asyncio.Redis) -> None:
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
    queue = TakingQueue(store, "model@1", DEFAULT_LANES)

    for index in range(250):
        await end(queue, f"ended {index}")
        await queue.put(job(f"stopped {index}"))
        await queue.take("w1", PLENTY)
        await queue.cancel(f"stopped {index}")

    assert await store.xlen("fl:{model@1}:events:gw") < 250  # whole nodes of a hundred entries go at once
    assert await store.xlen("fl:{model@1}:control:w1") < 250
    assert await store.pttl("fl:{model@1}:events:gw") > 3_500_000


async def test_a_worker_reads_what_it_was_given_and_called_for(queue: TakingQueue) -> None:
    news = await queue.read_news("w1", "$", 0)
    assert news[1:] == ([], [], [])

    await queue.turn("w1", PLENTY)
    await queue.put(job("a"))
    await queue.release("w1", ["a"])
    news = await queue.read_news("w1", news.last_id, 0)
    assert ([lease.job.job_id for lease in news.leases], news.calls) == (["a"], [])
    await queue.put(job("elder", n=1_001))
    await queue.turn("w1", room())
    await queue.turn("w1", room(latency=2))
    await queue.put(job("b"))
    news = await queue.read_news("w1", news.last_id, 0)
    assert (news.leases, news.calls) == ([], ["b"])

    assert (await queue.read_news("w1", news.last_id, 0))[1:] == ([], [], [])


async def test_a_blocked_read_ends_with_a_lease(queue: TakingQueue) -> None:
    await queue.turn("w1", PLENTY)
    reading = asyncio.create_task(queue.read_news("w1", "$", 2_000))
    await asyncio.sleep(0)

    await queue.put(job("a"))

    assert [lease.job.job_id for lease in (await reading).leases or (await queue.read_news("w1", "0-0", 0)).leases] == [
        "a"
    ]


async def test_prompts_leave_the_stream_of_leases_with_the_next_turn(
    queue: TakingQueue, store: redis.asyncio.Redis
) -> None:
    await queue.turn("w1", PLENTY)
    await queue.put(job("a"))
    news = await queue.read_news("w1", "0-0", 0)
    await queue.put(job("b"))

    await queue.turn("w1", PLENTY, last_id=news.last_id)

    assert [lease.job.job_id for lease in (await queue.read_news("w1", "0-0", 0)).leases] == ["b"]
    assert 0 < await store.pttl("fl:{model@1}:leases:w1") <= 3_600_000


async def test_prefix_affinities_expire(queue: TakingQueue, store: redis.asyncio.Redis) -> None:
    await queue.put(job("a", prompt=tuple(range(300))), prefixes=prefix_keys(job("a", prompt=tuple(range(300)))))
    await queue.take("w1", PLENTY)

    [homes] = await store.keys("fl:{model@1}:homes:*")
    assert 0 < await store.pttl(homes) <= 2 * AFFINITY_GENERATION_MS


async def test_commands_reach_the_holder_in_order(queue: TakingQueue) -> None:
    for name in "ab":
        await queue.put(job(name))
    await queue.take("w1", PLENTY)
    await queue.cancel("b")
    first = await queue.read_news("w1", "0-0", 0)
    await queue.cancel("a")

    second = await queue.read_news("w1", first.last_id, 0)

    assert first.controls + second.controls == [Cancel(job_id="b"), Cancel(job_id="a")]
