"""A budget for exactly 20 of 200 concurrent requests, also with the gateway killed half-way."""

import asyncio
import signal
from contextlib import suppress
from typing import Any

import httpx
import pytest
import redis.asyncio

from fairlane.cli.embedded_store import EmbeddedStore
from fairlane.quotas import keyspace
from tests.support.quotas.house import forget_minute
from tests.support.system.harness import MODEL, Server

pytestmark = [pytest.mark.system, pytest.mark.anyio]

ASKED = 200
SERVED = 20
PROMPT = "Hello"
PROMPT_TOKENS = 1
MAX_TOKENS = 9
COST = PROMPT_TOKENS + MAX_TOKENS


async def ask(server: Server, key: str) -> int:
    """The status of one request; 0 where the connection broke."""
    body = {"model": MODEL, "prompt": PROMPT, "max_tokens": MAX_TOKENS, "ignore_eos": True}
    async with httpx.AsyncClient(timeout=120) as client:
        try:
            answer = await client.post(
                f"{server.url}/v1/completions", json=body, headers={"Authorization": f"Bearer {key}"}
            )
        except httpx.TransportError:
            return 0
    if answer.status_code == httpx.codes.OK:
        assert answer.json()["usage"]["total_tokens"] == COST
    return answer.status_code


async def test_exactly_the_budget_is_served(server: Server) -> None:
    key = server.tenant("budget", limits={"tokens_per_day": SERVED * COST})

    statuses = await asyncio.gather(*(ask(server, key) for _ in range(ASKED)))

    assert sorted(set(statuses)) == [200, 429]
    assert statuses.count(200) == SERVED
    assert day(server) == {"limit": SERVED * COST, "used": SERVED * COST, "reserved": 0, "remaining": 0}


@pytest.mark.thorough
async def test_a_killed_gateway_leaves_nothing_reserved(mortal: Server) -> None:
    key = mortal.tenant("budget", limits={"tokens_per_day": SERVED * COST})

    asking = [asyncio.create_task(ask(mortal, key)) for _ in range(ASKED)]
    await asyncio.wait(asking, return_when=asyncio.FIRST_COMPLETED)
    mortal.child("gateway").send_signal(signal.SIGKILL)
    statuses = await asyncio.gather(*asking)

    assert statuses.count(200) <= SERVED
    left = await settled(mortal)
    with mortal.admin() as admin:
        published = admin.get("/tenants/budget/usage").json()["total"]
    assert left["reserved"] == 0
    assert left["used"] == published["prompt_tokens"] + published["output_tokens"] <= SERVED * COST
    assert left["used"] >= statuses.count(200) * COST


async def test_a_stream_that_a_full_minute_paused_goes_on_as_if_nothing_had_been(mortal: Server) -> None:
    free, budgeted = mortal.tenant("free"), mortal.tenant("minute", limits={"tokens_per_minute": 60})
    body = {"model": MODEL, "prompt": PROMPT, "max_tokens": 40, "ignore_eos": True, "temperature": 0}
    whole = await completion(mortal, free, body)

    await completion(mortal, budgeted, {**body, "max_tokens": 30})
    asking = asyncio.create_task(completion(mortal, budgeted, body))
    url = EmbeddedStore(mortal.directory / "store").url
    async with redis.asyncio.from_url(url) as store, asyncio.timeout(60):
        prefix = keyspace.of_root("minute")
        while not await store.zcard(f"{prefix}paused:tenant:minute"):  # noqa: ASYNC110 - polled: nothing tells of it
            await asyncio.sleep(0.05)
        await forget_minute(store, "minute")
    paused = await asking

    assert paused["choices"] == whole["choices"]
    assert paused["usage"]["completion_tokens"] == 40


async def completion(server: Server, key: str, body: dict[str, object]) -> dict[str, Any]:
    """One answer."""
    async with httpx.AsyncClient(timeout=120) as client:
        answer = await client.post(
            f"{server.url}/v1/completions", json=body, headers={"Authorization": f"Bearer {key}"}
        )
    found: dict[str, Any] = answer.raise_for_status().json()
    return found


async def settled(server: Server) -> dict[str, int]:
    """The day's budget once the restarted gateway has settled what the killed one left."""
    async with asyncio.timeout(60):
        while True:
            with suppress(httpx.HTTPError):  # nobody there yet, or not yet to be answered for: 503
                left = day(server)
                if left["reserved"] == 0:
                    return left
            await asyncio.sleep(0.2)  # polled: nothing tells a client that a lease has ended


def day(server: Server) -> dict[str, int]:
    """The tenant's daily budget, from the admin API."""
    with server.admin() as admin:
        limits = admin.get("/tenants/budget/quota").raise_for_status().json()["limits"]
    return {name: limits["tokens_per_day"][name] for name in ("limit", "used", "reserved", "remaining")}
