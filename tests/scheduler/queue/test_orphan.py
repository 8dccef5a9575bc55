"""A queue whose workers went: what ends, what may leave, what waits for them, and that nothing stays for ever."""

import pytest
import redis.asyncio

from fairlane.scheduler.protocol.lanes import LaneName
from fairlane.scheduler.protocol.messages import Finished, Outcome
from fairlane.scheduler.queue.types import KEPT_MS, QueuePresence
from tests.support.scheduler.queues import LEASE_MS, Clock, Queue, StoredQueue, job, lanes, progress, room, taken

pytestmark = pytest.mark.anyio
BATCH = LaneName.THROUGHPUT
GRACE_MS = 20_000


async def abandoned(queue: Queue, clock: Clock, ms: int = GRACE_MS, *gateways: str) -> None:
    """So much time without a worker, in which these gateways live and look."""
    for _ in range(0, ms, 2_000):
        clock.advance(2_000)
        for gateway in gateways:
            await queue.gateway_alive(gateway)
        await queue.reclaim()


async def begun(queue: Queue, *job_ids: str, lane: LaneName) -> None:
    """Jobs with three tokens each, in the hands of a worker."""
    await queue.renew("w1")
    for job_id in job_ids:
        await queue.put(job(job_id, lane=lane))
        [lease] = await queue.take("w1", room(latency=1, throughput=1))
        assert await queue.report("w1", [progress(lease, 3)]) == set()


def ends(events: list[Finished]) -> dict[str, Outcome]:
    return {event.job_id: event.outcome for event in events}


async def test_a_queue_is_no_orphan_before_its_grace_is_over(queue: Queue, clock: Clock) -> None:
    await queue.renew("w1")
    await abandoned(queue, clock, GRACE_MS - 2_000)
    before = await queue.orphan(GRACE_MS)
    await abandoned(queue, clock, 2_000)

    assert (before, await queue.orphan(GRACE_MS)) == (QueuePresence.SERVED, QueuePresence.EMPTY)


async def test_a_queue_that_nobody_looked_at_is_no_orphan_until_workers_had_time_to_renew(
    queue: Queue, clock: Clock
) -> None:
    """The store, or all gateways, were away: the workers may be well."""
    await queue.renew("w1")
    clock.advance(4_000_000)
    await queue.reclaim()
    at_once = await queue.orphan(GRACE_MS)
    await abandoned(queue, clock, LEASE_MS)

    assert (at_once, await queue.orphan(GRACE_MS)) == (QueuePresence.SERVED, QueuePresence.EMPTY)


async def test_the_jobs_of_an_orphan_wait_for_their_gateways(queue: Queue, clock: Clock) -> None:
    """Gateways end or move their chats. Only they know which have begun."""
    await begun(queue, "chat", lane=LaneName.LATENCY)
    await begun(queue, "essay", lane=BATCH)
    await queue.put(job("new chat"))
    await abandoned(queue, clock, GRACE_MS, "gw")

    assert await queue.orphan(GRACE_MS) is QueuePresence.ORPHANED
    assert await queue.events("gw") == []
    assert [await queue.position(name) for name in ("chat", "essay", "new chat")] == [1, 1, 2]


async def test_a_worker_that_comes_back_goes_on_with_what_waits(queue: Queue, clock: Clock) -> None:
    await begun(queue, "essay", lane=BATCH)
    await abandoned(queue, clock, GRACE_MS, "gw")
    await queue.orphan(GRACE_MS)

    await queue.renew("w2")
    [lease] = await queue.take("w2", room(throughput=1))

    assert (lease.job.job_id, lease.started) == ("essay", True)
    assert await queue.orphan(GRACE_MS) is QueuePresence.SERVED


async def test_what_has_no_token_may_leave_an_orphan_and_nothing_else(queue: Queue, clock: Clock) -> None:
    await begun(queue, "essay", lane=BATCH)
    await queue.put(job("new", lane=BATCH))
    early = await queue.withdraw("new", GRACE_MS)
    await abandoned(queue, clock, GRACE_MS, "gw")
    await queue.events("gw")

    assert (early, await queue.withdraw("new", GRACE_MS)) == (False, True)
    assert await queue.withdraw("new", GRACE_MS) is True
    assert await queue.withdraw("essay", GRACE_MS) is False
    assert await queue.record("new") is None
    assert await queue.waiting("acme") == 1
    assert await queue.events("gw") == []


async def test_what_was_withdrawn_keeps_its_age_elsewhere(queue: Queue, clock: Clock) -> None:
    """Its deadlines, its place before those that came later, and the end of its wait."""
    await queue.put(job("later", lane=BATCH))
    await queue.put(job("moved", lane=BATCH), waited_ms=9_000)
    await queue.put(job("moved too", hard_ttft_ms=10_000.0), waited_ms=9_000)
    await queue.put(job("too late", hard_ttft_ms=9_000.0), waited_ms=9_000)
    clock.advance(500)

    assert (await queue.depths())[BATCH].oldest_wait_ms == 9_500
    assert await queue.position("moved") == 1
    await queue.renew("w1")
    leases = await queue.take("w1", room(latency=3, throughput=3))
    assert {lease.job.job_id: lease.arrived_ms_ago for lease in leases} == {
        "moved too": 9_500,
        "moved": 9_500,
        "later": 500,
    }
    assert ends(await queue.events("gw")) == {"too late": Outcome.EXPIRED}


async def test_a_queue_that_stays_empty_and_unserved_is_removed(queue: Queue, clock: Clock) -> None:
    await begun(queue, "chat", lane=LaneName.LATENCY)
    await abandoned(queue, clock, GRACE_MS)
    await queue.orphan(GRACE_MS)
    clock.advance(KEPT_MS)
    await abandoned(queue, clock, LEASE_MS + 2_000)

    assert await queue.orphan(GRACE_MS) is QueuePresence.REMOVED
    assert await taken(queue, room(latency=1)) == []


async def test_no_key_of_a_removed_queue_stays_for_ever(clock: Clock, store: redis.asyncio.Redis) -> None:
    stored = StoredQueue(store, lanes(), lease_ms=LEASE_MS, window=4096.0, clock=clock)
    await begun(stored, "chat", lane=LaneName.LATENCY)
    await begun(stored, "essay", lane=BATCH)
    await abandoned(stored, clock, GRACE_MS)
    await stored.orphan(GRACE_MS)
    clock.advance(KEPT_MS)
    await abandoned(stored, clock, LEASE_MS + 2_000)
    assert await stored.orphan(GRACE_MS) is QueuePresence.REMOVED
    await stored.reclaim()  # of another gateway, that has not heard of it yet

    assert [key async for key in store.scan_iter("*") if await store.ttl(key) == -1] == []
