"""No call holds the store for more than a few jobs, and what a queue keeps is bounded by the work in it."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest
import redis.asyncio

from fairlane.scheduler.protocol.messages import Lease, Outcome
from fairlane.scheduler.queue.types import QueuePresence
from fairlane.store.bounds import JOBS_PER_CALL, PER_CALL, chunks
from fairlane.store.functions import Library
from tests.support.scheduler.queues import LEASE_MS, PLENTY, Clock, StoredQueue, job, lanes, progress, room, take_one
from tests.support.store import topology

pytestmark = pytest.mark.anyio

MANY = 4_100
"""With two values for each job, more than the 8,000 that Lua can unpack."""
SOME = 3 * PER_CALL + 1
MOST_COMMANDS = 250
"""Of one call: 1 to 2 ms of the store."""


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def client(valkey_url: str) -> AsyncIterator[redis.asyncio.Redis]:
    async with topology.client(valkey_url) as client:
        yield client


@pytest.fixture
def queue(client: redis.asyncio.Redis, clock: Clock) -> StoredQueue:
    return StoredQueue(client, lanes(latency={"max_queued": MANY}), lease_ms=LEASE_MS, window=300.0, clock=clock)


async def put_many(queue: StoredQueue, count: int) -> None:
    for some in chunks(range(count)):
        await asyncio.gather(*(queue.put(job(f"f{number:04}")) for number in some))


async def take_all(queue: StoredQueue) -> list[Lease]:
    found: list[Lease] = []
    while leases := await queue.take("w1", PLENTY):
        assert len(leases) <= JOBS_PER_CALL
        found += leases
    return found


async def pass_time(queue: StoredQueue, clock: Clock, ms: int, *, renewing: bool) -> int:
    """Let the gateway, and maybe the worker, live on for so long. Returns how many jobs were taken from the worker."""
    lost = 0
    for _ in range(0, ms, 1_000):
        clock.advance(1_000)
        await queue.gateway_alive("gw")
        if renewing:
            await queue.renew("w1")
        lost += await queue.reclaim()
    return lost


class Calls:
    """How many calls of functions the store had while the block lasted."""

    def __init__(self, client: redis.asyncio.Redis) -> None:
        self._client, self.count = client, 0

    async def __aenter__(self) -> "Calls":
        await self._client.config_resetstat()
        return self

    async def __aexit__(self, *_: object) -> None:
        stats: Any = await self._client.info("commandstats")
        self.count = stats.get("cmdstat_fcall", {"calls": 0})["calls"]


async def commands_of(client: redis.asyncio.Redis) -> int:
    stats: Any = await client.info("commandstats")
    return sum(each["calls"] for each in stats.values())


@pytest.fixture
def most_commands(client: redis.asyncio.Redis, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """The most commands that one call of each function ran."""
    most, call = Counter[str](), Library.call

    async def counting(library: Library, store: redis.asyncio.Redis, function: str, *args: Any) -> Any:
        before = await commands_of(client)
        answer = await call(library, store, function, *args)
        most[function] = max(most[function], await commands_of(client) - before - 2)
        return answer

    monkeypatch.setattr(Library, "call", counting)
    return most


@pytest.mark.thorough
async def test_the_progress_of_4_100_jobs_is_recorded(queue: StoredQueue) -> None:
    await put_many(queue, MANY)
    leases = await take_all(queue)
    taken = {lease.job.job_id for lease in leases}

    items = [progress(lease, 2) for lease in leases]
    assert await queue.report("w1", items, serial="1") == set()
    stale = [progress(lease, 3)._replace(epoch=2) for lease in leases]
    assert await queue.report("w1", stale, serial="2") == taken
    assert len(taken) == MANY
    records = [await queue.record(lease.job.job_id) for lease in leases[:: PER_CALL - 1]]
    assert {record and record.generated for record in records} == {2}


async def test_many_jobs_are_taken_lost_and_ended_in_short_calls(
    queue: StoredQueue, clock: Clock, most_commands: Counter[str]
) -> None:
    await put_many(queue, SOME)
    most_commands.clear()
    assert len(await take_all(queue)) == SOME
    assert await pass_time(queue, clock, LEASE_MS, renewing=False) == SOME
    await queue.renew("w1")
    again = await take_all(queue)
    assert await queue.report("w1", [progress(lease, 2) for lease in again]) == set()
    ends = [progress(lease, 3, ends=Outcome.FINISHED) for lease in again]
    assert (await queue.turn("w1", PLENTY, ends)).refused == set()
    assert len(again) == SOME
    assert max(most_commands.values()) <= MOST_COMMANDS, most_commands


async def test_a_report_that_is_sent_again_repeats_none_of_its_parts(
    queue: StoredQueue, client: redis.asyncio.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    await put_many(queue, SOME)
    leases = await take_all(queue)
    items = [progress(lease, 1, cost=500.0, ends=Outcome.FINISHED) for lease in leases]
    call, calls = Library.call, 0

    async def losing_the_second_answer(*args: Any) -> Any:
        nonlocal calls
        calls += 1
        answer = await call(*args)
        if calls == 2:
            raise redis.exceptions.ConnectionError
        return answer

    with monkeypatch.context() as patched:
        patched.setattr(Library, "call", losing_the_second_answer)
        with pytest.raises(redis.exceptions.ConnectionError):
            await queue.report("w1", items, serial="1")
    assert await queue.report("w1", items, serial="1") == set()

    assert await client.zscore("fl:{model@1}:counters:latency", "acme") == 500.0 * SOME
    assert await queue.report("w1", items, serial="2") == {lease.job.job_id for lease in leases}


async def test_an_outage_is_cleared_up_a_few_jobs_at_a_time(
    queue: StoredQueue, clock: Clock, client: redis.asyncio.Redis
) -> None:
    await put_many(queue, SOME)
    first = await take_all(queue)
    await pass_time(queue, clock, LEASE_MS, renewing=True)

    async with Calls(client) as unknown:  # all were in answers of `take` that were lost
        assert await queue.renew("w1", holding=[])
    again = await take_all(queue)
    async with Calls(client) as lost:
        count = await pass_time(queue, clock, LEASE_MS, renewing=False)
    heard = [await queue.renew("w1") for _ in range(2)]
    await take_all(queue)
    await queue.release("w1", [lease.job.job_id for lease in first])
    await pass_time(queue, clock, 2 * LEASE_MS, renewing=False)
    presence = await queue.orphan(LEASE_MS)

    assert len(first) == len(again) == count == SOME
    assert heard == [False, True]
    assert presence is QueuePresence.ORPHANED
    assert min(unknown.count, lost.count) > SOME // JOBS_PER_CALL


async def counters(client: redis.asyncio.Redis) -> int:
    return int(await client.zcard("fl:{model@1}:counters:latency"))


async def visit(queue: StoredQueue, number: int) -> None:
    """Serve the one request of a tenant that never comes again, and one of another tenant that waits."""
    await queue.put(job(f"v{number}", f"tenant-{number}", ttft_ms=100.0))
    for lease in await queue.take("w1", room(latency=2)):
        await queue.report("w1", [progress(lease, cost=138.0, ends=Outcome.FINISHED)])
        await queue.forget([lease.job.job_id])


async def test_a_lane_that_drains_keeps_no_counters(queue: StoredQueue, client: redis.asyncio.Redis) -> None:
    for number in range(PER_CALL):
        await visit(queue, number)

    assert await counters(client) == 1


async def test_counters_of_tenants_that_came_and_went_are_forgotten(
    queue: StoredQueue, client: redis.asyncio.Redis, clock: Clock
) -> None:
    """With work of another tenant waiting all the time, and more tenants a second than one call forgets."""
    for number in range(2 * SOME + 1):
        await queue.put(job(f"standing{number}", "standing"))
    for number in range(2 * SOME):
        await visit(queue, number)
        if number == SOME:
            assert await counters(client) > PER_CALL
            await pass_time(queue, clock, 1_000, renewing=True)
            assert await counters(client) <= 4

    await pass_time(queue, clock, 1_000, renewing=True)
    assert await counters(client) <= 4


async def test_a_forgotten_tenant_is_charged_from_where_the_lane_stands(
    queue: StoredQueue, client: redis.asyncio.Redis, clock: Clock
) -> None:
    for number in range(8):
        await queue.put(job(f"standing{number}", "standing"))
        await queue.put(job(f"other{number}", "other"))
    await queue.put(job("long", "runs", ttft_ms=100.0))
    lease = await take_one(queue)
    assert lease.job.job_id == "long"
    for other in [await take_one(queue) for _ in range(8)]:
        await queue.report("w1", [progress(other, cost=138.0, ends=Outcome.FINISHED)])
    await pass_time(queue, clock, 1_000, renewing=True)
    assert await client.zscore("fl:{model@1}:counters:latency", "runs") is None

    await queue.report("w1", [progress(lease, 1, cost=1_138.0)])

    first: Any = await client.zrange("fl:{model@1}:backlog:latency", 0, 0, withscores=True)
    [(_, lowest)] = first
    assert await client.zscore("fl:{model@1}:counters:latency", "runs") == lowest + 1_000.0
