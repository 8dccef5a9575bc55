"""One job goes to one idle worker, and to another where that one does not start it."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest
import redis.asyncio

from fairlane.gateway.pipeline.admission import AllOpenRequests
from fairlane.gateway.pipeline.delivery import Dispatcher, QueueConnections
from fairlane.scheduler.protocol.lanes import DEFAULT_LANES
from fairlane.scheduler.queue.redis_queue import RedisQueue
from tests.support.gateway import one_request
from tests.support.scheduler.queues import PLENTY
from tests.support.worker.scripted import job
from tests.support.worker.serving import QUEUE, gateway, working

pytestmark = pytest.mark.anyio

WORKERS = 24
LEASE_S = 60.0
"""So long that no heartbeat asks for jobs while a test runs."""


@pytest.fixture
async def store(valkey_url: str) -> AsyncIterator[redis.asyncio.Redis]:
    async with redis.asyncio.from_url(valkey_url, socket_timeout=None) as client:
        yield client


async def registered(store: redis.asyncio.Redis, workers: int) -> None:
    """Wait until so many workers have asked for jobs and said what room they have."""
    while await store.hlen(f"fl:{{{QUEUE}}}:rooms") != workers:
        pass


class NoReclaim(RedisQueue):
    """The real queue, on which `reclaim` does nothing."""

    async def reclaim(self) -> int:
        return 0


async def test_one_job_costs_one_turn_however_many_workers_idle(valkey_url: str, store: redis.asyncio.Redis) -> None:
    async with gateway(valkey_url, lease_s=LEASE_S) as listener, AsyncExitStack() as stack:
        workers = [
            await stack.enter_async_context(working(valkey_url, lease_s=LEASE_S, worker_id=f"w{number}"))
            for number in range(WORKERS)
        ]
        await registered(store, WORKERS)
        costs = []

        for number in range(
            4
        ):  # each worker also asks once when it has first renewed its lease, perhaps not before now
            before = sum(worker.queue.takes for worker in workers)
            await listener.queue.put(job(f"job-{number}", max_tokens=3))
            await listener.record_of_end(f"job-{number}")
            costs.append(sum(worker.queue.takes for worker in workers) - before)

        assert min(costs) <= 1, costs


async def test_a_job_that_was_given_to_a_dead_worker_goes_to_another(
    valkey_url: str, store: redis.asyncio.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fairlane.scheduler.queue.rooms.HANDED_PATIENCE_MS", 50)
    async with gateway(valkey_url, lease_s=LEASE_S) as listener, working(valkey_url, lease_s=LEASE_S) as worker:
        await registered(store, 1)
        await listener.queue.turn("dead", PLENTY)
        queue = NoReclaim(store, QUEUE, DEFAULT_LANES, lease_ms=int(LEASE_S * 1e3))
        dispatcher = Dispatcher(
            "other", lambda _: QueueConnections(queue, queue, no_close), AllOpenRequests(DEFAULT_LANES), kept_s=1.0
        )

        put = await dispatcher.queue(QUEUE).put(listener.registered(job()))
        assert put.called == "dead"
        asked_for = one_request.job("job")
        asked_for.queue = QUEUE
        dispatcher.register(asked_for)
        dispatcher.watch(asked_for)
        await listener.ended("job")

        await dispatcher.aclose()
        record = await listener.queue.record("job")
        assert record is not None
        assert record.worker_id == worker.worker_id


async def test_a_worker_that_drains_gets_no_more(valkey_url: str, store: redis.asyncio.Redis) -> None:
    async with gateway(valkey_url, lease_s=LEASE_S) as listener, working(valkey_url, lease_s=LEASE_S) as worker:
        await registered(store, 1)
        worker.server.lifecycle.drain()
        await registered(store, 0)

        assert (await listener.queue.put(job())).called == ""
        worker.server.lifecycle.undrain()
        await listener.ended("job")


async def no_close() -> None:
    pass
