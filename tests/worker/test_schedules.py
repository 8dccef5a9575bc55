"""No schedule of puts, takes, steps and reports leaves a job waiting beside a worker that has room for it.

Each seed is one schedule of real workers in virtual time (`tests.support.worker.virtual`): waves of jobs of both lanes
come while takes, wake-ups and reports are on their way. Two invariants:

- a take that leaves a latency job waiting has no room for it left (pools are so large that no job lacks KV alone);
- a worker that could start a job which waits asks for it within a step and the calls to the store around it; where the
  worker that was called for it may have died, also the time until others are woken.
"""

import asyncio
import os
from collections.abc import Iterator
from random import Random
from typing import cast

import pytest

from fairlane.scheduler.planner.steps import Capacity
from fairlane.scheduler.protocol.lanes import DEFAULT_LANES, LaneName
from fairlane.scheduler.protocol.messages import Job, Lease
from fairlane.scheduler.queue.types import JobState
from tests.support.worker.virtual import (
    STEPS_S,
    STORE_S,
    VirtualStore,
    VirtualThread,
    in_virtual_time,
    virtual_worker,
)

SCHEDULES = int(os.environ.get("FAIRLANE_TEST_SCHEDULES", "4"))
SLOTS = 2
STEP_S = max(STEPS_S)
LONGEST_S = 2 * STEP_S + 12 * max(STORE_S)
"""A step under way, the one after it, and the requests, answers and reports between them."""
PATIENCE_S = 0.2
EVERY_S = 0.01
PROMPTS = {LaneName.LATENCY: (5, 120, 240), LaneName.THROUGHPUT: (5, 30)}
"""Long ones of the upper lane let the lower fall behind its share floor, and what it has fits that floor."""
ALL_TAKEN_S = 60.0


def drawn_job(random: Random, job_id: str, lane: LaneName) -> Job:
    tokens = random.choice([1, 2, 8, 32])
    return Job(
        job_id=job_id,
        gateway_id="gateway",
        tenant=random.choice(["red", "blue"]),
        lane=lane,
        prompt=tuple(range(random.choice(PROMPTS[lane]))),
        max_tokens=tokens,
        granted_until=tokens,
        ttft_ms=DEFAULT_LANES[lane].ttft_ms,
        tpot_ms=DEFAULT_LANES[lane].tpot_ms,
    )


def drawn_waves(random: Random, waves: int) -> Iterator[list[Job]]:
    for wave in range(waves):
        jobs = [
            drawn_job(random, f"{lane}-{wave}-{number}", lane)
            for lane, counts in ((LaneName.LATENCY, [0, 1, 3, 12]), (LaneName.THROUGHPUT, [0, 2, 10]))
            for number in range(random.choice(counts))
        ]
        random.shuffle(jobs)
        yield jobs


def waiting(store: VirtualStore, lane: LaneName) -> list[Job]:
    entries = store.queue._book.entries.values()
    return [entry.job for entry in entries if entry.state is JobState.QUEUED and entry.job.lane is lane]


def leaves_no_latency_job_that_fits(store: VirtualStore, capacity: Capacity, leases: list[Lease]) -> None:
    given = [lease.job for lease in leases if lease.job.lane is LaneName.LATENCY]
    rows = capacity.sequences[LaneName.LATENCY] - len(given)
    kv_tokens = capacity.kv_tokens[LaneName.LATENCY] - sum(len(job.prompt) + 1 for job in given)
    left = [job.job_id for job in waiting(store, LaneName.LATENCY) if len(job.prompt) + 1 <= kv_tokens]
    if rows > 0 and left:
        store.violations.append(f"{left} wait beside {rows} free rows of a worker that got {len(leases)} jobs")


class Watch:
    """Finds a job that waits for longer than it may while the same worker has room for it."""

    def __init__(self, store: VirtualStore, limit_s: float) -> None:
        self.store, self._limit_s = store, limit_s
        self.workers: dict[str, VirtualThread] = {}
        """Those that take jobs."""
        self.all_taken = asyncio.Event()
        self._since_s: dict[tuple[str, str], float] = {}

    async def watch(self) -> None:
        while True:
            await asyncio.sleep(EVERY_S)
            if self.store.taken_s.keys() == self.store.put_s.keys():
                self.all_taken.set()
            assert not self.store.violations, self.store.violations[0]
            beside = {(worker_id, job.job_id) for worker_id in self.workers for job in self._left_beside(worker_id)}
            now_s = self.store.now_s
            self._since_s = {pair: self._since_s.get(pair, now_s) for pair in beside}
            late = [
                (worker_id, job_id)
                for (worker_id, job_id), since_s in self._since_s.items()
                if now_s - max(since_s, self.store.gave_s.get(worker_id, 0.0)) > self._limit_s
            ]
            assert not late, f"{late} at {now_s:.3f} s"

    def _left_beside(self, worker_id: str) -> list[Job]:
        """The waiting jobs that this worker could start; of the lower lane none while the upper one waits."""
        capacity = self.workers[worker_id]._engine.planner.capacity()
        for lane in LaneName:
            if jobs := waiting(self.store, lane):
                has_room = capacity.sequences[lane] > 0
                return [job for job in jobs if has_room and len(job.prompt) + 1 <= capacity.kv_tokens[lane]]
        return []


async def play(seed: int, workers: int, *, dies: bool) -> None:
    """Waves of jobs for some workers, of which one may die; afterwards every job has been taken."""
    random = Random(seed)
    store = VirtualStore(random, leaves_no_latency_job_that_fits)
    watch = Watch(store, LONGEST_S + (PATIENCE_S if dies else 0.0))
    servers = {}
    async with asyncio.TaskGroup() as group:
        for number in range(workers):
            server = virtual_worker(store, f"w{number}", max_sequences=SLOTS)
            servers[f"w{number}"] = group.create_task(server.run())
            watch.workers[f"w{number}"] = cast(VirtualThread, server._engine)
        watching = group.create_task(watch.watch())
        await asyncio.sleep(0.5)
        for wave in drawn_waves(random, 3):
            for job in wave:
                group.create_task(store.put(job))
                await asyncio.sleep(random.choice([0.0, 0.0, 0.0, 0.003]))
            if dies and len(watch.workers) == workers and random.random() < 0.5:
                dead = random.choice(sorted(watch.workers))
                del watch.workers[dead]
                servers[dead].cancel()
            await asyncio.sleep(random.choice([0.1, 0.5, 2.0]))
        watch.all_taken.clear()
        await asyncio.wait_for(watch.all_taken.wait(), ALL_TAKEN_S)
        for task in (watching, *servers.values()):
            task.cancel()


@pytest.mark.parametrize(("workers", "dies"), [(1, False), (3, False), (3, True)])
def test_no_schedule_leaves_a_job_beside_room_for_it(workers: int, dies: bool) -> None:
    for seed in range(SCHEDULES):
        try:
            in_virtual_time(play(seed, workers, dies=dies))
        except* AssertionError as violated:
            raise AssertionError(f"seed {seed}: {violated.exceptions[0]}") from None
