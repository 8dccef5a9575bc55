"""What a deleted tenant had: found by nobody at once, and in no place after its erasure."""

import asyncio
import dataclasses
import logging
import secrets
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis.asyncio

from fairlane.cli.embedded_store import EmbeddedStore
from fairlane.gateway.batches.files import contents, new_id
from fairlane.gateway.batches.storage import FolderStorage
from fairlane.quotas import erasure as quota_erasure
from fairlane.quotas import keyspace
from fairlane.quotas.erasure import ErasureList
from fairlane.scheduler.queue import rooms
from tests.support.gateway.batch_files import begun, ended, folder_settings, line, lines, upload
from tests.support.gateway.served import CHAT, OPERATOR, Served, gateway, serving, until
from tests.support.scheduler.queues import room

pytestmark = pytest.mark.anyio

WORD = secrets.token_hex(6)
CANARIES = {
    place: f"canary-{place}-{WORD}"
    for place in ("tenant", "key", "file", "prompt", "custom", "chat", "response", "request", "metadata")
}


@pytest.fixture
async def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Served]:
    """A gateway before the embedded store of its data directory."""
    monkeypatch.setattr(rooms, "HANDED_PATIENCE_MS", 1)  # else a silent worker costs a second
    store = EmbeddedStore(tmp_path / "store")
    store.start()
    try:
        async with serving(folder_settings(store.url, tmp_path, files={"batch_lease_s": 1.0})) as opened:
            await opened.store.config_set("rdbcompression", "no")  # so that a search of its files finds text
            yield opened
    finally:
        store.stop()


async def admin(served: Served, method: str, path: str, **body: Any) -> httpx.Response:
    async with served.http as client:
        answer = await client.request(method, f"/admin/v1{path}", json=body or None, headers=OPERATOR)
    assert answer.is_success, answer.text
    return answer


async def everything(store: redis.asyncio.Redis) -> bytes:
    """All that the store holds: every key, and every value by its type."""
    found = list[object]()
    async for key in store.scan_iter(count=1_000):
        kind = (await store.execute_command("TYPE", key)).decode()  # type: ignore[no-untyped-call]
        command: dict[str, tuple[object, ...]] = {
            "string": ("GET", key),
            "hash": ("HGETALL", key),
            "set": ("SMEMBERS", key),
            "zset": ("ZRANGE", key, 0, -1),
            "list": ("LRANGE", key, 0, -1),
            "stream": ("XRANGE", key, "-", "+"),
        }
        if kind in command:  # else it has just gone
            found += [key, await store.execute_command(*command[kind], NEVER_DECODE=True)]  # type: ignore[no-untyped-call]
    return b"\n".join(_flat(found))


def _flat(value: object) -> Iterable[bytes]:
    if isinstance(value, dict):
        value = [*value.keys(), *value.values()]
    if isinstance(value, list | tuple | set):
        return [part for each in value for part in _flat(each)]
    return [value if isinstance(value, bytes) else str(value).encode()]


def on_disk(folder: Path) -> bytes:
    return b"\n".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())


def places(found: bytes) -> set[str]:
    return {place for place, text in CANARIES.items() if text.encode() in found}


async def rewritten(store: redis.asyncio.Redis) -> None:
    """Wait until no rewrite of the append-only file is under way."""
    while True:
        known = await store.info("persistence")
        if not (known["aof_rewrite_in_progress"] or known["aof_rewrite_scheduled"]):
            return
        await asyncio.sleep(0.02)


async def fill(served: Served) -> dict[str, str]:
    """Leave canaries wherever a tenant can leave anything; ids of what was made."""
    await admin(served, "POST", "/tenants", id="acme", name=CANARIES["tenant"])
    made = (await admin(served, "POST", "/tenants/acme/keys", name=CANARIES["key"])).json()
    served.keys["acme"] = made["key"]
    lines = b"\n".join(line(f"{CANARIES['custom']}-{number}", prompt=CANARIES["prompt"]) for number in range(3))
    async with served.sdk() as client:
        kept = await client.files.create(file=(f"{CANARIES['file']}.jsonl", lines), purpose="batch")
        batch = await client.batches.create(
            input_file_id=kept.id,
            endpoint="/v1/completions",
            completion_window="24h",
            metadata={"of": CANARIES["metadata"]},
        )
        batch = await ended(client, batch)
        assert batch.status == "completed"
        response = await client.responses.create(model="tiny", input=CANARIES["response"])
    await served.worker.queue.turn("silent", room(latency=1))  # it gets the next request at once, and never starts it
    asked = {"model": "tiny", "messages": [{"role": "user", "content": CANARIES["chat"]}], "max_tokens": 3}
    headers = {"idempotency_key": CANARIES["chat"], "x_request_id": CANARIES["request"]}
    assert (await served.post(CHAT, asked, **headers)).status_code == 200
    await served.landed()
    await served.worker.outlet.emptied()
    await served.resources.insight.recorder.flush()
    assert batch.output_file_id is not None
    return {"file": kept.id, "output": batch.output_file_id, "batch": batch.id, "response": response.id}


async def test_what_a_deleted_tenant_had_is_found_by_nobody_and_then_nowhere(
    served: Served, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.DEBUG)
    ids = await fill(served)
    before = await everything(served.store)
    assert places(before) >= {"tenant", "key", "file", "custom", "request", "metadata"} - {"custom"}
    assert {"prompt", "custom"} <= places(on_disk(tmp_path / "files"))

    await admin(served, "DELETE", "/tenants/acme")
    await admin(served, "POST", "/tenants", id="acme")
    served.keys["acme"] = (await admin(served, "POST", "/tenants/acme/keys", name="new")).json()["key"]
    answers = [
        await served.get(f"/v1/files/{ids['file']}"),
        await served.get(f"/v1/files/{ids['file']}/content"),
        await served.get(f"/v1/files/{ids['output']}/content"),
        await served.get(f"/v1/batches/{ids['batch']}"),
        await served.get(f"/v1/responses/{ids['response']}"),
        await served.get(f"/v1/requests/{CANARIES['request']}"),
    ]
    assert {answer.status_code for answer in answers} == {404}
    assert [(await served.get(f"/v1/{kind}")).json()["data"] for kind in ("files", "batches")] == [[], []]
    usage = (await admin(served, "GET", "/tenants/acme/usage")).json()
    assert (usage["total"]["requests"], usage["earlier"]) == (0, [""])
    assert (await admin(served, "GET", "/tenants/acme/usage?incarnation=")).json()["total"]["requests"] == 5

    monkeypatch.setattr(quota_erasure, "SETTLED_S", 0.0)
    await rewritten(served.store)
    erased = (await admin(served, "POST", "/tenants/acme/erase")).json()
    await rewritten(served.store)

    assert (erased["id"], erased["tenants"], erased["complete"]) == ("acme", 1, True)
    assert erased["erased"]["ledger_entries"] == 5
    assert places(await everything(served.store)) == set()
    assert places(on_disk(tmp_path)) == set()
    logged = "\n".join(record.getMessage() for record in caplog.records if record.name.startswith("fairlane"))
    assert places(logged.encode()) == {"request"}  # by which a caller finds its requests in our logs
    assert (await admin(served, "GET", "/tenants/acme")).json()["id"] == "acme"
    assert (await served.get("/v1/files")).status_code == 200


async def files_of(served: Served, folder: Path) -> tuple[list[str], set[bytes]]:
    """What is left of files: on disk, and in the store."""
    left = [path.name for path in (folder / "files" / "files").glob("*")]
    kept = {key async for key in served.store.scan_iter("fl:batches:*acme*") if b":take:" not in key}
    return left, kept  # what a gateway took last is known for one lease


async def test_another_gateway_goes_on_where_one_was_killed(
    valkey_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    delete, deleted, died = FolderStorage.delete, list[str](), asyncio.Event()

    async def dies(storage: FolderStorage, name: str) -> None:
        if len(deleted) == 3:
            died.set()
            raise asyncio.CancelledError
        deleted.append(name)
        await delete(storage, name)

    async with serving(folder_settings(valkey_url, tmp_path)) as first:
        await first.tenant()
        for _ in range(4):
            assert (await upload(first, line("a"))).status_code == 200
        monkeypatch.setattr(FolderStorage, "delete", dies)
        await first.resources.accounts.tenants.delete("acme")
        first.resources.control.erasure.wake()
        await asyncio.wait_for(died.wait(), 30.0)
        assert len((await files_of(first, tmp_path))[0]) == 5
        monkeypatch.setattr(FolderStorage, "delete", delete)
        await first.store.delete("fl:eraser")  # as its lease lapses
        async with gateway(folder_settings(valkey_url, tmp_path)) as second:
            await second.resources.control.erasure.round()

            assert await files_of(second, tmp_path) == ([], set())


async def test_a_round_has_the_store_rewrite_its_file_once_for_all_tenants(served: Served) -> None:
    """A store makes one rewrite at a time: those whose rewrite did not begin would be passed over again and again."""
    names, listed = [f"t{number}" for number in range(5)], ErasureList(served.store)
    for name in names:
        await served.tenant(name)
        await served.resources.accounts.tenants.delete(name)
    await rewritten(served.store)
    before = (await served.store.info("persistence"))["aof_rewrites"]

    await served.resources.control.erasure.round()

    now_ms = await listed.now_ms()
    await rewritten(served.store)
    assert (await served.store.info("persistence"))["aof_rewrites"] == before + 1
    assert [await listed.due(name, now_ms + 60_000) for name in names] == [[]] * 5
    assert [len(await listed.due(name, now_ms + 10**6)) for name in names] == [1] * 5


async def test_what_comes_after_the_first_pass_goes_with_the_last(served: Served, tmp_path: Path) -> None:
    """As an upload that was on its way when its tenant was deleted."""
    parts, listed = served.resources, ErasureList(served.store)
    await served.tenant()
    await parts.accounts.tenants.delete("acme")
    await parts.control.erasure.round()
    assert await listed.due("acme", await listed.now_ms()) == []
    late = new_id()
    await parts.batches.files.open("acme", "acme", late)
    draft = parts.batches.drafts.new()
    draft.write_bytes(b"late")
    await parts.batches.storage.put(contents(late), draft)

    (gone,) = await listed.due("acme", await listed.now_ms() + 10**6)
    await rewritten(served.store)
    await parts.control.erasure.erase([dataclasses.replace(gone, deleted_ms=gone.deleted_ms - 10**6)])

    assert await files_of(served, tmp_path) == ([], set())
    assert await listed.due("acme", 10**15) == []


async def test_an_open_batch_is_cancelled_before_it_is_erased(served: Served, tmp_path: Path) -> None:
    await served.tenant()
    served.worker.limit = 2
    async with served.sdk() as client:
        batch = await begun(client, lines(4, max_tokens=8, ignore_eos=True))
        await until(lambda: len(served.worker.seen) == 4)
    await served.resources.accounts.tenants.delete("acme")

    erased = await served.resources.control.erasure.erase(await ErasureList(served.store).due("acme", 10**15))
    assert not erased.is_complete
    await until(lambda: not served.resources.batches.runner.open_count)
    known = await served.resources.batches.records.get("acme", "acme", batch.id)
    assert known is not None
    assert known.status == "cancelled"
    await served.resources.control.erasure.erase(await ErasureList(served.store).due("acme", 10**15))

    assert await served.resources.batches.records.get("acme", "acme", batch.id) is None
    assert await files_of(served, tmp_path) == ([], set())


async def test_an_id_that_was_erased_may_be_anothers(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quota_erasure, "SETTLED_S", 0.0)
    tenants = served.resources.accounts.tenants
    await tenants.create({"id": "acme"})
    await tenants.delete("acme")
    assert (await admin(served, "POST", "/tenants/acme/erase")).json()["complete"]
    assert await tenants.root("acme") is None
    left = [key async for key in served.store.scan_iter("*acme*") if await served.store.ttl(key) < 0]
    assert left == []

    await tenants.create({"id": "zeta"})
    assert (await tenants.create({"id": "acme", "parent": "zeta"})).root == "zeta"
    assert await served.store.ttl(f"{keyspace.of_root('zeta')}tenant:acme") == -1
