"""`fairlane backup` and `fairlane restore`: what a store held comes back, and what ran is charged once."""

import asyncio
import json
import re
from dataclasses import asdict
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
import redis
import redis.asyncio
from obstore.store import MemoryStore
from typer.testing import CliRunner, Result

from fairlane.cli import main as cli
from fairlane.cli.client import CommandError
from fairlane.cli.embedded_store import EmbeddedStore, StoreError, only_one
from fairlane.cli.recovery import archive, command, contents, snapshot
from fairlane.cli.recovery.place import Place
from fairlane.gateway.batches.storage import BucketStorage
from fairlane.gateway.control.operators.admin_key import AdminKeys
from fairlane.quotas.api_keys import KeyStore, public_id
from fairlane.quotas.audit import Audit
from fairlane.quotas.escrow.transfers import Rights, Transfer
from fairlane.quotas.ledger import Ledger
from fairlane.quotas.redis_store import RedisQuotaStore
from fairlane.quotas.store import Charge, Need
from fairlane.quotas.tenants import TenantStore
from fairlane.store import checks, schema
from fairlane.store.checks import GATEWAY_COMMANDS, FaultKind
from tests.support.quotas.auditing import note
from tests.support.quotas.house import ask, charge
from tests.support.store import acl, topology

LIMITS = {"tokens_per_day": 1_000_000, "tokens_per_minute": 500_000, "tokens_per_month": 2_000_000}
LEASE_MS = 100
RECOVERY = Path(__file__).parents[2] / "docs" / "recovery.md"


@pytest.fixture
def place(store_url: str, tmp_path: Path) -> Place:
    return Place(store_url, store_url, (tmp_path / "files").as_uri(), tmp_path / "files")


@pytest.fixture
def where(tmp_path: Path) -> str:
    return str(tmp_path / "backups")


@pytest.fixture
def quotas(store: redis.asyncio.Redis) -> RedisQuotaStore:
    return RedisQuotaStore(store, lease_ms=LEASE_MS)


@pytest.fixture
async def key(store: redis.asyncio.Redis, quotas: RedisQuotaStore) -> str:
    """The public id of a key; its tenant, with a child, has settled requests."""
    tenants = TenantStore(store)
    acme = await tenants.create({"id": "acme", "limits": LIMITS}, lambda _: note())
    await tenants.create({"id": "team", "parent": "acme", "limits": LIMITS})
    secret = (await KeyStore(store).create(acme, {"name": "k", "limits": LIMITS})).secret
    await AdminKeys(store, None).ensure()
    for number in range(3):
        await settled(quotas, f"a{number}")
        await settled(quotas, f"t{number}", tenant="team")
    return public_id(secret) or ""


async def settled(quotas: RedisQuotaStore, name: str, **fields: object) -> None:
    await quotas.reserve(ask(name, **fields))
    await quotas.settle("acme", name, charge())


async def state(store: redis.asyncio.Redis, key: str) -> dict[str, Any]:
    """Return what operators and tenants see."""
    ledger, quotas = Ledger(store), RedisQuotaStore(store)
    tenants = await TenantStore(store).list()
    accounts = [tenant.id for tenant in tenants]
    today = await day(store)
    return {
        "tenants": tenants,
        "keys": await KeyStore(store).list(tenants[0]),
        "admin key": await store.get(AdminKeys.STORED_AT),
        "audit": await Audit(store).list(),
        "ledger": [await ledger.entries("acme", each) for each in accounts],
        "usage": [await ledger.usage("acme", each, today, today) for each in accounts],
        "unexported": [asdict(await ledger.unexported("acme", each, 100)) for each in accounts],
        "limits": [figures for each in accounts for figures in await limits(quotas, each, key)],
    }


async def limits(quotas: RedisQuotaStore, account: str, key: str) -> list[tuple[str, str, int, int]]:
    found = await quotas.statuses("acme", account, key if account == "acme" else None)
    return [(limit.name, limit.scope, limit.used, limit.reserved) for limit in found]


async def day(store: redis.asyncio.Redis) -> date:
    return datetime.fromtimestamp(await Ledger(store).now_ms() / 1e3, UTC).date()


async def restored(store: redis.asyncio.Redis, place: Place, where: str) -> None:
    await store.flushall()
    await command.load(place, where, None)


async def reaped(quotas: RedisQuotaStore, key: str) -> set[str]:
    """Settle what has lapsed, as a gateway does that finds no job, until nothing is reserved; return the names."""
    names = set[str]()
    async with asyncio.timeout(20):
        while any(reserved for *_, reserved in await limits(quotas, "acme", key)):
            await asyncio.sleep(LEASE_MS / 1e4)
            for lapsed in await quotas.expired(100):
                await quotas.settle(lapsed.root, lapsed.reservation_id, Charge.refund())
                names.add(lapsed.reservation_id)
    return names


async def balance(store: redis.asyncio.Redis, quotas: RedisQuotaStore) -> tuple[int, int, set[int]]:
    """Return the tokens of the ledgers, of the day's sums, and of the root's budgets."""
    ledger, today, accounts = Ledger(store), await day(store), ("acme", "team")
    entries = [entry for each in accounts for entry in await ledger.entries("acme", each)]
    sums = [(await ledger.usage("acme", each, today, today)).total for each in accounts]
    return (
        sum(entry.prompt_tokens + entry.output_tokens for entry in entries),
        sum(each.prompt_tokens + each.output_tokens for each in sums),
        {used for _, _, used, _ in await limits(quotas, "acme", "")},
    )


@pytest.mark.anyio
async def test_a_lost_store_comes_back_as_it_was(
    store: redis.asyncio.Redis, place: Place, where: str, key: str
) -> None:
    before = await state(store, key)

    await command.save(place, where)
    await restored(store, place, where)

    assert await state(store, key) == before
    assert await store.get(schema.KEY) == f"{schema.SCHEMA} {schema.OLDEST_SCHEMA}".encode()


@pytest.mark.anyio
async def test_an_open_request_is_charged_what_it_was_charged_at_the_backup(
    store: redis.asyncio.Redis, quotas: RedisQuotaStore, place: Place, where: str, key: str
) -> None:
    await quotas.reserve(ask("open", key_id=key, max_output_tokens=100, quantum=8))
    await quotas.extend("acme", "open", Need(published=6, known=8, most=6, unit=1, quantum=8, prompt_tokens=10))
    await quotas.reserve(ask("new", key_id=key))

    await command.save(place, where)
    await quotas.settle("acme", "open", charge(50))
    await settled(quotas, "later")
    await restored(store, place, where)

    assert await reaped(quotas, key) == {"new", "open"}
    assert await balance(store, quotas) == (6 * 30 + 16, 6 * 30 + 16, {6 * 30 + 16})


@pytest.mark.anyio
async def test_the_rights_of_a_gateway_are_returned(
    store: redis.asyncio.Redis, quotas: RedisQuotaStore, place: Place, where: str, key: str
) -> None:
    place_of_pool: Any = {"root": "acme", "account": "acme", "key_id": key, "model": "smol", "lane": "latency"}
    taken = Transfer(pool="0123456789abcdef", call=1, first=0, wanted=Rights(4, 40, 80), **place_of_pool)
    assert (await quotas.transfer(taken)).rights == Rights(4, 40, 80)

    await command.save(place, where)
    await restored(store, place, where)
    await reaped(quotas, key)

    assert await balance(store, quotas) == (180, 180, {180})


@pytest.mark.anyio
async def test_a_backup_under_load_is_one_moment_of_each_organisation(
    store: redis.asyncio.Redis, quotas: RedisQuotaStore, place: Place, where: str, key: str
) -> None:
    ended = asyncio.Event()

    async def client(name: str) -> None:
        number = 0
        while not ended.is_set():
            number += 1
            await settled(quotas, f"{name}{number}", tenant="team" if number % 2 else "acme", key_id="")

    clients = [asyncio.create_task(client(name)) for name in "xyz"]
    await asyncio.sleep(0.05)
    await command.save(place, where)
    ended.set()
    await asyncio.gather(*clients)
    await restored(store, place, where)
    await reaped(quotas, key)

    in_ledger, in_sums, budgets = await balance(store, quotas)
    assert in_ledger > 180
    assert (in_sums, budgets) == (in_ledger, {in_ledger})


@pytest.mark.anyio
async def test_what_is_created_during_the_backup_is_in_it_whole_or_not_at_all(
    store: redis.asyncio.Redis,
    quotas: RedisQuotaStore,
    place: Place,
    where: str,
    key: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read, tenants = snapshot._root, TenantStore(store)
    reads = 0

    async def begun(client: redis.asyncio.Redis, keys: set[bytes]) -> list[snapshot.Record]:
        nonlocal reads
        reads += 1
        if reads == 1:
            await tenants.create({"id": "late", "parent": "acme"})
            await settled(quotas, "l", tenant="late")
            await tenants.create({"id": "other"})
        return await read(client, keys)

    monkeypatch.setattr(snapshot, "_root", begun)
    await command.save(place, where)
    await restored(store, place, where)

    assert [tenant.id for tenant in await tenants.list()] == ["acme", "late", "team"]
    assert [entry.output_tokens for entry in await Ledger(store).entries("acme", "late")] == [20]
    assert (await tenants.create({"id": "other"})).id == "other"


def manifest(where: str) -> Path:
    (file,) = Path(where).glob("2*/manifest.json")
    return file


def damage(where: str, name: str, content: bytes | None) -> None:
    file = manifest(where).with_name(name)
    if content is None:
        file.unlink()
    else:
        file.write_bytes(content)


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("manifest.json", None, "has no manifest.json: it is no backup, or was interrupted"),
        ("manifest.json", b"{", "is damaged: its manifest.json cannot be read; use another backup"),
        ("manifest.json", b'{"format": 9}', "has format 9: restore it with the release that made it"),
        ("keys-00000.gz", None, "is damaged: keys-00000.gz is missing; use another backup"),
        ("keys-00000.gz", b"other", "is damaged: keys-00000.gz was changed; use another backup"),
    ],
)
async def test_a_damaged_backup_is_refused_before_anything_is_written(
    store: redis.asyncio.Redis, place: Place, where: str, key: str, name: str, content: bytes | None, message: str
) -> None:
    await command.save(place, where)
    damage(where, name, content)

    with pytest.raises(CommandError, match=message):
        await restored(store, place, where)

    assert await store.keys("fl:*") == []


@pytest.mark.anyio
async def test_a_backup_of_a_newer_schema_is_refused(
    store: redis.asyncio.Redis, place: Place, where: str, key: str
) -> None:
    await command.save(place, where)
    made = msgspec.json.decode(manifest(where).read_bytes())
    damage(where, "manifest.json", msgspec.json.encode({**made, "schema": "3 2", "release": "3.0"}))

    with pytest.raises(CommandError, match=r"cannot be restored.*schema 3 is too new.*use Fairlane 3.0, which made it"):
        await restored(store, place, where)


@pytest.mark.anyio
async def test_a_store_that_has_tenants_is_not_overwritten(
    store: redis.asyncio.Redis, place: Place, where: str, key: str
) -> None:
    await command.save(place, where)
    before = await state(store, key)

    with pytest.raises(CommandError, match="the store is not empty: it has 'fl:"):
        await command.load(place, where, None)

    assert await state(store, key) == before


@pytest.mark.anyio
async def test_nothing_works_on_a_store_until_an_interrupted_restore_is_repeated(
    store: redis.asyncio.Redis,
    store_url: str,
    place: Place,
    where: str,
    key: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = await state(store, key)
    await command.save(place, where)
    with monkeypatch.context() as patch:
        patch.setattr(contents, "restore", None)
        with pytest.raises(TypeError):
            await restored(store, place, where)

    (fault,) = await checks.faults(store_url, GATEWAY_COMMANDS, timeout_s=10.0)
    assert (fault.kind, fault.is_serious) == (FaultKind.SCHEMA, True)
    assert "has not ended: wait for it, or repeat `fairlane restore`" in str(fault)

    await command.load(place, where, None)
    assert await state(store, key) == before
    assert await checks.faults(store_url, GATEWAY_COMMANDS, timeout_s=10.0) == []


@pytest.mark.anyio
async def test_operators_and_budgets_are_restored_into_their_own_stores(
    valkey_url: str, file_url: str, tmp_path: Path, where: str
) -> None:
    split = Place(valkey_url, file_url, tmp_path.as_uri(), tmp_path)
    async with topology.client(valkey_url) as main, topology.client(file_url) as budgets:
        await AdminKeys(main, None).ensure()
        await TenantStore(budgets).create({"id": "acme"})
        before = {key: await main.get(key) for key in ("fl:admin-key",)}
        made = await command.save(split, where)
        for client in (main, budgets):
            await client.flushall()

        await command.load(split, where, None)
        assert set(await main.keys("fl:*")) == {b"fl:admin-key", schema.KEY.encode()}
        assert await budgets.get("fl:admin-key") is None
        assert [tenant.id for tenant in await TenantStore(budgets).list()] == ["acme"]
        await budgets.flushall()
        await main.flushall()

        await command.load(Place(valkey_url, valkey_url, split.files_url, split.drafts), where, made["backup"])
        assert {key: await main.get(key) for key in before} == before
        assert [tenant.id for tenant in await TenantStore(main).list()] == ["acme"]


@pytest.mark.anyio
async def test_a_backup_may_be_in_a_bucket(
    store: redis.asyncio.Redis, place: Place, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, bucket = await state(store, key), BucketStorage(MemoryStore())
    monkeypatch.setattr(archive, "storage", lambda _: bucket)

    made = await command.save(place, "s3://backups")
    await restored(store, place, "s3://backups")

    assert await state(store, key) == before
    with pytest.raises(CommandError, match=r"other has no manifest.json: it is no backup"):
        await command.load(place, "s3://backups", "other")
    assert made["files"] == 0


@pytest.mark.anyio
async def test_the_rights_that_the_documentation_names_are_enough(
    store: redis.asyncio.Redis, place: Place, where: str, key: str
) -> None:
    before = await state(store, key)
    more = re.findall(r"\+[a-z]+", re.findall(r"user needs `(.*?)`", RECOVERY.read_text())[0])
    commands = [f"+{name.partition(' ')[0].lower()}" for name in GATEWAY_COMMANDS]
    with acl.administering(place.main_url) as admin:
        url = acl.user_url(admin, place.main_url, "~fl:*", "+info", *commands, *more)
        bounded = Place(url, url, place.files_url, place.drafts)
        await command.save(bounded, where)
        await store.flushall()
        await command.load(bounded, where, None)

    assert await state(store, key) == before


@pytest.mark.anyio
async def test_a_place_without_a_backup_is_named(place: Place, where: str) -> None:
    with pytest.raises(CommandError, match="there is no backup in this place"):
        await command.load(place, where, None)


def test_the_commands(valkey_url: str, tmp_path: Path) -> None:
    with redis.from_url(topology.one_server(valkey_url)) as client:
        client.set("fl:admin-key", "00")
    where, environ = tmp_path / "backups", {"FAIRLANE_REDIS_URL": valkey_url, "FAIRLANE_DATA_DIR": str(tmp_path)}

    def run(*arguments: str) -> Result:
        return CliRunner().invoke(cli.app, arguments, env=environ)

    made = run("backup", str(where), "--json")
    document = json.loads(made.stdout)
    assert (made.exit_code, document["keys"], document["files"]) == (0, 1, 0)
    check, apply = run("migrate", "--check"), run("migrate", "--apply")
    assert (check.exit_code, apply.exit_code) == (0, 0)
    assert check.stdout == apply.stdout == f"the data has schema {schema.SCHEMA}\n"
    refused = run("restore", str(where))
    assert (refused.exit_code, refused.stderr.count("\n")) == (1, 1)
    assert "the store is not empty: it has 'fl:admin-key'" in refused.stderr
    with redis.from_url(valkey_url) as client:
        client.flushall()
    restored = run("restore", str(where), "--name", document["backup"])
    assert (restored.exit_code, restored.stdout.split()[:2]) == (0, ["field", "value"])


def test_the_embedded_store_is_started_unless_serve_runs_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, where = tmp_path / "data", str(tmp_path / "backups")
    monkeypatch.setenv("FAIRLANE_DATA_DIR", str(data))

    def run(*arguments: str) -> Result:
        return CliRunner().invoke(cli.app, arguments)

    with only_one(data):  # as `fairlane serve` does
        with (
            pytest.raises(StoreError, match=r"uses .*data: stop it, or name another folder with --data-dir"),
            only_one(data),
        ):
            pass
        store = EmbeddedStore(data / "store")
        store.start()
        with redis.from_url(store.url) as client:
            client.set("fl:admin-key", "00")
        assert run("backup", where).exit_code == 0
        store.stop()
    assert run("backup", where).exit_code == 0
    assert "is not empty" in run("restore", where).stderr
    monkeypatch.setenv("FAIRLANE_DATA_DIR", str(tmp_path / "other"))
    assert "other does not exist, and FAIRLANE_REDIS_URL names no store" in run("backup", where).stderr
    assert run("restore", where).exit_code == 0

    again = EmbeddedStore(tmp_path / "other" / "store")
    again.start()
    with redis.from_url(again.url) as client:
        assert client.get("fl:admin-key") == b"00"
    again.stop()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["migrate"], "say either --check or --apply"),
        (["backup", "ftp://there"], "ftp://there: "),
        (["restore", "{tmp}/none"], "there is no backup in this place"),
    ],
)
def test_a_command_that_cannot_be_done_says_why(
    valkey_url: str, tmp_path: Path, arguments: list[str], message: str
) -> None:
    given = [each.format(tmp=tmp_path) for each in arguments]
    done = CliRunner().invoke(cli.app, given, env={"FAIRLANE_REDIS_URL": valkey_url})

    assert (done.exit_code, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert message in done.stderr


def test_a_store_that_does_not_answer_is_named(tmp_path: Path) -> None:
    environ = {"FAIRLANE_REDIS_URL": f"unix://{tmp_path}/none.sock"}
    done = CliRunner().invoke(cli.app, ["backup", str(tmp_path)], env=environ)

    assert done.exit_code == 1
    assert "the store or the place of the backup failed (ConnectionError: " in done.stderr
