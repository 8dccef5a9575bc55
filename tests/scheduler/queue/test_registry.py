"""Models and workers announce themselves; gateways and operators read."""

from typing import Any

import msgspec
import pytest
import redis.asyncio

from fairlane.scheduler.protocol.lanes import DEFAULT_LANES
from fairlane.scheduler.protocol.messages import Drain, ModelCard, Undrain, WorkerStatus
from fairlane.scheduler.queue.redis_queue import RedisQueue
from fairlane.scheduler.queue.registry import (
    CARD_TTL_MS,
    SECRET_KEPT_S,
    ModelEntry,
    RedisRegistry,
    card_sha256,
    queue_name,
)

pytestmark = pytest.mark.anyio

CARD = ModelCard(
    model="smol",
    tokenizer_json='{"version": "1.0"}',
    chat_template="{{ messages }}",
    context_length=2048,
    vocab_size=49_152,
    eos_token_ids=(2,),
)
NOW_S = 1_800_000_000
NEWER = msgspec.structs.replace(CARD, context_length=4096)


def status(worker_id: str = "w1", model: str = "smol", queue: str = "smol@abc") -> WorkerStatus:
    return WorkerStatus(worker_id=worker_id, model=model, queue=queue, card_sha256="abc", started_at_ms=1.0)


@pytest.fixture
def registry(store: redis.asyncio.Redis) -> RedisRegistry:
    return RedisRegistry(store, clock=lambda: NOW_S + 0.9)


async def test_an_announced_card_is_found_by_its_model_and_its_digest(registry: RedisRegistry) -> None:
    sha256 = await registry.announce(CARD)

    assert sha256 == card_sha256(CARD)
    assert await registry.card(sha256) == msgspec.structs.replace(CARD, created_s=NOW_S)
    assert await registry.models() == {"smol": ModelEntry(queue_name("smol", sha256), sha256)}


async def test_a_card_is_as_old_as_its_first_announcement(registry: RedisRegistry, store: redis.asyncio.Redis) -> None:
    sha256 = await registry.announce(CARD)
    key = f"fl:{{registry}}:since:{sha256}"
    await store.pexpire(key, 1_000)

    later = RedisRegistry(store, clock=lambda: NOW_S + 3_600.0)
    await later.announce(CARD)
    card = await later.card(sha256)

    assert card is not None
    assert card.created_s == NOW_S
    assert await store.pttl(key) > CARD_TTL_MS - 60_000


class Process:
    """A registry with a clock of its own, over a store that may be unavailable."""

    def __init__(self, store: redis.asyncio.Redis) -> None:
        self.now_s = float(NOW_S)
        self.is_away = False
        self.reads = 0
        self._store = store
        self.registry = RedisRegistry(self, clock=lambda: self.now_s)

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        self.reads += 1
        if self.is_away:
            raise redis.ConnectionError
        call: Any = self._store.execute_command  # which has no types
        return await call(*args, **options)

    async def later(self) -> bytes:
        self.now_s += SECRET_KEPT_S
        return await self.registry.link_secret()


async def test_all_processes_agree_on_a_new_secret_of_links_when_the_store_has_lost_it(
    store: redis.asyncio.Redis,
) -> None:
    gateway, worker = Process(store), Process(store)
    first = await gateway.registry.link_secret()
    await store.flushall()
    second = await worker.registry.link_secret()

    assert first != second
    assert await gateway.later() == second


async def test_the_secret_of_links_outlasts_an_outage_and_is_not_read_for_each_handshake(
    store: redis.asyncio.Redis,
) -> None:
    gateway = Process(store)
    gateway.is_away = True
    with pytest.raises(redis.ConnectionError):
        await gateway.registry.link_secret()
    gateway.is_away = False
    secret = await gateway.registry.link_secret()
    gateway.is_away, gateway.reads = True, 0

    assert await gateway.later() == secret
    assert [await gateway.registry.link_secret() for _ in range(3)] == [secret] * 3
    assert gateway.reads == 1
    gateway.is_away = False
    assert await gateway.later() == secret


async def test_a_queue_is_named_by_model_and_card() -> None:
    assert queue_name("org/smol", "0123456789abcdef") == "org/smol@0123456789ab"


async def test_the_set_of_queues_outlives_workers_and_newer_cards(registry: RedisRegistry) -> None:
    old, new = [(queue_name("smol", sha256), sha256) for sha256 in [await registry.announce(c) for c in (CARD, NEWER)]]
    assert await registry.queues() == dict([old, new])

    await registry.drop_queue(old[0])

    assert await registry.queues() == dict([new])


async def test_weights_are_part_of_a_cards_name() -> None:
    assert card_sha256(msgspec.structs.replace(CARD, fingerprint="other")) != card_sha256(CARD)


async def test_an_unknown_card_is_none(registry: RedisRegistry) -> None:
    assert await registry.card("0" * 64) is None
    assert await registry.models() == {}


async def test_a_card_outlives_its_workers_by_days_and_no_more(
    registry: RedisRegistry, store: redis.asyncio.Redis
) -> None:
    sha256 = await registry.announce(CARD)
    key = f"fl:{{registry}}:card:{sha256}"
    assert CARD_TTL_MS - 60_000 < await store.pttl(key) <= CARD_TTL_MS

    await store.pexpire(key, 1_000)
    await registry.announce(CARD)
    assert await store.pttl(key) > CARD_TTL_MS - 60_000

    await store.delete(key)
    assert await registry.models() == {}
    assert not await store.hexists("fl:{registry}:models", "smol")


async def test_the_card_announced_last_is_the_models_own(registry: RedisRegistry, store: redis.asyncio.Redis) -> None:
    await registry.announce(CARD)

    sha256 = await RedisRegistry(store).announce(NEWER)

    assert (await registry.models())["smol"].card_sha256 == sha256


async def test_in_a_rolling_update_the_old_worker_does_not_take_the_name_back(
    registry: RedisRegistry, store: redis.asyncio.Redis
) -> None:
    await registry.announce(CARD)
    sha256 = await RedisRegistry(store).announce(NEWER)

    await registry.announce(CARD)

    assert (await registry.models())["smol"].card_sha256 == sha256


async def test_what_an_emptied_store_forgot_is_announced_again(
    registry: RedisRegistry, store: redis.asyncio.Redis
) -> None:
    sha256 = await registry.announce(CARD)
    await store.flushall()

    await registry.announce(CARD)

    assert (await registry.models())["smol"].card_sha256 == sha256


async def test_workers_are_listed_by_id_with_what_they_said_last(registry: RedisRegistry) -> None:
    for worker_id in ("w2", "w1"):
        await registry.beat(status(worker_id), 60_000)
    busy = msgspec.structs.replace(status("w1"), running={"latency": 3})
    await registry.beat(busy, 60_000)

    assert await registry.workers() == [busy, status("w2")]


async def test_a_worker_that_leaves_is_gone(registry: RedisRegistry) -> None:
    await registry.beat(status("w1"), 60_000)

    await registry.leave("w1")
    await registry.leave("w1")

    assert await registry.workers() == []


async def test_a_worker_whose_heart_stops_is_gone(registry: RedisRegistry, store: redis.asyncio.Redis) -> None:
    await registry.beat(status("w1"), 1)
    await registry.beat(status("w2"), 60_000)
    while await store.exists("fl:{registry}:worker:w1"):
        pass

    assert [worker.worker_id for worker in await registry.workers()] == ["w2"]
    assert await store.scard("fl:{registry}:workers") == 1


async def test_drain_is_heard_where_the_worker_listens(registry: RedisRegistry, store: redis.asyncio.Redis) -> None:
    queue = RedisQueue(store, "smol@abc", DEFAULT_LANES)
    await registry.beat(status("w1"), 60_000)

    assert await registry.drain("w1")

    assert await registry.undrain("w1")

    assert (await queue.read_news("w1", "0-0", 0)).controls == [Drain(), Undrain()]


async def test_nobody_drains_a_worker_that_is_not_there(registry: RedisRegistry) -> None:
    assert not await registry.drain("ghost")
    assert not await registry.undrain("ghost")
