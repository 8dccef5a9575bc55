"""A path between one worker and one gateway that stays cut: its jobs go on elsewhere, each returned once.

Each seed is one schedule of real workers in virtual time (`tests.support.worker.virtual`)."""

import asyncio
from collections.abc import Callable
from random import Random

import pytest

from fairlane.scheduler.protocol.messages import Outcome
from fairlane.worker.outlet import UNREACHED_S
from tests.support.worker.scripted import job
from tests.support.worker.virtual import VirtualStore, in_virtual_time, virtual_worker

SCHEDULES = 8
JOBS = ("one", "two", "three")
TOKENS = 120
LIMIT_S = 60.0


async def until(is_so: Callable[[], object]) -> None:
    async with asyncio.timeout(LIMIT_S):
        while not is_so():  # noqa: ASYNC110 - in virtual time
            await asyncio.sleep(0.005)


async def play(seed: int, workers: int, cut_s: float) -> dict[str, int]:
    """Cut the path of the worker that has the first job. Return the number of leases of each job that it had."""
    store = VirtualStore(Random(seed))
    gateway, queue = store.gateway, store.queue
    async with asyncio.TaskGroup() as group:
        servers = [virtual_worker(store, f"w{number}", max_sequences=8) for number in range(workers)]
        running = [group.create_task(server.run()) for server in servers]
        await asyncio.sleep(0.5)
        for job_id in JOBS:
            group.create_task(store.put(job(job_id, max_tokens=TOKENS)))
        await until(lambda: all(len(gateway.tokens[job_id, 0]) >= 3 for job_id in JOBS))
        record = queue.record(JOBS[0])
        assert record is not None
        held = [entry.job.job_id for entry in queue._book.held(record.worker_id)]
        store.links[record.worker_id].switch(is_up=False)
        await asyncio.sleep(cut_s)
        store.links[record.worker_id].switch(is_up=True)
        await until(lambda: gateway.ends.keys() == set(JOBS))
        for task in running:
            task.cancel()
    assert gateway.fault is None
    for job_id in JOBS:
        assert gateway.ends[job_id].outcome is Outcome.FINISHED
        assert len(gateway.tokens[job_id, 0]) == TOKENS
    return {entry.job.job_id: (entry.epoch + 1) // 2 for job_id in held if (entry := queue._book.entries[job_id])}


@pytest.mark.parametrize("seed", range(SCHEDULES))
def test_jobs_are_returned_once_and_go_on_at_another_worker(seed: int) -> None:
    leases = in_virtual_time(play(seed, workers=3, cut_s=LIMIT_S))

    assert set(leases.values()) == {2}


@pytest.mark.parametrize("cut_s", [0.1, 1.0, 2 * UNREACHED_S])
def test_the_only_worker_continues_once_the_path_is_whole(cut_s: float) -> None:
    leases = in_virtual_time(play(0, workers=1, cut_s=cut_s))

    assert set(leases) == set(JOBS)
