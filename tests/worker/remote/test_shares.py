"""Budgets and shares before engines that run elsewhere: two gateways, two lease holders, an engine each."""

import asyncio
import os
import random
from collections import Counter
from pathlib import Path

import pytest
import redis.asyncio

from fairlane.quotas import keyspace
from tests.support.system.appended import Account
from tests.support.system.engine_clients import Asked, Clients, Kind
from tests.support.system.engine_world import EngineWorld
from tests.support.worker.word_model import write_word_model

pytestmark = [pytest.mark.system, pytest.mark.anyio]

BUDGET, STREAMS = 100, 50
"""Tokens of a minute, and how many want 32 of them at once."""
WEIGHTS = {"heavy": 4, "light": 1}
LOOPS = 24
"""Requests that each tenant always has open, three times what both engines compute at a time."""
STEP_S = 0.015
"""Of the engines, that they and nobody else are what all wait for."""
LENGTH = 32
"""Tokens of each request."""
BEGUN = 100
"""Tokens of the light one before the heavy one comes."""
SETTLED, MEASURED = 8_000, 4_000
"""Tokens of the heavy one until the shares have settled, and those that are then counted. Until one is ahead by the
queue's window, 4,096 weighted tokens, both are served alike."""


@pytest.mark.thorough
async def test_fifty_streams_on_a_hundred_tokens_a_minute_are_told_no_token_more(tmp_path: Path) -> None:
    with EngineWorld(
        tmp_path, random.Random(1), {"LEASE_S": "2"}, step_s=0.005, model=write_word_model(tmp_path / "model")
    ) as world:
        await world.ready()
        key = await world.tenant("minute", limits={"tokens_per_minute": BUDGET})
        clients = Clients(world.urls, world.model_name, {Kind.ONCE: key}, world.chooser)
        crowd = [
            asyncio.create_task(clients.ask(Asked(number, Kind.ONCE, (5 + number,), 1, 32)))
            for number in range(STREAMS)
        ]
        async with redis.asyncio.from_url(world.store.url) as store, asyncio.timeout(60):
            paused = f"{keyspace.of_root('minute')}paused:tenant:minute"
            while await store.zcard(paused) < sum(not task.done() for task in crowd):  # noqa: ASYNC110 - polled
                await asyncio.sleep(0.05)
        told = clients.progress.tokens
        for task in crowd:
            task.cancel()
        await asyncio.gather(*crowd, return_exceptions=True)
        await world.landed("minute")
        await world.engines_idle()
        used = (await world.admin("GET", "/tenants/minute/quota"))["limits"]["tokens_per_minute"]["used"]
    account = Account("minute", BUDGET).follow(tmp_path)

    charged = {booking: int(entry["output_tokens"]) for booking, entry in account.ledger.items()}
    prompts = sum(int(entry["prompt_tokens"]) for entry in account.ledger.values())
    assert told == sum(charged.values()) > 0
    assert used == told + prompts <= BUDGET
    assert clients.ends["once refused"] > 0


@pytest.mark.skipif(
    not os.environ.get("FAIRLANE_TEST_HUNT"), reason="wants the machine for itself: FAIRLANE_TEST_HUNT=1"
)
async def test_tenants_share_four_to_one_whichever_gateway_they_come_by(tmp_path: Path) -> None:
    """The light one is there first, and each comes by a gateway of its own: fair at each door alone were one to one."""
    served: Counter[str] = Counter()
    with EngineWorld(
        tmp_path, random.Random(1), {"LEASE_S": "2"}, step_s=STEP_S, slots=4, model=write_word_model(tmp_path / "model")
    ) as world:
        await world.ready()
        crowds: dict[str, Clients] = {}
        for url, (name, weight) in zip(world.urls, WEIGHTS.items(), strict=True):
            key = await world.tenant(name, weight=weight)
            crowds[name] = Clients([url], world.model_name, {Kind.ONCE: key}, world.chooser)

        async def loop(name: str) -> None:
            chooser = random.Random(name)
            while True:
                prompt = tuple(chooser.sample(range(3, 97), 4))
                await crowds[name].ask(Asked(0, Kind.ONCE, prompt, 1, LENGTH, "flex"))

        loops = [asyncio.create_task(loop("light")) for _ in range(LOOPS)]
        try:
            async with asyncio.timeout(300):
                await crowds["light"].progress.reach(BEGUN)
                loops += [asyncio.create_task(loop("heavy")) for _ in range(LOOPS)]
                await crowds["heavy"].progress.reach(SETTLED)
                before = {name: clients.progress.tokens for name, clients in crowds.items()}
                await crowds["heavy"].progress.reach(before["heavy"] + MEASURED)
                waiting = sum(lane["queued"] for lane in (await world.admin("GET", "/lanes"))["data"])
            served.update({name: clients.progress.tokens - before[name] for name, clients in crowds.items()})
        finally:
            for task in loops:
                task.cancel()
            await asyncio.gather(*loops, return_exceptions=True)

    assert waiting > 0
    assert served["heavy"] / served["light"] == pytest.approx(4, rel=0.05), served
