"""One shard of a queue in the store: the floors and heads of its turns, and room that is never given twice."""

import random

import msgspec
import pytest
import redis.asyncio

from fairlane.scheduler.protocol.lanes import DEFAULT_LANES, LaneName
from fairlane.scheduler.protocol.messages import Job, Lease, ModelCard, Outcome
from fairlane.scheduler.queue.keys import prefix
from fairlane.scheduler.queue.registry import card_sha256, queue_name
from fairlane.scheduler.queue.shards import LaneFloor, ShardNews, home_of, queue_of, shard_for, shard_names, shards_of
from fairlane.scheduler.queue.types import Progress, Turn
from fairlane.scheduler.simulation.fleet.shard_queue import ShardQueue, WorkerShape
from tests.support.scheduler.queues import PLENTY, Clock, TakingQueue, job, lanes, progress, room

pytestmark = pytest.mark.anyio

CARD = ModelCard(
    model="org/tiny", tokenizer_json="{}", chat_template=None, context_length=256, vocab_size=9, eos_token_ids=(2,)
)
SHARD = "tiny@0123456789ab/2"
PREFILL_MS = 0.5


def test_a_shard_is_named_after_its_queue_whose_card_has_the_number() -> None:
    digest = "0123456789abcdef"

    assert queue_name("org/tiny", digest) == "org/tiny@0123456789ab"
    assert queue_name("org/tiny", f"{digest}/3") == "org/tiny@0123456789ab/3"
    assert shard_names("org/tiny@0123456789ab") == ["org/tiny@0123456789ab"]
    names = shard_names("org/tiny@0123456789ab/3")
    assert names == ["org/tiny@0123456789ab/3", "org/tiny@0123456789ab/3.1", "org/tiny@0123456789ab/3.2"]
    assert {queue_of(name) for name in names} == {"org/tiny@0123456789ab/3"}
    assert [shards_of(name) for name in names] == [3, 3, 3]
    assert len({prefix(name) for name in names}) == 3


def test_workers_with_other_numbers_of_shards_serve_another_queue() -> None:
    cards = [CARD, *(msgspec.structs.replace(CARD, shards=shards) for shards in (2, 3))]

    assert len({queue_name("tiny", card_sha256(card)) for card in cards}) == 3
    assert [shards_of(queue_name("tiny", card_sha256(card))) for card in cards] == [1, 2, 3]


def news_of(turn: Turn) -> ShardNews:
    assert turn.shard is not None
    return turn.shard


def test_all_jobs_of_a_root_are_in_one_shard_and_roots_are_spread() -> None:
    roots = [f"org-{number}" for number in range(64)]

    assert {shard_for("m@1", root) for root in roots} == {"m@1"}
    assert {shard_for("m@1/4", root) for root in roots} == set(shard_names("m@1/4"))
    assert shard_for("m@1/4", "org-7") == shard_names("m@1/4")[home_of("org-7", 4)]


class Twins:
    """A shard in the store and in memory, which get the same calls."""

    def __init__(self, store: redis.asyncio.Redis, name: str, clock: Clock) -> None:
        patient = lanes(latency={"max_wait_ms": 10**7}, throughput={"max_wait_ms": 10**7})
        self.stored = TakingQueue(store, name, patient, lease_ms=600_000, clock=clock)
        self.memory = ShardQueue(patient, WorkerShape(1_000, PREFILL_MS), is_only=False)
        self.clock = clock
        self.held: list[Lease] = []

    async def put(self, given: Job) -> None:
        await self.stored.put(given)
        self.memory.put(self.clock(), given)

    async def turn(self, ended: list[Progress], rows: int, floors: list[LaneFloor]) -> None:
        everywhere = room(latency=rows, throughput=rows, prefill_ms=PREFILL_MS, max_sequences=1_000)
        turn = await self.stored.turn("0", everywhere, ended, floors=floors)
        await self.stored.retire("0")
        leases, _ = self.memory.turn(self.clock(), 0, ended, rows, floors)
        self.memory.turn(self.clock(), 0, (), -rows, ())
        assert [lease.job.job_id for lease in turn.leases] == [lease.job.job_id for lease in leases]
        heads = self.memory.head(self.clock())
        assert [lane[1:] for lane in news_of(turn).head] == [lane[1:] for lane in heads]
        assert [lane.counter for lane in news_of(turn).head] == pytest.approx([lane.counter for lane in heads])
        self.held += turn.leases


@pytest.mark.parametrize("seed", range(6))
async def test_a_shard_in_the_store_levels_its_tenants_as_shard_counters_do(
    store: redis.asyncio.Redis, clock: Clock, seed: int
) -> None:
    draws, twins = random.Random(seed), Twins(store, f"tiny@0123456789ab/2.{seed}", clock)
    lane = list(LaneName)[seed % 2]

    for number in range(60):
        if draws.random() < 0.5:
            await twins.put(job(f"j{number}", f"t{draws.randrange(4)}", lane, weight=draws.choice([1.0, 2.0])))
            continue
        clock.advance(draws.choice([0, 300, 3_000]))
        draws.shuffle(twins.held)
        count = draws.randrange(3)
        ended, twins.held = twins.held[:count], twins.held[count:]
        costs = [progress(lease, 1, cost=draws.uniform(1, 9_000), ends=Outcome.FINISHED) for lease in ended]
        floors = [LaneFloor(draws.choice([0.0, 500.0, 8_000.5]) * number, draws.random() < 0.4) for _ in LaneName]
        await twins.turn(costs, draws.randrange(3), floors)


async def test_a_tenant_that_begins_to_wait_gains_nothing_from_a_shard_that_was_idle(
    store: redis.asyncio.Redis,
) -> None:
    queue = TakingQueue(store, SHARD, DEFAULT_LANES)
    floors = [LaneFloor(70_000.0, contended=True), LaneFloor(0.0, contended=False)]

    before = await queue.turn("w", room(), floors=floors)
    await queue.put(job("a"))
    after = await queue.turn("w", room())

    assert [lane.waits for lane in news_of(before).head] == [False, False]
    assert [(lane.waits, lane.counter) for lane in news_of(after).head] == [(True, 70_000.0), (False, 0.0)]


async def test_a_turn_offers_no_room_while_leases_of_its_room_are_unread(store: redis.asyncio.Redis) -> None:
    queue = TakingQueue(store, SHARD, DEFAULT_LANES)
    await queue.turn("w", room(latency=2))
    put = await queue.put(job("handed"))

    early = await queue.turn("w", room(latency=2), last_id="0-0/0-0")
    later = await queue.put(job("waits"))
    news = await queue.read_news("w", "0-0", 0)
    again = await queue.turn("w", room(latency=1), last_id=news.last_id)

    assert (put.called, [lease.job.job_id for lease in news.leases]) == ("w", ["handed"])
    assert (news_of(early).is_unread, early.leases, later.called) == (True, [], "")
    assert (news_of(again).is_unread, [lease.job.job_id for lease in again.leases]) == (False, ["waits"])


async def test_a_job_calls_a_worker_that_offers_its_room_to_another_shard(store: redis.asyncio.Redis) -> None:
    queue = TakingQueue(store, SHARD, DEFAULT_LANES)
    full = room(max_sequences=8)
    await queue.turn("busy", full, elsewhere=[0, 0])
    await queue.turn("elsewhere", full, elsewhere=[3, 0])

    called = [(await queue.put(job(name))).called for name in ("first", "second")]
    news = await queue.read_news("elsewhere", "0-0", 0)

    assert called == ["elsewhere", ""]
    assert news.calls == ["first"]


async def test_a_turn_tells_jobs_that_lack_room_from_jobs_that_fit_no_more_room(store: redis.asyncio.Redis) -> None:
    queue = TakingQueue(store, SHARD, DEFAULT_LANES)
    small = room(latency=2, max_sequences=8)

    await queue.put(job("wide", n=9))
    fits_nowhere = await queue.turn("w", small)
    await queue.put(job("lacks", "other", n=4))
    lacks = await queue.turn("w", small)

    assert (fits_nowhere.leases, news_of(fits_nowhere).lacks_room) == ([], False)
    assert (lacks.leases, news_of(lacks).lacks_room) == ([], True)


async def test_a_queue_of_one_shard_has_the_keys_and_calls_that_it_always_had(store: redis.asyncio.Redis) -> None:
    queue = TakingQueue(store, "tiny@0123456789ab", DEFAULT_LANES)
    await queue.put(job("a"))
    turn = await queue.turn("w", PLENTY)
    await queue.report("w", [progress(turn.leases[0], 1, cost=1.0, ends=Outcome.FINISHED)])

    assert turn.shard is None
    own = prefix("tiny@0123456789ab").encode()
    assert {key[: len(own)] for key in await store.keys()} == {own}
    assert not await store.exists(f"{prefix('tiny@0123456789ab')}rivals")


async def test_each_shard_promises_its_part_of_the_time(store: redis.asyncio.Redis, clock: Clock) -> None:
    def guaranteed(name: str) -> Job:
        return job(name, guaranteed=True, hard_ttft_ms=1_000.0, ttft_ms=1_000.0, claim_ms=300.0, work_ms=1.0)

    kept = []
    for queue_name_ in ("tiny@0123456789ab", SHARD):
        queue = TakingQueue(store, queue_name_, DEFAULT_LANES, clock=clock)
        kept.append(
            [(await queue.put(guaranteed("first"))).guaranteed, (await queue.put(guaranteed("next"))).guaranteed]
        )

    assert kept == [[True, True], [True, False]]
