"""The store is killed and comes back; the queue goes on where it was."""

import asyncio
import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis.asyncio
from redis.exceptions import ConnectionError as StoreGoneError

from fairlane.cli.embedded_store import EmbeddedStore, valkey_binary
from fairlane.scheduler.protocol.lanes import DEFAULT_LANES, LaneName
from fairlane.scheduler.protocol.messages import Outcome
from fairlane.scheduler.queue.types import JobState
from tests.support.scheduler.queues import (
    LEASE_MS,
    PLENTY,
    Clock,
    StoredQueue,
    TakingQueue,
    job,
    progress,
    room,
    stay_alive,
)

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["valkey", "redis_server"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[EmbeddedStore]:
    """A store of this test's own, to be killed; every answer of it is on disk."""
    request.getfixturevalue(request.param)  # skips, or fails, where it is not installed
    binary = valkey_binary() if request.param == "valkey" else shutil.which("redis-server")
    store = EmbeddedStore(tmp_path, binary=binary)
    store.start()
    yield store
    store.stop()


@pytest.fixture
async def client(server: EmbeddedStore) -> AsyncIterator[redis.asyncio.Redis]:
    client = redis.asyncio.from_url(server.url)
    await client.config_set("appendfsync", "always")
    yield client
    await client.aclose()


@pytest.fixture
def queue(client: redis.asyncio.Redis, clock: Clock) -> StoredQueue:
    return StoredQueue(client, DEFAULT_LANES, lease_ms=LEASE_MS, window=4096.0, clock=clock)


def kill(server: EmbeddedStore) -> None:
    server.process.kill()
    server.process.wait()


async def restart(server: EmbeddedStore, client: redis.asyncio.Redis) -> None:
    """Kill the store and start it on what it left behind."""
    kill(server)
    await asyncio.to_thread(server.start)
    await client.connection_pool.disconnect()


async def test_a_killed_store_keeps_queue_leases_epochs_and_streams(
    server: EmbeddedStore, client: redis.asyncio.Redis, queue: StoredQueue
) -> None:
    await queue.put(job("running", deadline_ms=90_000.0))
    [lease] = await queue.take("w1", PLENTY)
    await queue.report("w1", [progress(lease, 1, cost=500.0)])
    await queue.put(job("waiting"))
    await queue.put(job("batch", lane=LaneName.THROUGHPUT))
    await queue.cancel("batch")
    last_id, before = await queue.read_events("gw", "0-0", 0)
    await queue.put(job("chat"))
    await queue.cancel("chat")
    await queue.report("w1", [progress(lease, 2)])

    await restart(server, client)

    _, missed = await queue.read_events("gw", last_id, 0)
    assert [[event.job_id for event in events] for events in (before, missed)] == [["batch"], ["chat"]]
    assert await queue.renew("w1", holding=["running"])
    assert await queue.report("w1", [progress(lease, 3, ends=Outcome.FINISHED)]) == set()
    assert [taken.job.job_id for taken in await queue.take("w1", PLENTY)] == ["waiting"]
    record = await queue.record("batch")
    assert record is not None
    assert record.outcome is Outcome.CANCELLED
    running = await queue.record("running")
    assert running is not None
    assert (running.outcome, running.generated) == (Outcome.FINISHED, 3)


async def test_a_stale_epoch_stays_stale_over_a_restart(
    server: EmbeddedStore, client: redis.asyncio.Redis, queue: StoredQueue
) -> None:
    await queue.put(job("a"))
    [old] = await queue.take("w1", PLENTY)
    await queue.release("w1", ["a"])
    [new] = await queue.take("w2", PLENTY)

    await restart(server, client)

    assert await queue.report("w1", [progress(old, 1)]) == {"a"}
    assert await queue.report("w2", [progress(new, 1)]) == set()


async def test_after_a_long_outage_the_living_keep_their_jobs_and_the_dead_lose_theirs(
    server: EmbeddedStore, client: redis.asyncio.Redis, queue: StoredQueue, clock: Clock
) -> None:
    for job_id in ("kept", "lost"):
        await queue.put(job(job_id))
    await queue.take("living", room(latency=1))
    await queue.take("dead", room(latency=1))
    await queue.reclaim()

    clock.advance(20 * LEASE_MS)
    await restart(server, client)

    assert await queue.reclaim() == 0
    assert await stay_alive(queue, clock, LEASE_MS + 1_000, "living") == 1
    kept, lost = await queue.record("kept"), await queue.record("lost")
    assert kept is not None
    assert lost is not None
    assert (kept.state, lost.state) == (JobState.LEASED, JobState.QUEUED)


async def test_reports_over_a_killed_store_are_each_counted_once(
    server: EmbeddedStore, client: redis.asyncio.Redis
) -> None:
    queue = TakingQueue(client, "model@1", DEFAULT_LANES)
    await queue.put(job("a"))
    [lease] = await queue.take("w1", PLENTY)
    halfway = asyncio.Event()

    async def report() -> None:
        for index in range(100):
            items = [progress(lease, index + 1, cost=9.0, ends=Outcome.FINISHED if index == 99 else None)]
            if index == 50:
                halfway.set()
            assert await _insist(queue.report, "w1", items, serial=queue.new_serial()) == set()

    reporting = asyncio.create_task(report())
    await halfway.wait()
    kill(server)
    await asyncio.to_thread(server.start)
    await reporting

    record = await queue.record("a")
    assert record is not None
    assert (record.generated, record.outcome) == (100, Outcome.FINISHED)
    assert await client.zscore("fl:{model@1}:counters:latency", "acme") == 900.0


async def _insist(call: Any, *args: Any, **options: Any) -> object:
    """Repeat until an answer comes, as a worker does."""
    while True:
        try:
            return await call(*args, **options)
        except StoreGoneError:
            await asyncio.sleep(0)  # lets the other task start the store
