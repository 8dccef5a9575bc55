"""Random schedules of gateways that spend rights and die: no limit is ever exceeded, and hardly any of it is lost."""

import os
import random

import pytest

from fairlane.quotas.limits import Limits
from tests.support.quotas.escrow import World, run

EXAMPLES = int(os.environ.get("FAIRLANE_TEST_EXAMPLES", "10"))
"""More of them on a machine of one's own: FAIRLANE_TEST_EXAMPLES=10000."""
PARTS = 5
USABLE = 0.98


def world_of(seed: int) -> World:
    """One limit at a random level, of some size, and a few gateways."""
    draw = random.Random(seed)
    figure = draw.choice([1_000, 2_000, 4_000])
    name = draw.choice(["tokens_per_minute", "tokens_per_day", "tokens_per_month", "requests_per_minute"])
    limits = [Limits(), Limits(), Limits()]
    limits[draw.randrange(3)] = Limits(**{name: figure // 10 if name == "requests_per_minute" else figure})
    of_tenant, of_parent, of_key = limits
    return World(seed, of_tenant, draw.choice([1, 2, 4]), of_parent=of_parent, of_key=of_key)


def limit_of(world: World) -> tuple[str, int]:
    found = run(world.house.store.statuses("acme", "web", "k1"))
    return found[0].name, found[0].limit


def check(world: World) -> None:
    """What was delivered is within the limit, in any minute or in all."""
    name, limit = limit_of(world)
    delivered = world.delivered
    if name == "tokens_per_minute":
        assert delivered.most_in_a_minute() <= limit
    elif name == "requests_per_minute":
        assert delivered.most_requests_in_a_minute() <= limit
    else:
        assert delivered.total <= limit


def unused(world: World) -> int:
    """Tokens that no request was charged for; open ones may return what they hold."""
    (status,) = run(world.house.store.statuses("acme", "web", "k1"))
    return status.limit - status.used


@pytest.mark.parametrize("part", range(PARTS))
def test_nothing_is_overspent_and_hardly_anything_is_lost(part: int) -> None:
    pooled = crashes = 0
    for seed in range(part, EXAMPLES, PARTS):
        world = world_of(seed)
        for _ in range(120):
            world.tick(rate=world.draw.choice([0.2, 0.6, 1.0]), trouble=1.0)
        check(world)
        world.pass_quietly(150_000)  # streams end after the longest stall, leases lapse, dead gateways are reaped
        (status,) = run(world.house.store.statuses("acme", "web", "k1"))
        is_minute = status.name.endswith("minute")
        assert status.reserved == 0
        assert status.used == (0 if is_minute else world.delivered.total)
        before = world.delivered.total, len(world.delivered.requests)
        for tick in range(1_000):  # 50 s
            world.tick(rate=0.95)
            if tick % 40 == 0 and unused(world) < (1 - USABLE) / 4 * status.limit:
                break
        check(world)
        world.pass_quietly(2_000)
        gained = world.delivered.total - (before[0] if is_minute else 0)
        if status.name == "requests_per_minute":
            gained = len(world.delivered.requests) - before[1]
        assert gained >= USABLE * status.limit, (seed, status, gained)
        pooled, crashes = pooled + world.pooled, crashes + world.crashes
    assert pooled > 0
    assert crashes > 0
