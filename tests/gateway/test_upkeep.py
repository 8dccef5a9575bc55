"""What idle gateways ask of the store: one of them for each model and root, the others for themselves alone."""

from collections.abc import Callable
from typing import Any
from unittest.mock import AsyncMock

import msgspec
import pytest
import redis.asyncio

from fairlane.gateway.control.elections import Elections
from fairlane.gateway.fleet import FleetCache
from fairlane.gateway.model_text.tokenizer import TextModel
from fairlane.gateway.pipeline import delivery
from fairlane.gateway.pipeline.admission import AllOpenRequests
from fairlane.gateway.pipeline.delivery import Dispatcher, QueueConnections
from fairlane.gateway.pipeline.orphans import Orphans
from fairlane.gateway.pipeline.queue_watch import IDLE_PER_ROUND, QueueWatch
from fairlane.gateway.pipeline.recovery import Reaper
from fairlane.quotas.redis_store import RedisQuotaStore
from fairlane.quotas.scripts import Database
from fairlane.quotas.tenants import TenantStore
from fairlane.quotas.upkeep import ActiveRoots
from fairlane.scheduler.protocol.lanes import DEFAULT_LANES
from fairlane.scheduler.queue.redis_queue import RedisQueue
from fairlane.scheduler.queue.registry import RedisRegistry
from tests.support.gateway.cards import byte_level_card
from tests.support.store import topology

pytestmark = pytest.mark.anyio

CARD = byte_level_card()
TEXT = TextModel(CARD)
LEASE_S = 240.0
ROUNDS = 2
MOST_FURTHER = 40
"""Commands in a round of a further gateway."""


class IdleGateway:
    """All upkeep of one gateway, a round at a time."""

    def __init__(self, name: str, store: redis.asyncio.Redis) -> None:
        self._store = store
        registry, open_requests = RedisRegistry(store), AllOpenRequests(DEFAULT_LANES)
        connections: Any = _Connections(store)
        self._elections = Elections(connections, connections, name, LEASE_S, lambda: True)
        elected = self._elections.for_queues
        watch = QueueWatch(name, self._queue, registry, open_requests, is_elected=elected)
        self._dispatcher = Dispatcher(name, self._link, open_requests, kept_s=60.0, is_elected=elected)
        self._fleet = FleetCache(registry, watch.look, LEASE_S, read=lambda _: TEXT)
        self._orphans = Orphans(
            registry,
            self._fleet,
            self._dispatcher,
            self._queue,
            lease_s=LEASE_S,
            grace_ms=60_000,
            is_elected=elected,
        )
        tenants, quotas = TenantStore(store), RedisQuotaStore(store)
        budgets = self._elections.for_budgets
        self._reaper = Reaper(
            quotas, tenants, self._dispatcher, self._fleet, lease_s=LEASE_S, on_reaped=AsyncMock(), is_elected=budgets
        )

    async def round(self) -> None:
        for election in self._elections._all:
            await election.stand()
        await self._fleet.refresh()
        for work in (self._orphans.tend, self._reaper.renew, self._reaper.reap, self._reaper.watch):
            await work()
        for model in self._fleet.models.values():
            self._dispatcher.queue(model.queue)
            await self._dispatcher.tend(model.queue)

    def _queue(self, name: str) -> RedisQueue:
        return RedisQueue(self._store, name, DEFAULT_LANES)

    def _link(self, name: str) -> QueueConnections:
        async def close() -> None:
            """The store is the test's."""

        return QueueConnections(calls=self._queue(name), reader=self._queue(name), close=close)


class _Connections:
    def __init__(self, store: redis.asyncio.Redis) -> None:
        self.patient = store


async def commands(store: redis.asyncio.Redis, *, gateways: int, models: int, roots: int) -> int:
    """How many commands the store executes in a round, those within scripts included."""
    await store.flushall()
    registry = RedisRegistry(store)
    for number in range(models):
        await registry.announce(msgspec.structs.replace(CARD, model=f"model{number}"))
    for number in range(roots):
        await ActiveRoots(Database(store)).enlist(f"tenant{number}")
    ones = [IdleGateway(f"gw{number}", store) for number in range(gateways)]
    for one in ones:
        await one.round()
    await store.config_resetstat()
    for _ in range(ROUNDS):
        for one in ones:
            await one.round()
    stats: Any = await store.info("commandstats")
    calls: int = sum(each["calls"] for name, each in stats.items() if name not in {"cmdstat_config|resetstat"})
    return calls // ROUNDS


async def test_a_further_idle_gateway_costs_the_same_however_many_models_and_tenants_there_are(
    valkey_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def nothing(period_s: float, what: str, work: Callable[[], object], **_: object) -> None:
        """Rounds are the test's."""

    monkeypatch.setattr(delivery, "every", nothing)
    async with topology.client(topology.one_server(valkey_url)) as store:
        few = [await commands(store, gateways=count, models=IDLE_PER_ROUND, roots=2) for count in (1, 2, 6)]
        many = [await commands(store, gateways=count, models=5 * IDLE_PER_ROUND, roots=20) for count in (1, 2, 6)]

    further = few[1] - few[0]
    assert further == many[1] - many[0]
    assert few[2] - few[0] == many[2] - many[0] == 5 * further
    assert further <= MOST_FURTHER
