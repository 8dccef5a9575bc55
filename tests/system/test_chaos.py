"""Gateways, workers and the store are killed at random moments, and the budget still adds up to the token."""

import os
import random
from pathlib import Path

import pytest

from tests.support.system.appended import Account
from tests.support.system.chaos import World

pytestmark = [pytest.mark.system, pytest.mark.anyio]

SCHEDULES = int(os.environ.get("FAIRLANE_TEST_SCHEDULES", "2"))
"""Of the thorough cases; more of them on a machine of one's own: FAIRLANE_TEST_SCHEDULES=200."""
PER_STORE = 20
"""A store that lives much longer rewrites its file, which then no longer says what happened."""
SEED = int(os.environ.get("FAIRLANE_TEST_SEED", "7"))
AMPLE, SCARCE = 10**7, 1_500


async def lives(directory: Path, schedules: int, seed: int, limit: int) -> Account:
    """What became of one tenant's budget."""
    with World(directory, random.Random(seed)) as world:
        await world.ready()
        world.key = await world.tenant("acme", limits={"tokens_per_month": limit})
        for _ in range(schedules):
            await world.schedule()
            await world.ready()
        await world.landed()
    return Account("acme", limit).follow(directory)


@pytest.mark.parametrize(
    ("schedules", "limit"),
    [
        (1, SCARCE),
        pytest.param(SCHEDULES, AMPLE, marks=pytest.mark.thorough),
        pytest.param(SCHEDULES, SCARCE, marks=pytest.mark.thorough),
    ],
)
async def test_what_was_charged_is_what_was_published_whoever_is_killed(
    tmp_path: Path, schedules: int, limit: int
) -> None:
    for first in range(0, schedules, PER_STORE):
        directory = tmp_path / str(first)
        directory.mkdir()
        account = await lives(directory, min(PER_STORE, schedules - first), SEED + first + limit, limit)

        entries = account.ledger.values()
        charged = {booking: int(entry["output_tokens"]) for booking, entry in account.ledger.items()}
        assert charged == {booking: account.published_of(booking) for booking in charged}
        assert {job_id.split("-")[0] for job_id in account.published} <= charged.keys() | account.given_back
        assert account.spent == sum(int(entry["prompt_tokens"]) + int(entry["output_tokens"]) for entry in entries)
        assert account.worst <= limit
