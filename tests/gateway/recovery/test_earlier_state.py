"""What the commit 9a40b931, which had no schema yet, left in a data directory: today's code serves it.

`state_of_9a40b931` is a backup of such a directory, without expiries: tenants with keys, limits and prices, a deleted
tenant, settled requests and one that was open when its gateway was killed, a batch with its files, a stored response.
`known.json` is what that code answered."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from fairlane.cli.recovery import command
from fairlane.cli.recovery.place import Place
from fairlane.gateway.config import LedgerSection
from fairlane.quotas.redis_store import RedisQuotaStore
from fairlane.quotas.store import Charge
from tests.support.gateway.batch_files import folder_settings, lines, upload
from tests.support.gateway.served import COMPLETIONS, OPERATOR, Served, serving

pytestmark = pytest.mark.anyio

STATE = Path(__file__).parent / "state_of_9a40b931"
KNOWN: dict[str, Any] = json.loads((STATE / "known.json").read_text())
DAYS = "from=2026-11-28&to=2026-11-30"
LEASE_MS = 100


@pytest.fixture
async def served(valkey_url: str, tmp_path: Path) -> AsyncIterator[Served]:
    chosen = folder_settings(valkey_url, tmp_path, usage_days=10_000, ledger=LedgerSection(days=10_000))
    place = Place(valkey_url, valkey_url, chosen.files_url, chosen.files_folder)
    await command.load(place, str(STATE), None)
    async with serving(chosen) as opened:
        opened.keys = {"acme": KNOWN["key"], "team": KNOWN["team_key"], "idle": KNOWN["idle_key"]}
        yield opened


async def admin(served: Served, path: str, *, key: str = OPERATOR["authorization"]) -> httpx.Response:
    async with served.http as client:
        return await client.get(f"/admin/v1{path}", headers={"authorization": key})


async def test_tenants_keys_ledgers_files_and_responses_are_served(served: Served) -> None:
    tenants = (await admin(served, "/tenants")).json()["data"]
    assert [(each["id"], each["parent"], each["state"]) for each in tenants] == [
        ("acme", None, "active"),
        ("demo", None, "active"),
        ("idle", None, "suspended"),
        ("team", "acme", "active"),
    ]
    usage = (await admin(served, f"/tenants/acme/usage?{DAYS}")).json()
    assert usage["total"] == KNOWN["usage"]
    audit = (await admin(served, "/audit")).json()["data"]
    assert [[entry["actor"], entry["action"], entry["target"]] for entry in audit] == KNOWN["audit"]
    assert (await admin(served, "/tenants", key=f"Bearer {KNOWN['token']}")).status_code == 200
    assert await served.ledger() == [tuple(entry) for entry in KNOWN["ledger"]]
    assert (await admin(served, f"/tenants/past/usage?{DAYS}")).json()["total"]["requests"] == 1
    async with served.sdk() as client:
        assert (await client.batches.retrieve(KNOWN["batch"])).status == "completed"
        assert (await client.files.content(KNOWN["output"])).text == KNOWN["results"]
        response = await client.responses.retrieve(KNOWN["response"])
        assert response.output_text == KNOWN["response_text"]
    asked = {"model": "tiny", "prompt": [5, 6, 7], "max_tokens": 4}
    answers = [await served.post(COMPLETIONS, asked, tenant=tenant) for tenant in ("acme", "team", "idle")]
    served.keys["revoked"] = KNOWN["revoked"]
    answers.append(await served.post(COMPLETIONS, asked, tenant="revoked"))
    assert [answer.status_code for answer in answers] == [200, 200, 403, 401]
    assert (await upload(served, lines(1))).status_code == 200


async def test_a_request_that_was_open_is_settled(served: Served) -> None:
    quotas = RedisQuotaStore(served.store, lease_ms=LEASE_MS)
    async with asyncio.timeout(20):
        while any(status.reserved for status in await quotas.statuses("acme", "acme")):
            await asyncio.sleep(LEASE_MS / 1e4)
            for lapsed in await quotas.expired(10):
                await quotas.settle(lapsed.root, lapsed.reservation_id, Charge.refund())

    assert await served.ledger() == [tuple(entry) for entry in KNOWN["ledger"]]
