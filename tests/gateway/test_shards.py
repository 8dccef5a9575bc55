"""A gateway at a model whose queue has several shards: a root's jobs go to one, and figures are those of the model."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import pytest
import redis.asyncio

from fairlane.gateway import fleet as fleet_cache
from fairlane.gateway.pipeline.admission import AllOpenRequests
from fairlane.gateway.pipeline.queue_watch import QueueWatch
from fairlane.scheduler.protocol.lanes import DEFAULT_LANES, LaneName
from fairlane.scheduler.queue.redis_queue import RedisQueue
from fairlane.scheduler.queue.registry import RedisRegistry
from fairlane.scheduler.queue.shards import home_of, shard_for, shard_names, shards_of
from tests.support.gateway.cards import byte_level_card
from tests.support.gateway.hand_worker import HandWorker
from tests.support.gateway.served import ASKED, CHAT, Served, gateway, settings, until
from tests.support.scheduler.queues import job
from tests.support.tasks import end

pytestmark = pytest.mark.anyio

SHARDS = 2
CARD = msgspec.structs.replace(byte_level_card(), shards=SHARDS)
# A root tenant of each shard.
ROOTS = [next(name for name in map("org-{}".format, range(99)) if home_of(name, SHARDS) == shard) for shard in (0, 1)]


@pytest.fixture(autouse=True)
def _quick_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet_cache, "REFRESH_EVERY_S", 0.05)


@pytest.fixture
async def served(valkey_url: str) -> AsyncIterator[Served]:
    chosen = settings(valkey_url, section={"reservation_lease_s": 1.0}, lease_s=1.0, orphan_grace_s=1.0)
    async with gateway(chosen) as served:
        for root in ROOTS:
            await served.tenant(root, limits={"tokens_per_day": 100_000})
        yield served


@asynccontextmanager
async def worker(served: Served, shard: int, *, taking: bool = True, several: bool = True) -> AsyncIterator[HandWorker]:
    """A worker of one shard, or of the same model with a queue of one shard."""
    card = CARD if several else byte_level_card()
    hand = HandWorker(served.store, card, f"hand-{shard}-{several}", taking=taking, lease_ms=1_000, shard=shard)
    working = asyncio.create_task(hand.run())
    await until(lambda: hand.known.is_set() and served.resources.fleet.cache.workers != [])
    await until(lambda: any(each.worker_id == hand.worker_id for each in served.resources.fleet.cache.workers))
    try:
        yield hand
    finally:
        await end(working)


async def test_each_root_is_answered_by_the_workers_of_its_shard(served: Served) -> None:
    async with worker(served, 0) as first, worker(served, 1) as second:
        answers = [await served.post(CHAT, ASKED, tenant=root) for root in [*ROOTS, ROOTS[1]]]
        await served.landed()
        queue = served.resources.fleet.cache.models["tiny"].queue

    assert [answer.status_code for answer in answers] == [200, 200, 200]
    assert ([lease.job.tenant for lease in first.seen], [lease.job.tenant for lease in second.seen]) == (
        [ROOTS[0]],
        [ROOTS[1], ROOTS[1]],
    )
    assert shards_of(queue) == SHARDS
    assert served.resources.fleet.dispatcher._lines.keys() >= set(shard_names(queue))


async def test_depths_and_waiting_requests_are_those_of_all_shards(served: Served) -> None:
    async with worker(served, 0, taking=False) as first, worker(served, 1, taking=False) as second:
        running = [asyncio.create_task(served.post(CHAT, ASKED, tenant=root)) for root in [*ROOTS, ROOTS[1]]]
        stored = served.resources.fleet.stored
        await until(
            lambda: [job.message is not None for job in served.resources.fleet.dispatcher.jobs.values()] == [True] * 3
        )
        while (await stored.depths("tiny"))[LaneName.LATENCY].queued < 3:
            pass
        await until(lambda: served.resources.fleet.cache.models["tiny"].depths[LaneName.LATENCY].queued == 3)
        waiting = [await stored.waiting(root) for root in ROOTS]
        views = [(await stored.open_requests(root, None))[0] for root in ROOTS]
        first.taking = second.taking = True
        answers = await asyncio.gather(*running)
        await served.landed()

    assert waiting == [view.waiting for view in views] == [1, 2]
    assert [answer.status_code for answer in answers] == [200, 200, 200]


async def test_waiting_requests_of_all_shards_move_to_a_queue_of_another_number_of_shards(served: Served) -> None:
    async with worker(served, 0, taking=False), worker(served, 1, taking=False):
        running = [
            asyncio.create_task(served.post(CHAT, ASKED, tenant=root, x_fairlane_lane="throughput")) for root in ROOTS
        ]
        await until(lambda: len(served.resources.fleet.dispatcher.jobs) == len(ROOTS))
        await until(lambda: all(job.message for job in served.resources.fleet.dispatcher.jobs.values()))
    async with worker(served, 0, several=False) as only:
        answers = await asyncio.gather(*running)
        await served.landed()

    assert [answer.status_code for answer in answers] == [200, 200]
    assert {lease.job.tenant for lease in only.seen} == set(ROOTS)


async def test_work_that_arrives_in_one_shard_counts_as_its_part_of_all_shards_time(store: redis.asyncio.Redis) -> None:
    parts, now_ms = [], 1_700_000_000_000
    for name in ("tiny@0123456789ab", "tiny@0123456789ab/2"):
        queues = {each: RedisQueue(store, each, DEFAULT_LANES, clock=lambda: now_ms) for each in shard_names(name)}
        await queues[shard_for(name, ROOTS[1])].put(job("a", ROOTS[1], work_ms=300.0))
        known, registry = AllOpenRequests(DEFAULT_LANES), RedisRegistry(store)
        await QueueWatch("gateway", queues.__getitem__, registry, known, is_elected=lambda: True).look({name})
        parts.append(known.at(name).lanes_above(LaneName.THROUGHPUT, known.now_ms))

    assert parts[1] == pytest.approx(parts[0])
    assert parts[0] > 0.0
