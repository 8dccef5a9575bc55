"""A store that is lost whole, with its disk, under load: `fairlane restore` brings back what was saved, exactly.

`-s` prints how long each step took, and how many requests were not charged because they ended after the backup."""

import asyncio
import json
import secrets
import shutil
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from fairlane.cli.embedded_store import EmbeddedStore
from fairlane.quotas.escrow.transfers import Ending, Rights, Transfer
from fairlane.quotas.ledger import Ledger
from fairlane.quotas.redis_store import RedisQuotaStore
from fairlane.quotas.tenants import TenantStore
from fairlane.store.bounds import chunks
from fairlane.store.connections import connections
from tests.support.quotas.house import ask, charge
from tests.support.store import topology
from tests.support.system.traffic import HERE, LONG, WAIT_S, Answer, Fleet

pytestmark = [pytest.mark.anyio, pytest.mark.thorough]

TENANTS, ENTRIES, PER_CALL = 1_000, 100, 50
MODEL = "tiny"
# For which requests are served after the backup, and before the loss.
AFTER_S = 3.0


async def fill(url: str) -> None:
    """Make tenants with limits and settled requests."""
    store = connections(url, timeout_s=WAIT_S, limit=16)
    tenants, quotas = TenantStore(store.patient), RedisQuotaStore(store.patient)

    async def one(number: int) -> None:
        tenant = f"tenant-{number}"
        await tenants.create({"id": tenant, "limits": {"tokens_per_day": 10**7, "tokens_per_month": 10**8}})
        for pool in range(ENTRIES // PER_CALL):
            asked = [ask(secrets.token_hex(12), tenant=tenant, root=tenant) for _ in range(PER_CALL)]
            ended = tuple(Ending(ask=each, charge=charge()) for each in asked)
            place: Any = {"root": tenant, "account": tenant, "key_id": "", "model": "smol", "lane": "latency"}
            await quotas.transfer(
                Transfer(pool=f"{number:08}{pool:08}", call=1, first=0, wanted=Rights(), entries=ended, **place)
            )

    for some in chunks(range(TENANTS), 32):
        await asyncio.gather(*(one(number) for number in some))
    await store.aclose()


async def fairlane(url: str, directory: Path, *arguments: str) -> dict[str, Any]:
    """Run the command with a store."""
    environ = {"PYTHONPATH": str(HERE), "FAIRLANE_REDIS_URL": url, "FAIRLANE_DATA_DIR": str(directory / "data")}
    command = [sys.executable, "-c", "from fairlane.cli.main import main; main()", *arguments, "--json"]
    process = await asyncio.create_subprocess_exec(*command, env=environ, stdout=-1, stderr=-1, cwd=HERE)
    told, complaint = await process.communicate()
    assert process.returncode == 0, complaint.decode()
    found: dict[str, Any] = json.loads(told)
    return found


async def balances(url: str) -> dict[str, tuple[int, int]]:
    """Return what each tenant's ledger and budget say, once nothing is reserved."""
    found = {}
    async with topology.client(url) as client:
        quotas, ledger = RedisQuotaStore(client), Ledger(client)
        for tenant in await TenantStore(client).list(limit=2 * TENANTS):
            async with asyncio.timeout(WAIT_S):
                while (status := (await quotas.statuses(tenant.root, tenant.id))[0]).reserved:  # noqa: ASYNC110
                    await asyncio.sleep(0.1)
            entries = await ledger.entries(tenant.root, tenant.id, limit=10_000)
            assert max(Counter(entry.reservation_id for entry in entries).values(), default=1) == 1
            found[tenant.id] = (sum(entry.prompt_tokens + entry.output_tokens for entry in entries), status.used)
    return found


async def test_a_lost_store_is_restored_under_load(tmp_path: Path) -> None:
    store = EmbeddedStore(tmp_path / "store")
    store.start()
    try:
        await fill(store.url)
        with Fleet(tmp_path, store.url) as fleet:
            fleet.worker(MODEL)
            fleet.urls = [(await fleet.gateway())[1]]
            for tenant in ("acme", "blue"):
                await fleet.tenant(tenant)
            ended = asyncio.Event()
            asking = [asyncio.create_task(fleet.keep_asking(tenant, MODEL, ended)) for tenant in fleet.keys]
            long = [asyncio.create_task(fleet.ask("acme", MODEL, LONG)) for _ in range(4)]
            await asyncio.sleep(AFTER_S)
            backup = await fairlane(store.url, tmp_path, "backup", str(tmp_path / "backups"))
            saved_s = time.monotonic()
            await asyncio.sleep(AFTER_S)

            await asyncio.to_thread(lose, store)
            lost_s = time.monotonic()
            await asyncio.to_thread(store.start)
            restore = await fairlane(store.url, tmp_path, "restore", str(tmp_path / "backups"))
            restored_s = time.monotonic()
            answer = await first(fleet)
            served_s = time.monotonic()
            ended.set()
            short = await asyncio.gather(*asking)
            answers = [answer, *await asyncio.gather(*long), *(each for found in short for each in found)]
            after = await balances(store.url)
    finally:
        store.stop()

    assert len(after) == TENANTS + 2
    assert {tenant: pair for tenant, pair in after.items() if pair[0] != pair[1]} == {}
    assert after["tenant-7"] == (ENTRIES * 30, ENTRIES * 30)
    missing = [each for each in answers if each.is_whole and saved_s < each.ended_s < lost_s]
    sys.stdout.write(
        f"\nbackup: {backup['keys']:,} keys, {backup['bytes'] / 2**20:.1f} MiB in {backup['seconds']:.1f} s\n"
        f"restore: {restore['seconds']:.1f} s; from the loss to its end {restored_s - lost_s:.1f} s, "
        f"to the first answer {served_s - lost_s:.1f} s\n"
        f"after the backup and before the loss: {lost_s - saved_s:.1f} s, {len(missing)} requests\n"
    )


def lose(store: EmbeddedStore) -> None:
    """Kill the store, and delete what it has written."""
    store.process.kill()
    store.process.wait()
    shutil.rmtree(store.socket.parent)


async def first(fleet: Fleet) -> Answer:
    """Ask until an answer is whole."""
    async with asyncio.timeout(WAIT_S):
        while not (answer := await fleet.ask("acme", MODEL, 10)).is_whole:  # noqa: ASYNC110 - as a client does
            await asyncio.sleep(0.2)
    return answer
