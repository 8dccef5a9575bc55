"""Line 8: what a decision costs: the planner's `plan`, and the Redis queue's scripts with a million jobs in it.

The planner is timed on this machine's clock, step by step: a full batch of decodes, sequences that end replaced by
new ones, the rest waiting. The queue's cost is the server's own account of its script calls (`INFO commandstats`),
with the embedded Valkey; its client's time does not count.
"""

import asyncio
import math
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from statistics import median
from typing import NamedTuple

import redis.asyncio

from benchmarks.common.line import Effort, Line, Table, at_most, unmeasured
from benchmarks.common.store import own_store
from benchmarks.scheduling.lines.world import BLOCK_SIZE, THETA
from fairlane.common.gc_tuning import OF_A_WORKER, collect_seldom
from fairlane.scheduler.planner.costs import CostModel
from fairlane.scheduler.planner.planner import Planner
from fairlane.scheduler.planner.steps import Capacity, StepResult
from fairlane.scheduler.protocol.lanes import DEFAULT_LANES, LaneName
from fairlane.scheduler.protocol.messages import Job, Lease, Outcome, Sampling
from fairlane.scheduler.queue.redis_queue import RedisQueue
from fairlane.scheduler.queue.types import Progress

RUNNING, TENANTS = 256, 1_000
DECADES = (1_000, 10_000, 100_000)
WARM_UP, STEPS, QUICK_STEPS = 100, 1_000, 200
STEP_MS = 20.0
QUEUED = 1_000_000
FILLED_AT_ONCE = 100
CALLS, BATCHES = 200, 10
ROUNDS = 3


class Timed(NamedTuple):
    """Microseconds per call of `plan`."""

    median: float
    p99: float


def job(number: int, draws: random.Random, prompt_tokens: int | None = None) -> Job:
    """One of many: 50 to 300 tokens each way, three in ten on the latency lane."""
    max_tokens = draws.randint(50, 300)
    lane = LaneName.LATENCY if draws.random() < 0.3 else LaneName.THROUGHPUT
    return Job(
        job_id=f"f{number:07d}",
        gateway_id="gateway",
        tenant=f"t{draws.randrange(TENANTS)}",
        lane=lane,
        prompt=(0,) * (prompt_tokens or draws.randint(50, 300)),
        max_tokens=max_tokens,
        granted_until=max_tokens,
        sampling=Sampling(),
        ttft_ms=DEFAULT_LANES[lane].ttft_ms,
        tpot_ms=DEFAULT_LANES[lane].tpot_ms,
    )


def full_planner() -> Planner:
    """Return a planner of RUNNING rows with pools for all of them."""
    blocks = RUNNING * 40
    return Planner(
        lanes=DEFAULT_LANES,
        block_size=BLOCK_SIZE,
        blocks=blocks,
        host_slots=blocks,
        max_sequences=RUNNING,
        max_step_tokens=2048,
        costs=CostModel(),
        window=THETA,
    )


def timed(waiting: int, steps: int = STEPS) -> Timed:
    """Time `plan` with so many waiting, in a process that collects garbage as a worker does."""
    collect_seldom(OF_A_WORKER)
    draws, planner = random.Random(1), full_planner()
    now_ms, added, ended, took_us = 0.0, 0, 0, []
    for step in range(WARM_UP + steps):
        while added - ended < waiting + RUNNING:  # counted: a list of all would leave the caches cold for `plan`
            planner.add(Lease(job=job(added, draws), epoch=1, arrived_ms_ago=0.0), now_ms)
            added += 1
        began = time.perf_counter()
        plan = planner.plan(now_ms)
        if step >= WARM_UP:
            took_us.append(1e6 * (time.perf_counter() - began))
        now_ms += STEP_MS
        tokens = {row.seq: 0 for row in plan.rows if row.samples}
        ended += len(planner.apply(StepResult(number=plan.number, tokens=tokens, run_ms=STEP_MS), now_ms).ended)
    took_us.sort()
    return Timed(took_us[len(took_us) // 2], took_us[len(took_us) * 99 // 100])


async def _fill(queue: RedisQueue, draws: random.Random, jobs: int) -> None:
    for first in range(0, jobs, FILLED_AT_ONCE):
        await asyncio.gather(*(queue.put(job(n, draws, 8)) for n in range(first, min(jobs, first + FILLED_AT_ONCE))))


async def _operations(store: redis.asyncio.Redis, jobs: int) -> dict[str, float]:
    """Microseconds of server time of each operation of gateways and workers, with so many jobs queued."""
    draws = random.Random(1)
    lanes = {name: replace(lane, max_wait_ms=1e9, max_queued=10 * QUEUED) for name, lane in DEFAULT_LANES.items()}
    queue = RedisQueue(store, "model", lanes, lease_ms=600_000)
    await _fill(queue, draws, jobs)
    one = Capacity(dict.fromkeys(LaneName, 1), dict.fromkeys(LaneName, 10**6), prefill_ms=0.2)
    leases: list[Lease] = []

    async def take() -> None:
        leases.extend((await queue.turn("worker", one)).leases)

    async def report() -> None:
        lease = leases.pop()
        ends = Progress(lease.job.job_id, lease.epoch, cost=100.0, ends=Outcome.FINISHED)
        await queue.report("worker", [ends])

    def some() -> str:
        return f"f{draws.randrange(jobs):07d}"

    operations: tuple[tuple[str, Callable[[int], Awaitable[object]]], ...] = (
        ("put", lambda number: queue.put(job(jobs + number, draws, 8), tenant_limit=jobs)),
        ("take", lambda _: take()),
        ("release", lambda _: queue.release("worker", [leases.pop().job.job_id])),
        ("take, of returned", lambda _: take()),
        ("report", lambda _: report()),
        ("renew", lambda _: queue.renew("worker", [lease.job.job_id for lease in leases])),
        ("cancel", lambda _: queue.cancel(some())),
        ("position", lambda _: queue.position(some())),
        ("record", lambda _: queue.record(some())),
        ("depths", lambda _: queue.depths()),
        ("reclaim", lambda _: queue.reclaim()),
    )
    took_us = {}
    for name, operation in operations:
        means_us = []
        for batch in range(BATCHES):
            await store.config_resetstat()
            for number in range(batch * CALLS, (batch + 1) * CALLS):
                await operation(number)
            means_us.append(float((await store.info("commandstats"))["cmdstat_fcall"]["usec_per_call"]))
        took_us[name] = median(means_us)
    return took_us


def operations_us(jobs: int) -> dict[str, float]:
    """The same, with a store of its own."""

    async def ask(url: str) -> dict[str, float]:
        async with redis.asyncio.from_url(url) as store:
            return await _operations(store, jobs)

    with own_store() as url:
        return asyncio.run(ask(url))


def _medians(rounds: list[Timed]) -> Timed:
    return Timed(median(one.median for one in rounds), median(one.p99 for one in rounds))


def measure(effort: Effort) -> list[Line]:
    """The line."""
    decades = DECADES[:2] if effort.quick else DECADES
    steps = QUICK_STEPS if effort.quick else STEPS
    rounds = [waiting for _ in range(1 if effort.quick else ROUNDS) for waiting in decades]
    timings = [*zip(rounds, effort.each("cost of plan()", partial(timed, steps=steps), rounds), strict=True)]
    found = {decade: _medians([one for waiting, one in timings if waiting == decade]) for decade in decades}
    rows = [(f"{waiting:,}", f"{one.median:.0f}", f"{one.p99:.0f}") for waiting, one in found.items()]
    effort.show(Table("Microseconds of one plan(), 256 running, 1,000 tenants", ("waiting", "median", "P99"), rows))
    how = f"median of {len(rounds) // len(decades)} times {steps} steps, 256 running, 1,000 tenants; stretch 200"
    growth = found[decades[-1]].median / found[decades[0]].median
    logarithm = math.log(decades[-1]) / math.log(decades[0])
    return [
        at_most(8, "one plan() with 10,000 waiting, P99 us", round(found[10_000].p99, 1), 500.0, how),
        at_most(
            8,
            f"plan() at {decades[-1]:,} over {decades[0]:,} waiting, medians",
            round(growth, 3),
            round(logarithm, 3),
            "the target is what O(log n) would grow by",
        ),
        _queue(effort),
    ]


def _queue(effort: Effort) -> Line:
    name = "costliest operation of the Redis queue at 1,000,000 jobs, us"
    if effort.quick:
        return unmeasured(8, name, 200.0, "not in a quick run")
    [took_us] = effort.each("a queue of 1,000,000 jobs", operations_us, [QUEUED])
    rows = [(operation, f"{us:.1f}") for operation, us in took_us.items()]
    effort.show(Table("Server time of a queue operation at 1,000,000 jobs", ("operation", "us"), rows))
    worst = max(took_us, key=took_us.__getitem__)
    return at_most(
        8,
        name,
        round(took_us[worst], 1),
        200.0,
        f"{worst}; median of {BATCHES} means of {CALLS} calls, INFO commandstats",
    )
