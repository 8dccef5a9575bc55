"""What an erasure costs the store: it depends on what the tenant had, not on what others have."""

import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import redis.asyncio

from fairlane.cli.embedded_store import EmbeddedStore
from fairlane.gateway.batches.batch_records import BatchRecords
from fairlane.gateway.batches.files import FileRecords
from fairlane.gateway.batches.storage import FolderStorage
from fairlane.gateway.control.erasure.rounds import Erasure
from fairlane.gateway.control.erasure.steps import ErasureSteps
from fairlane.gateway.insight.fleet_metrics.metrics_store import FleetMetricsStore
from fairlane.gateway.insight.request_records.record import RequestRecord
from fairlane.gateway.insight.request_records.storage import EndedRecord, RecordStore
from fairlane.quotas.erasure import DeletedTenant
from fairlane.scheduler.protocol.lanes import DEFAULT_LANES
from fairlane.scheduler.queue.redis_queue import RedisQueue
from fairlane.scheduler.queue.registry import RedisRegistry
from tests.support.scheduler.queues import job
from tests.support.store import topology

pytestmark = pytest.mark.anyio
MODELS = 3


class Bench:
    """An erasure with several queues, in a store that others fill."""

    def __init__(self, client: redis.asyncio.Redis, folder: Path) -> None:
        self.client, self.records = client, RecordStore(client, "gw", most=100_000)
        self.queues = [RedisQueue(client, f"model{number}@0", DEFAULT_LANES) for number in range(MODELS)]
        self._erasure = Erasure(
            client,
            "gw",
            ErasureSteps(
                client,
                batches=BatchRecords(client, most_open=3),
                files=FileRecords(client, most_files=3, most_bytes=1_000),
                storage=FolderStorage(folder),
                records=self.records,
                fleet_metrics=FleetMetricsStore(client),
                workers=RedisRegistry(client),
                queues=lambda: self.queues,
            ),
            is_store_embedded=False,
        )

    async def fill(self, tenant: str, count: int) -> None:
        """So many jobs that ended in each queue, and as many records."""
        names = [f"{tenant}-{number:06d}" for number in range(count)]
        for queue in self.queues:
            for name in names:
                await queue.put(job(name, tenant=tenant))
                await queue.cancel(name)
        records = [RequestRecord(id=name, request_id=name, tenant=tenant, key="k", arrived_s=1.0) for name in names]
        await self.records.write([EndedRecord(each, is_special=False) for each in records], ())

    async def erase(self, tenant: str) -> tuple[dict[str, int], dict[str, int]]:
        """What was erased, and the store's commands for it, those inside scripts included."""
        gone = DeletedTenant(
            root=tenant, account=tenant, deleted_ms=round(time.time() * 1e3), created_s=time.time() - 60
        )
        await self.client.config_resetstat()
        erased = await self._erasure.erase([gone])
        stats: Any = await self.client.info("commandstats")
        calls = {name: each["calls"] for name, each in stats.items() if name != "cmdstat_config|resetstat"}
        return {name: erased.counts[name] for name in ("jobs", "request_records")}, calls


@pytest.fixture
async def bench(valkey: EmbeddedStore, tmp_path: Path) -> AsyncIterator[Bench]:
    async with topology.client(topology.one_server(valkey.url)) as client:
        await client.flushall()
        yield Bench(client, tmp_path)


async def test_an_erasure_costs_the_same_however_much_others_have(bench: Bench) -> None:
    await bench.fill("acme", 3)
    await bench.erase("acme")  # loads its scripts
    await bench.fill("acme", 3)
    few = await bench.erase("acme")

    await bench.fill("globex", 200)
    await bench.client.mset({f"other:{number}": "" for number in range(20_000)})
    await bench.fill("acme", 3)
    many = await bench.erase("acme")

    assert few[0] == many[0] == {"jobs": 3 * MODELS, "request_records": 3}
    assert many[1] == few[1]
    assert await bench.queues[0].record("globex-000000") is not None
    assert await bench.records.find("globex-000000") is not None


async def test_an_erasure_of_many_things_goes_page_by_page(bench: Bench) -> None:
    await bench.fill("acme", 150)

    erased, calls = await bench.erase("acme")

    assert erased == {"jobs": 150 * MODELS, "request_records": 150}
    scripts = calls["cmdstat_evalsha"] + calls.get("cmdstat_eval", 0) + calls["cmdstat_fcall"]
    assert 3 * (MODELS + 1) <= scripts < 30
    assert [name async for name in bench.client.scan_iter("*:ended:*")] == []
    assert [name async for name in bench.client.scan_iter("fl:records:*")] == []
