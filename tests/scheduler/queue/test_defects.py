"""Defects found in other gateways' queues, each kept out by name (research notes, appendix A)."""

import asyncio
from collections import Counter
from typing import Any

import pytest
import redis.asyncio

from fairlane.scheduler.protocol.lanes import DEFAULT_LANES
from fairlane.scheduler.protocol.messages import Outcome
from tests.support.scheduler.queues import (
    LEASE_MS,
    PLENTY,
    Clock,
    StoredQueue,
    job,
    progress,
    room,
    stay_alive,
    take_one,
)

pytestmark = pytest.mark.anyio

JOB = 128.0
"""What a queue charges for a job in advance, beside its prompt."""
OF_REQUESTS = {
    "job",
    "ids",
    "queue",
    "heads",
    "waiting",
    "returned",
    "followers",
    "expiry",
    "backlog",
    "held",
    "jobs",
}
"""Keys of a queue that are there for single requests (scheduler/queue/keys.py)."""


def two_gateways(store: redis.asyncio.Redis) -> list[tuple[str, StoredQueue]]:
    """Each with its own client-side objects over one store."""
    clock = Clock()
    return [
        (name, StoredQueue(store, DEFAULT_LANES, lease_ms=LEASE_MS, window=100.0, clock=clock))
        for name in ("gw1", "gw2")
    ]


async def test_a9_jobs_put_through_two_gateways_at_once_are_each_taken_once_and_in_order(
    store: redis.asyncio.Redis,
) -> None:
    """Elsewhere the queue was a list that each gateway read, changed and wrote back, without a lock."""
    gateways = two_gateways(store)

    async def put(name: str, queue: StoredQueue, tenant: str) -> None:
        for number in range(30):
            await queue.put(job(f"{name}-{tenant}-{number:02}", tenant, gateway_id=name))

    async def take_half(queue: StoredQueue, worker_id: str) -> list[str]:
        mine: list[str] = []
        while len(mine) < 60:
            mine += [lease.job.job_id for lease in await queue.take(worker_id, room(latency=1))]
        return mine

    takes = asyncio.gather(*(take_half(queue, f"w-{name}") for name, queue in gateways))
    await asyncio.gather(*(put(name, queue, tenant) for name, queue in gateways for tenant in "ab"))

    found = await takes
    assert len({job_id for mine in found for job_id in mine}) == 120
    for mine in found:
        for tenant in {job_id.rpartition("-")[0] for job_id in mine}:
            own = [job_id for job_id in mine if job_id.startswith(f"{tenant}-")]
            assert own == sorted(own)


async def test_a10_two_gateways_share_one_order_that_is_fair_by_tokens_not_by_requests(
    store: redis.asyncio.Redis,
) -> None:
    """Elsewhere each process had a fair queue of its own, and a request of any size was one unit."""
    (_, one), (_, other) = two_gateways(store)
    sizes = {"small": 12, "large": 1_000 - int(JOB)}  # 140 and 1,000 units each
    for number in range(40):
        await one.put(job(f"s{number:02}", "small", prompt=tuple(range(sizes["small"])), gateway_id="gw1"))
        await other.put(job(f"l{number:02}", "large", prompt=tuple(range(sizes["large"])), gateway_id="gw2"))

    had: Counter[str] = Counter()
    for _ in range(32):
        lease = await take_one(one)
        cost = len(lease.job.prompt) + JOB
        had[lease.job.tenant] += int(cost)
        end = progress(lease, cost=cost, ends=Outcome.FINISHED)
        await one.report("w1", [end])

    assert abs(had["small"] - had["large"]) <= 1_000 + 100  # one job, and the window within which urgency decides
    assert had["large"] >= 3_000


async def test_a16_jobs_that_are_left_in_every_state_leave_no_place_and_no_debt(store: redis.asyncio.Redis) -> None:
    """Elsewhere what was abandoned counted as in flight for good, and its program was passed over ever after."""
    queue = StoredQueue(store, DEFAULT_LANES, lease_ms=LEASE_MS, window=4096.0, clock=(clock := Clock()))
    states = ("queued", "taken", "released", "begun", "orphaned", "lost")
    for job_id in states[1:]:
        await queue.put(job(job_id, "eve", gateway_id="dead" if job_id == "orphaned" else "gw"))
    leases = {lease.job.job_id: lease for lease in await queue.take("w1", PLENTY)}
    await queue.release("w1", ["released"])
    await queue.report("w1", [progress(leases["begun"], 1, cost=JOB)])
    await queue.put(job("queued", "eve"))

    for job_id in ("queued", "taken", "released", "begun"):
        await queue.cancel(job_id)
    ends = [progress(leases[job_id], ends=Outcome.CANCELLED) for job_id in ("taken", "begun")]
    await queue.report("w1", ends)
    await stay_alive(queue, clock, 8 * LEASE_MS)  # neither the worker nor the other gateway says that it lives
    await queue.cancel("lost")
    await queue.forget(states)

    assert await queue.waiting("eve") == 0
    assert {lane: depth.queued for lane, depth in (await queue.depths()).items()} == dict.fromkeys(DEFAULT_LANES, 0)
    keys: list[Any] = await store.keys()
    kept = {key.decode().rpartition("}:")[2].partition(":")[0] for key in keys}
    assert kept & OF_REQUESTS == set()
    assert await store.zscore("fl:{model@1}:counters:latency", "eve") == JOB
