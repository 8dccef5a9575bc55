"""A gateway process is killed: what it had finished is still found, what it ran ends in the records of another's."""

import asyncio
from typing import Any

import httpx
import pytest

from tests.support.gateway.served import ASKED, CHAT, OPERATOR, WAIT_S, Served, serving, settings
from tests.support.gateway.spawned import LEASE_S, process

pytestmark = pytest.mark.anyio


async def in_state(served: Served, name: str, state: str) -> dict[str, Any]:
    """A request of acme's, once it is so by the word of the gateway that lives."""
    async with asyncio.timeout(WAIT_S):
        while True:
            answer = await served.get(f"/v1/requests/{name}")
            found: dict[str, Any] = answer.json()
            if answer.status_code == 200 and found["state"] == state:
                return found
            await asyncio.sleep(0.02)


async def test_a_killed_gateways_requests_do_not_run_for_ever_and_its_finished_ones_stay(valkey_url: str) -> None:
    chosen = settings(valkey_url, section={"reservation_lease_s": LEASE_S}, lease_s=LEASE_S)
    async with serving(chosen) as served, process(valkey_url) as (started, base):
        await served.tenant()
        headers = {"authorization": f"Bearer {served.keys['acme']}"}
        async with httpx.AsyncClient(base_url=base, timeout=WAIT_S) as client:
            await client.post(CHAT, json=ASKED, headers={**headers, "x-request-id": "finished"})
            before = await in_state(served, "finished", "ended")
            served.worker.limit = 2
            owner = asyncio.create_task(client.post(CHAT, json=ASKED, headers={**headers, "x-request-id": "cut"}))
            running = await in_state(served, "cut", "running")
            started.kill()
            await asyncio.gather(owner, return_exceptions=True)

        ended = await in_state(served, "cut", "ended")

        assert await in_state(served, "finished", "ended") == before
        assert running["gateway"] == ended["gateway"] == before["gateway"] != served.resources.gateway_id
        outputs = {outcome: output for outcome, _, output in await served.ledger()}
        assert (ended["outcome"], ended["charges"]["output_tokens"]) == ("cancelled", outputs["cancelled"])
        assert "was lost" in ended["why"]
        async with served.http as client:
            page = (await client.get("/admin/v1/requests?state=running", headers=OPERATOR)).json()
        assert page["data"] == []
