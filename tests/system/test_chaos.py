"""Gateways, workers and the store are killed at random moments, and the budget still adds up to the token."""

import os
import random
from pathlib import Path

import pytest

from tests.support.system.appended import Account
from tests.support.system.chaos import Received, World

pytestmark = [pytest.mark.system, pytest.mark.anyio]

SCHEDULES = int(os.environ.get("FAIRLANE_TEST_SCHEDULES", "2"))
"""Of the thorough cases; more of them on a machine of one's own: FAIRLANE_TEST_SCHEDULES=200."""
PER_STORE = 20
"""A store that lives much longer rewrites its file, which then no longer says what happened."""
SEED = int(os.environ.get("FAIRLANE_TEST_SEED", "7"))
AMPLE, SCARCE = 10**7, 1_500
QUANTUM = 16 * 4
"""Output tokens of the first reservation: of two prompts with two choices each."""


async def lives(directory: Path, schedules: int, seed: int, limit: int) -> tuple[Account, list[Received]]:
    """What became of one tenant's budget, and what its clients got for it."""
    with World(directory, random.Random(seed)) as world:
        await world.ready()
        world.key = await world.tenant("acme", limits={"tokens_per_month": limit})
        for _ in range(schedules):
            await world.schedule()
            await world.ready()
        await world.landed()
    return Account("acme", limit).follow(directory), world.received


def least(received: Received) -> int:
    """Tokens that are charged at least. If a gateway and a worker die together, those since the last extension of the
    reservation are not, which are at most as many as before it."""
    return received.tokens if received.deaths < 2 else max(0, received.tokens // 2 - QUANTUM)


@pytest.mark.parametrize(
    ("schedules", "limit"),
    [
        (1, SCARCE),
        pytest.param(SCHEDULES, AMPLE, marks=pytest.mark.thorough),
        pytest.param(SCHEDULES, SCARCE, marks=pytest.mark.thorough),
    ],
)
async def test_what_was_charged_is_what_was_delivered_whoever_is_killed(
    tmp_path: Path, schedules: int, limit: int
) -> None:
    for first in range(0, schedules, PER_STORE):
        directory = tmp_path / str(first)
        directory.mkdir()
        account, received = await lives(directory, min(PER_STORE, schedules - first), SEED + first + limit, limit)

        entries = account.ledger.values()
        charged = {booking: int(entry["output_tokens"]) for booking, entry in account.ledger.items()}
        whole = {each.booking: each.tokens for each in received if each.is_whole and each.booking}
        assert whole == {booking: charged.get(booking) for booking in whole}
        assert [each for each in received if charged.get(each.booking, 0) < least(each)] == []
        assert whole
        assert account.spent == sum(int(entry["prompt_tokens"]) + int(entry["output_tokens"]) for entry in entries)
        assert account.worst <= limit
