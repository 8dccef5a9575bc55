"""Gateways, workers and the store are killed at random moments, and the budget still adds up to the token."""

import os
import random
from pathlib import Path

import pytest

from tests.system.appended import Account
from tests.system.chaos import World

pytestmark = [pytest.mark.system, pytest.mark.anyio]

SCHEDULES = int(os.environ.get("FAIRLANE_TEST_SCHEDULES", "4"))
"""More of them on a machine of one's own: FAIRLANE_TEST_SCHEDULES=200."""
SEED = int(os.environ.get("FAIRLANE_TEST_SEED", "7"))
LIMIT = 10**7


async def test_what_was_charged_is_what_was_published_whoever_is_killed(tmp_path: Path) -> None:
    with World(tmp_path, random.Random(SEED)) as world:
        await world.ready()
        await world.admin("POST", "/tenants", json={"id": "acme", "limits": {"tokens_per_month": LIMIT}})
        world.key = (await world.admin("POST", "/tenants/acme/keys", json={"name": "test"}))["key"]
        for _ in range(SCHEDULES):
            await world.schedule()
            await world.ready()
        await world.landed()

    account = Account("acme", LIMIT).follow(tmp_path)
    charged = {booking: int(entry["output_tokens"]) for booking, entry in account.ledger.items()}
    assert charged == {booking: account.published_of(booking) for booking in charged}
    assert {flight.split("-")[0] for flight in account.published} <= charged.keys()
    assert account.spent == sum(charged.values()) + sum(int(e["prompt_tokens"]) for e in account.ledger.values())
    assert account.worst <= LIMIT


async def test_a_budget_is_never_exceeded_whoever_is_killed(tmp_path: Path) -> None:
    limit = 1_500
    with World(tmp_path, random.Random(SEED + 1)) as world:
        await world.ready()
        await world.admin("POST", "/tenants", json={"id": "acme", "limits": {"tokens_per_month": limit}})
        world.key = (await world.admin("POST", "/tenants/acme/keys", json={"name": "test"}))["key"]
        for _ in range(max(2, SCHEDULES // 4)):
            await world.schedule()
            await world.ready()
        await world.landed()

    account = Account("acme", limit).follow(tmp_path)
    assert account.worst <= limit
    assert account.spent == sum(int(e["prompt_tokens"]) + int(e["output_tokens"]) for e in account.ledger.values())
    assert sum(account.published.values()) == sum(int(e["output_tokens"]) for e in account.ledger.values())
