"""What a gateway leaves behind that is killed between a change and its place in the audit log."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import redis.asyncio

from fairlane.quotas import keyspace
from fairlane.quotas.audit import MOVED_AT_ONCE, Audit, AuditOutbox
from fairlane.quotas.scripts import Database, Reply
from fairlane.quotas.tenants import TenantStore
from fairlane.quotas.upkeep import QUIET_AFTER_MS
from fairlane.store.errors import StoreUnavailable
from tests.support.quotas.auditing import OUTBOX, failing, note, rename, told, upkeep

pytestmark = pytest.mark.anyio


@contextmanager
def away_log(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A block in which changes are made and the log cannot be written."""
    with monkeypatch.context() as patch:
        failing(patch, StoreUnavailable("away"), only="audit_write")
        yield


KILLED = """
import asyncio, os, signal, sys
from fairlane.quotas.audit import Note
from fairlane.quotas.scripts import Database
from fairlane.quotas.tenants import TenantStore
from tests.support.store import topology

run = Database.run

async def until_then(database, script, *rest):
    if script == "audit_write":
        os.kill(os.getpid(), signal.SIGKILL)
    return await run(database, script, *rest)

Database.run = until_then
note = Note(actor="admin", action="tenant.delete", target="acme", changes={"name": "gone"})
asyncio.run(TenantStore(topology.client(sys.argv[1])).delete("acme", note=note))
"""


async def test_a_process_that_is_killed_right_after_its_change_loses_no_entry(
    store: redis.asyncio.Redis, store_url: str
) -> None:
    await TenantStore(store).create({"id": "acme"})

    ended = await asyncio.to_thread(subprocess.run, [sys.executable, "-c", KILLED, store_url], env={**os.environ})
    gone, waits = await TenantStore(store).get("acme") is None, await store.llen(OUTBOX)
    for _ in range(2):
        await upkeep(store)

    assert ended.returncode == -signal.SIGKILL
    assert (gone, waits) == (True, 1)
    assert await told(store) == ["gone"]


@pytest.mark.parametrize("lost", ["audit_write", "LREM"])
async def test_what_was_left_goes_before_the_next_change_and_is_there_once(
    store: redis.asyncio.Redis, monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    await TenantStore(store).create({"id": "acme"})
    with monkeypatch.context() as patch:
        failing(patch, StoreUnavailable("away"), only=lost)
        await rename(store, "one")
        await rename(store, "two")
    assert await store.llen(OUTBOX) == 2

    await rename(store, "three")

    assert await told(store) == ["one", "two", "three"]
    assert not await store.exists(OUTBOX)


async def test_many_that_move_at_once_write_each_entry_once_and_in_order(
    store: redis.asyncio.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    await TenantStore(store).create({"id": "acme"})
    names = [f"name {number}" for number in range(12)]
    with away_log(monkeypatch):
        for name in names:
            await rename(store, name)

    await asyncio.gather(*(AuditOutbox(Database(store)).move("acme") for _ in range(5)), upkeep(store))

    assert await told(store) == names


async def test_an_entry_says_when_the_change_was_made_not_when_it_was_moved(
    store: redis.asyncio.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    await TenantStore(store).create({"id": "acme"})
    with away_log(monkeypatch):
        await rename(store)
    made_ms = int((await Database(store).call("LINDEX", OUTBOX, 0)).split(" ")[0])

    await upkeep(store)

    (entry,) = await Audit(store).list()
    assert entry.at == made_ms / 1e3
    assert int(entry.id.split("-")[0]) >= made_ms


async def test_a_log_that_does_not_follow_stops_changes_and_loses_nothing(store: redis.asyncio.Redis) -> None:
    tenants = TenantStore(store)
    await tenants.create({"id": "acme"})
    waiting = [f"{number} {note(name=number).encoded()}" for number in range(1000)]
    await store.rpush(OUTBOX, *waiting[1:])

    await store.set(keyspace.AUDIT, "what no entry can be added to")
    await rename(store, "the last")
    with pytest.raises(StoreUnavailable, match="audit log"):
        await rename(store, "one too many")
    assert (await tenants.update("acme", {"weight": 2})).name == "the last"
    await store.delete(keyspace.AUDIT)

    left = []
    while await store.exists(OUTBOX):
        await upkeep(store)
        left.append(await store.llen(OUTBOX))

    assert left == list(range(1000 - MOVED_AT_ONCE, -1, -MOVED_AT_ONCE))
    entries = [entry.changes["name"] for entry in await Audit(store).list(2000)]
    assert entries == ["the last", *range(999, 0, -1)]


async def test_a_root_is_not_forgotten_while_an_entry_waits_there_or_once_it_is_enlisted_anew(
    store: redis.asyncio.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    await TenantStore(store).create({"id": "acme"})
    with away_log(monkeypatch):
        await rename(store)
        await store.zadd(keyspace.ROOTS, {"acme": 1})
        await upkeep(store)
    kept = await store.zscore(keyspace.ROOTS, "acme")
    run = Database.run

    async def meanwhile(database: Database, script: str, key: str, *args: str | int | bytes) -> Reply:
        if script == "unlist":
            await rename(store, "again")
        return await run(database, script, key, *args)

    await upkeep(store)
    monkeypatch.setattr(Database, "run", meanwhile)
    await upkeep(store)

    seconds, _ = await store.time()
    assert kept == 1
    assert await told(store) == ["new", "again"]
    assert (await store.zscore(keyspace.ROOTS, "acme") or 0) > seconds * 1e3 - QUIET_AFTER_MS
