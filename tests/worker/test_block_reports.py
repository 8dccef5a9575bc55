"""Whose the KV blocks are, as a worker tells it: the map only while somebody watches."""

import asyncio

import pytest

from fairlane.scheduler.protocol.block_map import BlockMap
from fairlane.scheduler.queue import registry
from tests.support.worker.scripted import ScriptedRunner, job
from tests.support.worker.serving import LIMIT_S, QUEUE, Worker, gateway, working

pytestmark = pytest.mark.anyio


async def shown(worker: Worker) -> BlockMap:
    """The map, once there is one."""
    async with asyncio.timeout(LIMIT_S):
        while True:
            for found in await worker.registry.blocks([worker.worker_id]):
                return found
            worker.runner.allow()  # it is asked between two steps
            await asyncio.sleep(0.1)


async def test_a_worker_that_is_watched_tells_whose_its_blocks_are(valkey_url: str) -> None:
    async with gateway(valkey_url) as listener, working(valkey_url, runner=ScriptedRunner(gated=True)) as worker:
        await worker.status()
        assert await worker.registry.blocks([worker.worker_id]) == []
        await listener.queue.put(job(max_tokens=40))
        worker.runner.allow()
        await listener.until(lambda: listener.count("job") == 1)
        await worker.registry.watch_blocks(QUEUE, worker.worker_id, 10_000)
        found = await shown(worker)

    assert found.worker == worker.worker_id
    assert found.tenants == ("tenant",)
    sizes = worker.thread._engine.planner.pool_sizes
    assert (found.blocks, found.block_size, found.host_blocks) == (sizes.blocks, sizes.block_size, sizes.host_slots)
    running = [run for run in found.runs if found.states[run[3]] == "running"]
    assert running
    assert all((found.tenants[tenant], found.lanes[lane]) == ("tenant", "latency") for _, tenant, lane, _ in running)


async def test_the_map_goes_when_nobody_watches_any_more(valkey_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "BLOCKS_TTL_MS", 3_000)
    async with working(valkey_url) as worker:
        await worker.status()
        await worker.registry.watch_blocks(QUEUE, worker.worker_id, 500)
        await shown(worker)
        async with asyncio.timeout(LIMIT_S):
            while await worker.registry.blocks([worker.worker_id]):  # noqa: ASYNC110 - the store's to forget
                await asyncio.sleep(0.1)
        assert not worker.server._blocks._watched.is_set()
