"""The picture of the fleet: which card is spoken for, what is left out, and when it is too old."""

import asyncio
import gc
import weakref
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass, field
from typing import cast

import msgspec
import pytest

from fairlane.gateway.errors import ApiError
from fairlane.gateway.fleet import ASKED_AT_ONCE, Depths, FleetCache, StoredFleet
from fairlane.scheduler.protocol.lanes import LaneName
from fairlane.scheduler.protocol.messages import ModelCard, WorkerStatus
from fairlane.scheduler.queue.redis_queue import RedisQueue
from fairlane.scheduler.queue.registry import CARD_TTL_MS, ModelEntry, RedisRegistry, queue_name
from fairlane.scheduler.queue.types import LaneDepth
from tests.support.counted import bytecodes
from tests.support.gateway.cards import byte_level_card, metaspace_card

pytestmark = pytest.mark.anyio
LEASE_S = 6.0
OLD, NEW, BROKEN = "a" * 64, "b" * 64, "c" * 64


def worker(sha256: str, *, draining: bool = False) -> WorkerStatus:
    return WorkerStatus(
        worker_id=sha256[:4],
        model="tiny",
        queue=queue_name("tiny", sha256),
        card_sha256=sha256,
        started_at_ms=0.0,
        draining=draining,
    )


@dataclass
class HandRegistry:
    """What serves, as a test says."""

    newest: str = NEW
    alive: list[WorkerStatus] = field(default_factory=list)
    stored: dict[str, str] = field(default_factory=dict)
    cards: dict[str, ModelCard] = field(
        default_factory=lambda: {
            OLD: metaspace_card(),
            NEW: byte_level_card(),
            BROKEN: ModelCard(
                model="tiny",
                tokenizer_json="{}",
                chat_template=None,
                context_length=1,
                vocab_size=1,
                eos_token_ids=(),
            ),
        }
    )

    async def workers(self) -> list[WorkerStatus]:
        return self.alive

    async def models(self) -> dict[str, ModelEntry]:
        return {"tiny": ModelEntry(queue_name("tiny", self.newest), self.newest)}

    async def queues(self) -> dict[str, str]:
        return self.stored

    async def card(self, sha256: str) -> ModelCard | None:
        return self.cards.get(sha256)


async def no_depths(names: Collection[str]) -> dict[str, Depths]:
    return {name: {} for name in names}


async def looked(registry: HandRegistry, now: list[float] | None = None) -> FleetCache:
    clock = now if now is not None else [100.0]
    fleet_cache = FleetCache(cast(RedisRegistry, registry), no_depths, LEASE_S, clock=lambda: clock[0])
    await fleet_cache.refresh()
    return fleet_cache


async def test_the_newest_card_is_spoken_for() -> None:
    fleet_cache = await looked(HandRegistry(alive=[worker(OLD), worker(NEW)]))

    assert fleet_cache.models["tiny"].queue == queue_name("tiny", NEW)
    assert [status.card_sha256 for status in fleet_cache.models["tiny"].workers] == [NEW]


@pytest.mark.parametrize("beginners", [[], [worker(NEW, draining=True)]])
async def test_an_earlier_card_is_spoken_for_while_only_its_workers_serve(beginners: list[WorkerStatus]) -> None:
    fleet_cache = await looked(HandRegistry(alive=[worker(OLD), *beginners]))

    assert fleet_cache.models["tiny"].queue == queue_name("tiny", OLD)
    assert fleet_cache.models["tiny"].is_served


async def test_a_model_without_a_worker_is_known_and_not_served() -> None:
    fleet_cache = await looked(HandRegistry())

    assert not fleet_cache.models["tiny"].is_served


async def test_a_card_that_cannot_be_read_is_left_out() -> None:
    fleet_cache = await looked(HandRegistry(newest=BROKEN))

    assert fleet_cache.models == {}


class GarbledRegistry(HandRegistry):
    """Which has a card that does not decode."""

    async def models(self) -> dict[str, ModelEntry]:
        return {**await super().models(), "garbled": ModelEntry(queue_name("garbled", BROKEN), BROKEN)}

    async def card(self, sha256: str) -> ModelCard | None:
        if sha256 == BROKEN:
            msgspec.convert({"model": 1}, ModelCard)
        return await super().card(sha256)


async def test_a_card_that_does_not_decode_keeps_no_other_from_being_known(caplog: pytest.LogCaptureFixture) -> None:
    fleet_cache = await looked(GarbledRegistry())
    await fleet_cache.refresh()

    assert [*fleet_cache.models] == ["tiny"]
    assert len([record for record in caplog.records if BROKEN in record.message]) == 1


@pytest.mark.parametrize(
    ("template", "told"),
    [
        (None, ["model tiny serves no chat: it has no chat template"]),
        ("{% for %}", ["model tiny serves no chat: the chat template cannot be compiled (TemplateSyntaxError)"]),
        ("{{ messages }}", []),
    ],
)
async def test_operators_are_told_once_why_a_model_serves_no_chat(
    caplog: pytest.LogCaptureFixture, template: str | None, told: list[str]
) -> None:
    registry = HandRegistry(cards={NEW: msgspec.structs.replace(byte_level_card(), chat_template=template)})
    fleet_cache = await looked(registry)
    await fleet_cache.refresh()

    assert caplog.messages == told


async def test_queues_of_earlier_cards_are_remembered_for_the_reaper() -> None:
    registry = HandRegistry(alive=[worker(OLD)])
    fleet_cache = await looked(registry)
    registry.alive = []
    await fleet_cache.refresh()

    assert fleet_cache.queues == {queue_name("tiny", NEW)}
    assert fleet_cache.queues_of("tiny") == {queue_name("tiny", OLD), queue_name("tiny", NEW)}
    assert fleet_cache.queues_of("other") == set()


async def test_queues_are_forgotten_when_their_cards_have_expired() -> None:
    now = [100.0]
    registry = HandRegistry(alive=[worker(OLD)])
    fleet_cache = await looked(registry, now)
    registry.alive = []
    now[0] += CARD_TTL_MS / 1e3 - 1
    await fleet_cache.refresh()
    assert queue_name("tiny", OLD) in fleet_cache.queues_of("tiny")

    now[0] += 1
    await fleet_cache.refresh()

    assert fleet_cache.queues_of("tiny") == {queue_name("tiny", NEW)}


async def test_queues_of_cards_that_this_process_never_saw_are_known_from_the_store() -> None:
    old, new = queue_name("tiny", OLD), queue_name("tiny", NEW)
    fleet_cache = await looked(HandRegistry(alive=[worker(NEW)], stored={old: OLD, new: NEW, "tiny/other@0": BROKEN}))

    assert fleet_cache.queues_of("tiny") == {old, new}
    assert fleet_cache.orphans == {old: OLD, "tiny/other@0": BROKEN}
    assert fleet_cache.queues == {new}  # no line of its own to a queue that nobody serves


async def test_workers_whose_heartbeats_expired_while_the_store_was_away_count_until_the_next() -> None:
    now = [100.0]
    registry = HandRegistry(alive=[worker(OLD), worker(NEW)])
    fleet_cache = await looked(registry, now)
    registry.alive = []
    now[0] += 60.0
    await fleet_cache.refresh()
    assert fleet_cache.models["tiny"].is_served

    registry.alive = [worker(NEW, draining=True)]
    now[0] += 1.0
    await fleet_cache.refresh()
    assert [(status.card_sha256, status.draining) for status in fleet_cache.workers] == [(NEW, True), (OLD, False)]

    for _ in range(round(LEASE_S)):
        now[0] += 1.0
        await fleet_cache.refresh()
    assert fleet_cache.workers == [worker(NEW, draining=True)]


async def test_workers_whose_heartbeats_expire_while_the_store_answers_are_gone_at_once() -> None:
    now = [100.0]
    registry = HandRegistry(alive=[worker(NEW)])
    fleet_cache = await looked(registry, now)
    registry.alive = []
    now[0] += 1.0
    await fleet_cache.refresh()

    assert not fleet_cache.models["tiny"].is_served


async def test_a_picture_grows_stale() -> None:
    now = [100.0]
    fleet_cache = await looked(HandRegistry(), now)
    fresh = [fleet_cache.is_fresh]

    now[0] += 60
    fresh.append(fleet_cache.is_fresh)

    assert fresh == [True, False]
    assert "tiny" in fleet_cache.models


class HandQueue:
    """A queue that is as full as it says."""

    def __init__(self, depth: LaneDepth) -> None:
        self._depth = depth

    async def depths(self) -> Depths:
        return {LaneName.LATENCY: self._depth}

    async def waiting(self, tenant: str) -> int:
        return len(tenant)


class ToldRegistry(HandRegistry):
    """Whose workers nobody tells anything here."""

    async def drain(self, worker_id: str) -> bool:
        return bool(worker_id)

    undrain = drain


def stored_fleet(registry: HandRegistry, cache: FleetCache, queue: HandQueue) -> StoredFleet:
    return StoredFleet(cast(RedisRegistry, registry), cache, lambda _: cast(RedisQueue, queue))


async def test_what_waits_for_one_model_is_asked_apart_over_all_its_cards() -> None:
    other = msgspec.structs.replace(worker(BROKEN), model="other", queue=queue_name("other", BROKEN))
    registry = ToldRegistry(alive=[worker(OLD), worker(NEW), other])
    fleet = stored_fleet(registry, await looked(registry), HandQueue(LaneDepth(2, 500, 30)))

    assert (await fleet.depths())[LaneName.LATENCY] == LaneDepth(6, 500, 90)
    assert (await fleet.depths("tiny"))[LaneName.LATENCY] == LaneDepth(4, 500, 60)
    with pytest.raises(ApiError, match="no such model"):
        await fleet.depths("nobody")


async def test_a_gateway_that_knows_no_fleet_yet_denies_no_model() -> None:
    registry, now = ToldRegistry(), [100.0]
    cache = await looked(registry, now)
    now[0] += 60

    with pytest.raises(ApiError) as raised:
        await stored_fleet(registry, cache, HandQueue(LaneDepth(0, 0))).depths("nobody")

    assert raised.value.status == 503


async def test_the_tokenizer_of_a_card_that_nobody_names_any_more_is_dropped() -> None:
    registry = HandRegistry(alive=[worker(OLD)])
    fleet_cache = await looked(registry)
    text = weakref.ref(fleet_cache.models["tiny"].text)

    registry.alive = [worker(NEW)]
    await fleet_cache.refresh()
    gc.collect()

    assert text() is None
    assert fleet_cache.models["tiny"].queue == queue_name("tiny", NEW)


class ManyModels(HandRegistry):
    """Each model has a worker of its own."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self._names = [f"model-{number}" for number in range(count)]
        self.alive = [
            msgspec.structs.replace(worker(NEW), worker_id=name, model=name, queue=queue_name(name, NEW))
            for name in self._names
        ]

    async def models(self) -> dict[str, ModelEntry]:
        return {name: ModelEntry(queue_name(name, NEW), NEW) for name in self._names}


async def test_reading_a_fleet_of_many_models_takes_time_in_proportion() -> None:
    few, many = await looked(ManyModels(50)), await looked(ManyModels(400))

    def again(fleet_cache: FleetCache) -> None:
        with suppress(StopIteration):  # its registry answers at once, and its cards are read
            fleet_cache.refresh().send(None)

    assert len(many.models) == 400
    assert all(len(model.workers) == 1 for model in many.models.values())
    assert bytecodes(lambda: again(many)) < 12 * bytecodes(lambda: again(few))


class CountedQueue(HandQueue):
    """A queue that counts the calls of all queues that are running at once."""

    running = most = 0

    async def waiting(self, tenant: str) -> int:
        CountedQueue.running += 1
        CountedQueue.most = max(CountedQueue.most, CountedQueue.running)
        await asyncio.sleep(0)
        CountedQueue.running -= 1
        return await super().waiting(tenant)

    async def depths(self) -> Depths:
        await self.waiting("")
        return await super().depths()


@pytest.mark.parametrize("call", ["waiting", "depths", "open_requests"])
async def test_many_queues_are_asked_together_within_a_bound(call: str) -> None:
    registry, queue = ManyModels(ASKED_AT_ONCE + 5), CountedQueue(LaneDepth(1, 1, 1))
    fleet = stored_fleet(ToldRegistry(), await looked(registry), queue)
    CountedQueue.most = 0

    match call:
        case "waiting":
            assert await fleet.waiting("acme") == len("acme")
        case "depths":
            assert (await fleet.depths())[LaneName.LATENCY].queued == ASKED_AT_ONCE + 5
        case _:
            doors = await fleet.open_requests("acme", None)
            assert {door.waiting for door in doors} == {len("acme")}
            assert len({door.queue for door in doors}) == ASKED_AT_ONCE + 5

    assert CountedQueue.most == ASKED_AT_ONCE
