"""A store that is a Redis Cluster: whatever is asked goes to the node that has it, moves with it and waits for it."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from redis.crc import key_slot

from fairlane.cli.embedded_store import valkey_binary
from fairlane.gateway.batches.batch_records import BatchRecords
from fairlane.gateway.batches.files import FileRecords
from fairlane.gateway.batches.storage import FolderStorage
from fairlane.gateway.control.erasure.rounds import Erasure
from fairlane.gateway.control.erasure.steps import ErasureSteps
from fairlane.gateway.insight.fleet_metrics.metrics_store import FleetMetricsStore
from fairlane.gateway.insight.request_records.storage import RecordStore
from fairlane.quotas import erasure as quota_erasure
from fairlane.quotas import keyspace
from fairlane.quotas.api_keys import KeyStore, public_id
from fairlane.quotas.audit import Audit
from fairlane.quotas.redis_store import RedisQuotaStore
from fairlane.quotas.tenants import TenantStore
from fairlane.scheduler.protocol.lanes import DEFAULT_LANES
from fairlane.scheduler.protocol.messages import Cancel
from fairlane.scheduler.queue import keys as queue_keys
from fairlane.scheduler.queue.registry import RedisRegistry
from fairlane.store import checks
from fairlane.store import cluster as store_cluster
from fairlane.store.checks import GATEWAY_COMMANDS, FaultKind
from fairlane.store.connections import Connections, connections
from fairlane.store.errors import STORE_ERRORS, StoreUnavailable
from fairlane.store.retry import StoreLink
from tests.conftest import redis_binary
from tests.support.gateway.batch_files import begun, charged_as_told, ended, folder_settings, lines, results
from tests.support.gateway.served import (
    ADMIN_KEY,
    ASKED,
    CHAT,
    SAID,
    WAIT_S,
    Served,
    error_of,
    serving,
    settings,
    until,
)
from tests.support.ports import free_port
from tests.support.quotas.auditing import failing, note
from tests.support.quotas.house import ask, charge
from tests.support.scheduler.queues import PLENTY, TakingQueue, job
from tests.support.store.cluster import Masters

pytestmark = [pytest.mark.anyio, pytest.mark.slow]
LIMIT_S = 20.0
BUDGET = {"tokens_per_day": 100_000}


@pytest.fixture(scope="module")
def clusters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Masters]]:
    """Of each kind of server one, started beside each other."""
    binaries = {"valkey": valkey_binary(), "redis": redis_binary()}
    made = {kind: Masters(tmp_path_factory.mktemp(kind), binary) for kind, binary in binaries.items()}
    try:
        for masters in made.values():
            masters.begin()
        for masters in made.values():
            masters.agree()
        yield made
    finally:
        for masters in made.values():
            masters.stop()


@pytest.fixture(params=["valkey", "redis"])
def masters(clusters: dict[str, Masters], request: pytest.FixtureRequest) -> Masters:
    chosen = clusters[request.param]
    chosen.flush()
    return chosen


@pytest.fixture
async def store(masters: Masters) -> AsyncIterator[Connections]:
    opened = connections(masters.url, timeout_s=LIMIT_S, limit=4)
    yield opened
    await opened.aclose()


def root_at(masters: Masters, port: int) -> str:
    """The name of an organisation whose budgets stand with this node."""
    names = (f"org-{number}" for number in range(1_000))
    return next(name for name in names if masters.holder(keyspace.of_root(name)) == port)


def slot_of(root: str) -> int:
    return key_slot(keyspace.of_root(root).encode())


async def test_each_master_is_checked(masters: Masters) -> None:
    found = await checks.masters(masters.url, timeout_s=LIMIT_S)
    kinds = {fault.kind for fault in await checks.faults(masters.url, GATEWAY_COMMANDS, timeout_s=LIMIT_S)}
    masters.ask(masters.ports[-1], "CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    try:
        with_fault = {fault.kind for fault in await checks.faults(masters.url, GATEWAY_COMMANDS, timeout_s=LIMIT_S)}
    finally:
        masters.ask(masters.ports[-1], "CONFIG", "SET", "maxmemory-policy", "noeviction")

    assert {urlsplit(url).port for url, _ in found} == set(masters.ports)
    assert {masters.holder(key) for _, key in found} == set(masters.ports)
    assert with_fault - kinds == {FaultKind.EVICTION}


async def test_budgets_of_roots_on_all_nodes_are_held_charged_and_reaped(masters: Masters, store: Connections) -> None:
    tenants, quotas = TenantStore(store.patient), RedisQuotaStore(store.short, lease_ms=1)
    roots = [root_at(masters, port) for port in masters.ports]
    for root in roots:
        await tenants.create({"id": root, "limits": BUDGET})

    for root in roots:
        await quotas.reserve(ask(f"{root}-done", root=root, tenant=root))
        await quotas.reserve(ask(f"{root}-lost", root=root, tenant=root))
        await quotas.settle(root, f"{root}-done", charge())
    async with asyncio.timeout(WAIT_S):
        lapsed = {live.reservation_id for live in await quotas.expired(100)}
        while len(lapsed) < len(roots):  # one look a lease
            lapsed |= {live.reservation_id for live in await quotas.expired(100)}

    assert lapsed == {f"{root}-lost" for root in roots}
    assert [tenant.id for tenant in await tenants.list()] == sorted(roots)
    for root in roots:
        (status,) = await quotas.statuses(root, root)
        assert (status.used, status.reserved) == (30, 30)


async def test_changes_of_roots_on_all_nodes_are_told_at_once_or_later_and_once(
    masters: Masters, store: Connections, monkeypatch: pytest.MonkeyPatch
) -> None:
    tenants, quotas = TenantStore(store.patient), RedisQuotaStore(store.short, lease_ms=100)
    roots = [root_at(masters, port) for port in masters.ports]
    for root in roots:
        await tenants.create({"id": root}, lambda tenant: note(tenant.id))
    for lost in ("audit_write", "LREM"):
        with monkeypatch.context() as patch:
            failing(patch, StoreUnavailable("away"), only=lost)
            for root in roots:
                await tenants.update(root, {"name": lost}, note=note(root))

    async with asyncio.timeout(WAIT_S):
        while any([await store.patient.exists(f"{keyspace.of_root(root)}audit") for root in roots]):
            await quotas.expired(10)

    entries = await Audit(store.patient).list()
    assert sorted(entry.target for entry in entries) == sorted(roots * 3)


async def test_a_queue_is_shared_with_workers(masters: Masters, store: Connections) -> None:
    client = store_cluster.client(masters.url, limit=4, timeout_s=LIMIT_S)
    gateway, worker = (TakingQueue(each, "tiny@0", DEFAULT_LANES) for each in (store.short, client))
    reader = store.reader()

    await gateway.put(job("waits"))
    await gateway.put(job("runs"))
    assert (await gateway.cancel("waits")) is not None
    leases = await worker.take("w1", PLENTY)
    await gateway.cancel("runs")
    await worker.turn("w1", PLENTY)
    await gateway.put(job("given"))
    news = await worker.read_news("w1", "0-0", 1_000)
    _, events = await TakingQueue(reader, "tiny@0", DEFAULT_LANES).read_events("g1", "0-0", 10)

    assert [lease.job.job_id for lease in leases] == ["runs"]
    assert news.controls == [Cancel(job_id="runs")]
    assert [lease.job.job_id for lease in news.leases] == ["given"]
    assert events == []
    await reader.aclose()
    await client.aclose()


async def test_deleted_tenants_of_roots_on_all_nodes_are_erased(
    masters: Masters, store: Connections, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quota_erasure, "SETTLED_S", 0.0)
    client, queue = store.patient, TakingQueue(store.short, "tiny@0", DEFAULT_LANES)
    tenants, quotas = TenantStore(client), RedisQuotaStore(store.short)
    roots = [root_at(masters, port) for port in masters.ports]
    erasure = Erasure(
        client,
        "gw",
        ErasureSteps(
            client,
            batches=BatchRecords(client, most_open=3),
            files=FileRecords(client, most_files=3, most_bytes=1_000),
            storage=FolderStorage(tmp_path),
            records=RecordStore(client, "gw", most=9),
            fleet_metrics=FleetMetricsStore(client),
            workers=RedisRegistry(client),
            queues=lambda: [queue],
        ),
        is_store_embedded=False,
    )
    for root in roots:
        tenant = await tenants.create({"id": root}, lambda made: note(target=made.id))
        made = await KeyStore(client).create(tenant, {"name": "k"})
        await quotas.reserve(ask(f"of-{root}", root=root, tenant=root, key_id=made.key.id))
        await quotas.settle(root, f"of-{root}", charge())
        await queue.put(job(f"j-{root}", tenant=root))
        await queue.cancel(f"j-{root}")
        await tenants.delete(root)

        erased = await erasure.erase_ledgers(root, [root])

        assert erased.is_complete
        assert {name: erased.counts[name] for name in ("keys", "ledger_entries", "jobs")} == {
            "keys": 1, "ledger_entries": 1, "jobs": 1,
        }  # fmt: skip
        assert await tenants.root(root) is None
        assert await queue.record(f"j-{root}") is None


async def test_a_slot_that_has_moved_is_followed(masters: Masters, store: Connections) -> None:
    source, target = masters.ports[0], masters.ports[2]
    root = root_at(masters, source)
    tenants, quotas = TenantStore(store.patient), RedisQuotaStore(store.short)
    await tenants.create({"id": root, "limits": BUDGET})
    await quotas.reserve(ask(root=root, tenant=root))

    masters.begin_move(slot_of(root), source, target)
    masters.move_keys(slot_of(root), source, target)
    masters.end_move(slot_of(root), source, target)
    await quotas.settle(root, "f1", charge())
    found = await tenants.get(root)

    assert found is not None
    (status,) = await quotas.statuses(root, root)
    assert (status.used, status.reserved) == (30, 0)
    assert store.breaker.openings == 0
    move_back(masters, slot_of(root), target, source)


async def test_while_a_slot_moves_key_by_key_its_budgets_are_not_touched(masters: Masters, store: Connections) -> None:
    """A script would see a part of its keys: of the tenant, but not of what it has spent."""
    source, target = masters.ports[0], masters.ports[2]
    root = root_at(masters, source)
    tenants, quotas = TenantStore(store.patient), RedisQuotaStore(store.short)
    await tenants.create({"id": root, "limits": BUDGET})
    await quotas.reserve(ask(root=root, tenant=root))

    masters.begin_move(slot_of(root), source, target)
    masters.move_keys(slot_of(root), source, target, most=2)
    for number in range(5):
        with pytest.raises(StoreUnavailable):
            await quotas.reserve(ask(f"more-{number}", root=root, tenant=root))
    found = await tenants.get(root)  # one key, wherever it is now
    listed = [tenant.id for tenant in await tenants.list()]
    await store.patient.set(f"{keyspace.of_root(root)}new", "there")
    masters.move_keys(slot_of(root), source, target)
    masters.end_move(slot_of(root), source, target)

    assert found is not None
    assert root in listed
    assert await store.patient.get(f"{keyspace.of_root(root)}new") == b"there"
    assert store.breaker.is_whole
    (status,) = await quotas.statuses(root, root)
    assert (status.used, status.reserved) == (0, 30)
    move_back(masters, slot_of(root), target, source)


def move_back(masters: Masters, slot: int, source: int, target: int) -> None:
    masters.begin_move(slot, source, target)
    masters.move_keys(slot, source, target)
    masters.end_move(slot, source, target)


async def test_a_batch_runs_on_a_cluster(masters: Masters, tmp_path: Path) -> None:
    async with serving(folder_settings(masters.url, tmp_path)) as served:
        await served.tenant()
        async with served.sdk() as client:
            batch = await ended(client, await begun(client, lines(10)))
            found = await results(client, batch.output_file_id)
            await client.files.delete(batch.input_file_id)
        await charged_as_told(served, batch, found)
    assert (batch.status, len(found)) == ("completed", 10)


async def test_requests_of_tenants_on_all_nodes_are_served(masters: Masters) -> None:
    async with serving(settings(masters.url)) as served, served.http as client:
        admin = {"authorization": f"Bearer {ADMIN_KEY}"}
        roots = [root_at(masters, port) for port in masters.ports]
        for root in roots:
            await served.tenant(root, limits=BUDGET)
            answer = await served.post(CHAT, ASKED, tenant=root, idempotency_key="once")
            again = await served.post(CHAT, ASKED, tenant=root, idempotency_key="once")
            assert answer.json()["choices"][0]["message"]["content"] == SAID
            assert again.json() == answer.json()
            assert "x-fairlane-degraded" not in answer.headers
        await served.landed()

        listed = (await client.get("/admin/v1/tenants", headers=admin)).json()
        for root in roots:
            assert [outcome for outcome, *_ in await served.ledger(root)] == ["finished"]
            assert (await served.limits(root))["tokens_per_day"].reserved == 0
        records = (await client.get("/admin/v1/requests", headers=admin)).json()["data"]
        found = await client.get(f"/admin/v1/requests/{records[0]['request_id']}", headers=admin)
        assert found.json()["id"] == records[0]["id"]
    assert sorted(record["tenant"] for record in records) == sorted(roots)
    assert [tenant["id"] for tenant in listed["data"]] == sorted(roots)


async def test_a_cluster_of_which_no_node_answers_is_away(caplog: pytest.LogCaptureFixture) -> None:
    store = connections(f"redis+cluster://127.0.0.1:{free_port()}", timeout_s=LIMIT_S, limit=4)

    for _ in range(3):
        with pytest.raises(STORE_ERRORS):
            await store.short.set("key", 1)

    assert store.breaker.is_away
    assert not store.breaker.is_whole
    assert len(caplog.records) == 1
    await store.aclose()


async def test_a_master_that_dies_takes_only_its_tenants_with_it_until_it_is_back(clusters: dict[str, Masters]) -> None:
    masters = clusters["valkey"]
    masters.flush()
    async with serving(settings(masters.url, section={"store_timeout_s": 1.0})) as served:
        (model,) = served.resources.fleet.cache.models.values()
        shared = masters.holder(queue_keys.prefix(model.queue))
        victim = next(port for port in masters.ports if port not in (shared, masters.holder("fl:{registry}:")))
        dead, alive = root_at(masters, victim), root_at(masters, shared)
        for root in (dead, alive):
            await tenant_at(masters, served, root)
            assert (await served.post(CHAT, ASKED, tenant=root)).status_code == 200
        await served.landed()

        masters.kill(victim)
        refused = [await served.post(CHAT, ASKED, tenant=dead) for _ in range(4)]
        others = [await served.post(CHAT, ASKED, tenant=alive) for _ in range(4)]
        async with served.http as client:
            ready = await client.get("/readyz")
        masters.restart(victim)  # by this thread, with which it ends
        async with asyncio.timeout(WAIT_S):
            while (await served.post(CHAT, ASKED, tenant=dead)).status_code != 200:  # noqa: ASYNC110 - from outside
                await asyncio.sleep(0.05)
        await until(lambda: served.resources.missing() == "")
        await served.landed()

        assert {error_of(answer) for answer in refused} == {(503, "quota_store_unavailable")}
        assert refused[-1].headers["x-fairlane-degraded"] == "quota-store"
        assert [answer.status_code for answer in others] == [200] * 4
        assert ready.status_code == 200
        assert len(await served.ledger(dead)) == 2
        assert len(await served.ledger(alive)) == 5
        assert (await served.limits(dead))["tokens_per_day"].reserved == 0


async def test_a_replica_that_stands_in_is_found_by_gateways_and_workers(clusters: dict[str, Masters]) -> None:
    masters = clusters["valkey"]
    masters.flush()
    victim = masters.holder(queue_keys.prefix("tiny@0"))
    masters.follow(victim)
    store = connections(masters.url, timeout_s=0.5, limit=4)
    client = store_cluster.client(masters.url, limit=4, timeout_s=0.5)
    gateway, worker = (TakingQueue(each, "tiny@0", DEFAULT_LANES) for each in (store.short, client))
    link = StoreLink(0.5)
    await gateway.put(job("before"))
    await worker.renew("w1")
    masters.replicate(queue_keys.prefix("tiny@0"))

    masters.kill(victim)
    taken = await link.persist("take", partial(worker.take, "w1", PLENTY, serial=worker.new_serial()))
    await link.persist("put", partial(gateway.put, job("after")))

    assert [lease.job.job_id for lease in taken] == ["before"]
    assert store.breaker.is_whole
    await client.aclose()
    await store.aclose()


async def tenant_at(masters: Masters, served: Served, root: str) -> None:
    """A tenant with a key that is found on the same node as the tenant."""
    await served.tenant(root, limits=BUDGET)
    tenant = await served.resources.accounts.tenants.get(root)
    assert tenant is not None
    while True:
        known = public_id(served.keys[root])
        assert known is not None
        if masters.holder(keyspace.api_key(known)) == masters.holder(keyspace.of_root(root)):
            return
        served.keys[root] = (await served.resources.accounts.keys.create(tenant, {"name": "test"})).secret
