"""The streams of the queue in Redis: what gateways and workers hear, how they go on, and what bounds it."""

import asyncio

import pytest
import redis.asyncio

from fairlane.scheduler.protocol.lanes import DEFAULT_LANES
from fairlane.scheduler.protocol.messages import Cancel, Event, Grant, TokenDelta
from fairlane.scheduler.queue.prefix_affinity import AFFINITY_GENERATION_MS, prefix_keys
from fairlane.scheduler.queue.redis_queue import TRIM_EVERY, RedisQueue
from fairlane.scheduler.queue.types import Wake
from tests.support.scheduler.queues import PLENTY, job, tokens

pytestmark = pytest.mark.anyio


@pytest.fixture
def queue(store: redis.asyncio.Redis) -> RedisQueue:
    return RedisQueue(store, "model@1", DEFAULT_LANES)


def deltas(events: list[Event]) -> list[int]:
    return [token for event in events if isinstance(event, TokenDelta) for token in event.token_ids]


async def test_a_gateway_that_reads_on_from_its_last_id_misses_nothing(queue: RedisQueue) -> None:
    await queue.put(job("a"))
    [lease] = await queue.take("w1", PLENTY)
    last_id, seen = "0-0", list[int]()

    for index in range(20):
        await queue.publish("gw", "w1", [tokens(lease, index, first=index)])
        if index % 3 == 0:
            last_id, events = await queue.read_events("gw", last_id, 0)
            seen += deltas(events)
    _, events = await queue.read_events("gw", last_id, 0)

    assert seen + deltas(events) == list(range(20))


async def test_reading_waits_for_events(queue: RedisQueue, store: redis.asyncio.Redis) -> None:
    await queue.put(job("a"))
    [lease] = await queue.take("w1", PLENTY)

    reading = asyncio.create_task(queue.read_events("gw", "0-0", 2_000))
    while not (await store.info("clients"))["blocked_clients"]:
        assert not reading.done()
    await queue.publish("gw", "w1", [tokens(lease, 5)])

    assert deltas((await reading)[1]) == [5]


async def test_reading_from_now_on_loses_nothing_between_two_reads(queue: RedisQueue) -> None:
    await queue.put(job("a"))
    [lease] = await queue.take("w1", PLENTY)
    await queue.publish("gw", "w1", [tokens(lease, 5)])

    last_id, events = await queue.read_events("gw", "$", 0)
    assert events == []
    await queue.publish("gw", "w1", [tokens(lease, 6, first=1)])

    assert deltas((await queue.read_events("gw", last_id, 0))[1]) == [6]


async def test_one_step_is_one_entry_for_each_gateway(queue: RedisQueue, store: redis.asyncio.Redis) -> None:
    for job_id in "abcdef":
        await queue.put(job(job_id))
    leases = await queue.take("w1", PLENTY)

    await queue.publish("gw", "w1", [tokens(lease, 1) for lease in leases])

    assert await store.xlen("fl:{model@1}:events:gw") == 1


async def test_a_step_that_says_nothing_wakes_no_gateway(queue: RedisQueue, store: redis.asyncio.Redis) -> None:
    await queue.put(job("a"))
    [lease] = await queue.take("w1", PLENTY)

    await queue.publish("gw", "w1", [tokens(lease, cost=512.0)])

    assert not await store.exists("fl:{model@1}:events:gw")


async def test_what_a_gateway_has_dealt_with_is_dropped(queue: RedisQueue, store: redis.asyncio.Redis) -> None:
    await queue.put(job("a"))
    [lease] = await queue.take("w1", PLENTY)
    last_id = "0-0"
    for index in range(TRIM_EVERY + 1):
        await queue.publish("gw", "w1", [tokens(lease, index, first=index)])
        last_id, events = await queue.read_events("gw", last_id, 0)
        assert deltas(events) == [index]

    assert await store.xlen("fl:{model@1}:events:gw") <= 3


async def test_a_stream_that_nobody_reads_is_bounded(
    store: redis.asyncio.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fairlane.scheduler.queue.keys.STREAM_LENGTH", 100)
    queue = RedisQueue(store, "model@1", DEFAULT_LANES)
    await queue.put(job("a"))
    [lease] = await queue.take("w1", PLENTY)

    for index in range(500):
        await queue.publish("gw", "w1", [tokens(lease, index, first=index)])
        await queue.grant("a", 1_000 + index)

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
    await queue.put(job("a", granted_until=5))
    await queue.take("w1", PLENTY)
    await queue.grant("a", 10)
    last_id, first, _ = await queue.read_control("w1", "0-0", 0)
    await queue.cancel("a")

    _, second, _ = await queue.read_control("w1", last_id, 0)

    assert first + second == [Grant(job_id="a", granted_until=10), Cancel(job_id="a")]
