"""The export of the ledger: each entry once, whoever is killed at whichever step, and what was dropped is counted."""

import asyncio
import json
import sys
from collections import Counter
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import pytest
import redis.asyncio

from fairlane.gateway.batches.storage import Drafts, FolderStorage
from fairlane.gateway.config import LedgerSection
from fairlane.gateway.control.admin.usage import audit_lines, ledger_lines
from fairlane.gateway.control.ledger.exporter import Exporter
from fairlane.quotas import keyspace
from fairlane.quotas.audit import Audit, AuditEntry
from fairlane.quotas.ledger import Ledger, LedgerEntry, RollUp
from fairlane.quotas.limits import Limits
from fairlane.quotas.redis_store import RedisQuotaStore
from fairlane.quotas.tenants import TenantStore
from fairlane.store.election import Election
from tests.support.gateway.served import ASKED, CHAT, OPERATOR, serving, settings, until
from tests.support.quotas.auditing import note
from tests.support.quotas.house import START_MS, RedisHouse, ask, charge, clock_lua
from tests.support.store import topology

pytestmark = pytest.mark.anyio
DAY_MS = 86_400_000
ENTRY_FIELDS: dict[Any, Any] = {"entry": "1\tf\tk\tsmol\tlatency\t10\t0\t20\t0\tfinished"}


class Killed(BaseException):
    """As if the process had been killed here."""


class Export:
    """Ledgers in a store, and the folder that they are exported to."""

    def __init__(self, client: redis.asyncio.Redis, folder: Path) -> None:
        self.client = client
        self.folder = folder

    def exporter(self, name: str = "one") -> Exporter[LedgerEntry]:
        """One gateway's."""
        return Exporter(
            Ledger(self.client),
            Election(self.client, keyspace.EXPORTER, name, lease_s=60.0),
            FolderStorage(self.folder),
            Drafts(self.folder.parent / "drafts"),
            every_s=300.0,
            lines=lambda account, entries: ledger_lines(account, "USD", entries),
        )

    async def add(self, tenant: str, at_ms: int, entries: int = 1) -> None:
        """Entries of a tenant's ledger, as `settle` writes them."""
        ledger = f"{keyspace.of_root(tenant)}ledger:{tenant}"
        for _ in range(entries):
            await self.client.xadd(ledger, ENTRY_FIELDS, id=f"{at_ms}-*")
        await self.client.zadd(keyspace.ROOTS, {tenant: at_ms})  # as its reservation did

    def objects(self) -> list[Path]:
        """In the order of their names."""
        return sorted(self.folder.glob("*/*"))

    def lines(self) -> list[dict[str, Any]]:
        """All that was exported."""
        return [json.loads(line) for path in self.objects() for line in path.read_text().splitlines()]

    def exported(self) -> Counter[tuple[str, str]]:
        return Counter((line["tenant"], line["id"]) for line in self.lines())

    async def kept(self) -> Counter[tuple[str, str]]:
        """All that the store has."""
        ledger, found = Ledger(self.client), Counter[tuple[str, str]]()
        async for account, root in ledger.accounts():
            found.update((account, entry.id) for entry in await ledger.entries(root, account, 100_000))
        return found


async def filled(client: redis.asyncio.Redis, folder: Path) -> Export:
    """Of two tenants, with requests on two days."""
    export = Export(client, folder)
    for tenant in ("acme", "blue"):
        await TenantStore(client).create({"id": tenant})
        for day in range(2):
            await export.add(tenant, START_MS + day * DAY_MS, 3)
    return export


@pytest.fixture
async def export(store: redis.asyncio.Redis, tmp_path: Path) -> Export:
    return await filled(store, tmp_path / "ledger")


async def test_entries_are_exported_once_by_day(export: Export) -> None:
    exporter = export.exporter()
    await exporter.export()
    await export.add("blue", START_MS + DAY_MS + 1)
    await exporter.export()
    await exporter.export()

    assert export.exported() == await export.kept()
    assert [str(path.relative_to(export.folder)) for path in export.objects()] == [
        "2026-11-21/0000000001.jsonl",
        "2026-11-22/0000000002.jsonl",
        "2026-11-22/0000000003.jsonl",
    ]
    assert exporter.exported == 13
    assert export.lines()[0] | {"id": ""} == {
        "id": "",
        "at": 0.001,
        "tenant": "acme",
        "key": "k",
        "model": "smol",
        "lane": "latency",
        "prompt_tokens": 10,
        "cached_tokens": 0,
        "output_tokens": 20,
        "preemptions": 0,
        "outcome": "finished",
        "flight_id": "f",
        "cost": 0,
        "input_price": 0,
        "cached_input_price": 0,
        "output_price": 0,
        "currency": "USD",
        "gpu_seconds": 0.0,
        "kv_block_seconds": 0.0,
        "incarnation": "",
    }


@pytest.mark.parametrize("ends_before", [True, False], ids=["before", "after"])
@pytest.mark.parametrize("step", range(8))
async def test_an_exporter_killed_at_any_step_is_followed_by_another(
    export: Export, step: int, ends_before: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its first eight writes: to the store and to the folder."""
    steps = iter(range(100))

    def killing(do: Callable[..., Any]) -> Callable[..., Any]:
        async def done(*args: Any) -> Any:
            is_last = next(steps) == step
            if is_last and ends_before:
                raise Killed
            result = await do(*args)
            if is_last:
                raise Killed
            return result

        return done

    with monkeypatch.context() as patch:
        for owner, name in ((Ledger, "write_export_state"), (Ledger, "exported"), (FolderStorage, "put")):
            patch.setattr(owner, name, killing(getattr(owner, name)))
        with pytest.raises(Killed):
            await export.exporter().export()
    await export.add("acme", START_MS + DAY_MS + 1)
    await export.client.delete(keyspace.EXPORTER)

    follower = export.exporter("two")
    await follower.export()

    assert export.exported() == await export.kept()
    assert follower.lost == 0


EXPORTING = """
import asyncio, sys
from pathlib import Path
from fairlane.gateway.control.admin.usage import audit_lines, ledger_lines
from fairlane.gateway.control.ledger import exporter
from tests.gateway.ledger.test_export import Export
from tests.support.store import topology

async def export(url, folder):
    exporter.MOST_ENTRIES = 7
    async with topology.client(url) as client:
        while True:
            await Export(client, Path(folder)).exporter("killed").export()

asyncio.run(export(*sys.argv[1:]))
"""


async def test_a_process_that_is_killed_exports_each_entry_once(valkey_url: str, tmp_path: Path) -> None:
    """While requests end."""
    async with topology.client(valkey_url) as client:
        export = await filled(client, tmp_path / "ledger")
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", EXPORTING, valkey_url, str(export.folder))
        async with asyncio.timeout(60):
            while len(export.objects()) < 6:
                for tenant in ("acme", "blue"):
                    await export.add(tenant, START_MS + 2 * DAY_MS, 5)
        process.kill()
        await process.wait()
        await client.delete(keyspace.EXPORTER)
        await export.exporter().export()

        assert export.exported() == await export.kept()


@pytest.mark.parametrize("loses_all", [True, False], ids=["everything", "the last writes"])
async def test_a_store_that_lost_its_last_plan_has_every_entry_exported(export: Export, loses_all: bool) -> None:
    """As after a failover, or a crash between two writes to its disk."""
    marks = [f"{keyspace.of_root(tenant)}exported:{tenant}" for tenant in ("acme", "blue")]
    if not loses_all:
        await export.exporter().export()
        await export.add("acme", START_MS + DAY_MS + 1)
    before = {name: await export.client.dump(name) for name in (keyspace.EXPORT, *marks)}
    await export.exporter().export()
    for name, kept in before.items():
        await export.client.delete(name)
        if kept:
            await export.client.restore(name, 0, kept)
    await export.add("acme", START_MS + DAY_MS + 2)
    await export.exporter().export()

    assert export.exported().keys() == (await export.kept()).keys()


async def test_one_gateway_exports_and_another_takes_over_from_a_silent_one(export: Export) -> None:
    one, two = export.exporter("one"), export.exporter("two")
    await one.export()
    await export.add("acme", START_MS + 2 * DAY_MS)

    await two.export()
    before = two.exported
    await export.client.delete(keyspace.EXPORTER)  # as its lease does in time
    await two.export()

    assert (before, two.exported) == (0, 1)
    assert export.exported() == await export.kept()


async def test_two_that_export_at_the_same_time_store_each_entry_once(export: Export) -> None:
    """Each believes to be the only one, as after a lease that lapsed unnoticed."""
    found = [export.exporter(name) for name in ("one", "two", "three")]
    for exporter in found:
        exporter._election = Election(export.client, f"alone-{id(exporter)}", "me", lease_s=60.0)

    async def ask(exporter: Exporter[LedgerEntry]) -> None:
        for _ in range(10):
            await export.add("acme", START_MS + 3 * DAY_MS)
            await exporter.export()

    await asyncio.gather(*map(ask, found))
    await found[0].export()

    assert export.exported() == await export.kept()


async def test_what_the_bound_of_bytes_drops_before_it_is_exported_is_counted(
    export: Export, caplog: pytest.LogCaptureFixture
) -> None:
    exporter, ledger = export.exporter(), f"{keyspace.of_root('acme')}ledger:acme"
    await exporter.export()
    await export.add("acme", START_MS + 2 * DAY_MS, 5)
    await export.client.xtrim(ledger, maxlen=2, approximate=False)
    await exporter.export()
    await exporter.export()

    assert (exporter.lost, exporter.exported) == (3, 14)
    assert "3 entries of the ledger were dropped before they were exported" in caplog.text
    assert max(export.exported().values()) == 1


async def test_old_entries_stay_until_they_are_exported(export: Export) -> None:
    exported = RollUp(export.client, days=31, months=12, entry_days=10, exports=True)
    today = date(2027, 1, 1)
    await exported.tenant("acme", "acme", today)
    waiting = len(await Ledger(export.client).entries("acme", "acme"))
    await export.exporter().export()
    await exported.tenant("acme", "acme", today)

    assert (waiting, len(await Ledger(export.client).entries("acme", "acme"))) == (6, 3)


async def test_a_ledger_keeps_so_many_bytes(store: redis.asyncio.Redis) -> None:
    """About: the store drops entries by blocks of a hundred."""
    house = RedisHouse(store)
    await house.set_clock(START_MS)
    await house.tenant(Limits())
    bounded = RedisQuotaStore(store, clock=clock_lua(store), ledger_bytes=20_000)
    for number in range(600):
        await house.store.reserve(ask(f"reservation-{number:020}"))
        await bounded.settle("acme", f"reservation-{number:020}", charge())

    ledger = f"{keyspace.of_root('acme')}ledger:acme"
    used = await store.memory_usage(ledger, samples=0)
    assert used is not None
    assert 15_000 < used < 40_000
    assert 0 < await store.xlen(ledger) < 400


def audit_exporter(export: Export, name: str = "one") -> Exporter[AuditEntry]:
    return Exporter(
        Audit(export.client),
        Election(export.client, keyspace.AUDIT_EXPORTER, name, lease_s=60.0),
        FolderStorage(export.folder),
        Drafts(export.folder.parent / "drafts"),
        every_s=300.0,
        lines=audit_lines,
        name="audit log",
    )


async def test_the_audit_log_is_exported_once_whatever_the_store_keeps_of_it(
    export: Export, caplog: pytest.LogCaptureFixture
) -> None:
    audit, exporter = Audit(export.client), audit_exporter(export)
    for number in range(3):
        await audit.append(note(number=number))
    await exporter.export()
    await export.client.xtrim(keyspace.AUDIT, maxlen=0, approximate=False)
    for number in range(3, 5):
        await audit.append(note(number=number))
    await audit.redact("acme", 0)
    await audit_exporter(export, "two").export()
    await exporter._election.leave()
    await audit_exporter(export, "two").export()
    await audit.append(note(number=5))
    await audit.redact("acme", await Ledger(export.client).now_ms())  # the log is replaced by a copy
    await audit.append(note(number=6))
    await audit_exporter(export, "two").export()

    lines = export.lines()
    assert [line["changes"].get("number") for line in lines] == [0, 1, 2, 3, 4, None, 6]
    assert lines[0].keys() == {"id", "at", "actor", "address", "action", "target", "changes"}
    assert not caplog.records


async def test_entries_that_the_store_dropped_before_their_export_are_logged(
    export: Export, caplog: pytest.LogCaptureFixture
) -> None:
    audit = Audit(export.client)
    await audit.append(note())
    await audit_exporter(export).export()
    for _ in range(3):
        await audit.append(note())
    await export.client.xtrim(keyspace.AUDIT, maxlen=1, approximate=False)
    await audit_exporter(export).export()

    assert len(export.lines()) == 2
    assert [record.message for record in caplog.records] == [
        "2 entries of the audit log were dropped before they were exported"
    ]


async def test_a_gateway_exports_as_its_settings_say(valkey_url: str, tmp_path: Path) -> None:
    ledger = LedgerSection(export_url=(tmp_path / "ledger").as_uri(), export_every_s=1.0)
    section = {"ledger": ledger, "audit_export_url": (tmp_path / "audit").as_uri()}
    async with serving(settings(valkey_url, section=section)) as served:
        await served.tenant()
        async with served.http as http:
            (await http.post("/admin/v1/tenants", json={"id": "other"}, headers=OPERATOR)).raise_for_status()
        assert (await served.post(CHAT, ASKED)).status_code == 200
        await until(lambda: b"fairlane_gateway_ledger_exported_total 1.0" in served.resources.telemetry.exposition())

        [line] = Export(served.store, tmp_path / "ledger").lines()
        exported = Export(served.store, tmp_path / "audit")
        await until(lambda: bool(exported.objects()))

    assert [(line["actor"], line["action"], line["target"]) for line in exported.lines()] == [
        ("admin", "tenant.create", "other")
    ]
    assert (line["tenant"], line["outcome"]) == ("acme", "finished")
