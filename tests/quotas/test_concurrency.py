"""Many at once on one budget: what is granted never exceeds it, and nothing stays behind."""

import contextlib
import random

import anyio
import pytest
import redis.asyncio

from fairlane.quotas.ledger import Ledger
from fairlane.quotas.limits import Limits
from fairlane.quotas.redis_store import RedisQuotaStore
from fairlane.quotas.store import AlreadySettled, Ask, Charge, Denied
from fairlane.quotas.tenants import TenantStore
from tests.support.quotas.house import START_MS, House, ask, charge, one

pytestmark = pytest.mark.anyio


async def try_to_reserve(house: House, asked: Ask, granted: list[str]) -> None:
    try:
        await house.store.reserve(asked)
    except Denied:
        return
    granted.append(asked.reservation_id)


@pytest.mark.parametrize("window", ["tokens_per_minute", "tokens_per_day", "tokens_per_month"])
async def test_of_200_concurrent_requests_exactly_the_20_that_the_budget_holds_are_granted(
    house: House, window: str
) -> None:
    await house.tenant(Limits(**{window: 20 * 30}))
    granted: list[str] = []

    async with anyio.create_task_group() as group:
        for number in range(200):
            group.start_soon(try_to_reserve, house, ask(f"f{number}"), granted)

    status = await one(house, window)
    assert len(granted) == 20
    assert (status.used, status.reserved, status.remaining) == (0, 600, 0)


async def test_retries_of_one_job_at_once_hold_it_once_and_settle_it_once(house: House) -> None:
    await house.tenant(Limits(tokens_per_day=1000))
    granted: list[str] = []
    settled: list[bool] = []

    async def settle() -> None:
        settled.append((await house.store.settle("acme", "f1", charge())).first)

    async with anyio.create_task_group() as group:
        for _ in range(50):
            group.start_soon(try_to_reserve, house, ask("f1"), granted)
    async with anyio.create_task_group() as group:
        for _ in range(50):
            group.start_soon(settle)

    assert (len(granted), sum(settled)) == (50, 1)
    assert (await one(house, "tokens_per_day")).used == 30


async def test_a_storm_of_requests_that_end_in_every_way_leaves_only_what_was_charged(house: House) -> None:
    every = Limits(tokens_per_day=900, concurrent_requests=7, requests_per_minute=400, tokens_per_minute=900)
    await house.tenant(every)
    await house.key("k1", every)
    rng = random.Random(7)
    plans = [(f"f{n}", rng.choice(["finished", "cancelled", "rejected"]), rng.randint(0, 20)) for n in range(150)]
    charged: list[int] = []
    most: list[int] = []

    async def live(reservation_id: str, outcome: str, output_tokens: int) -> None:
        try:
            await house.store.reserve(ask(reservation_id, key_id="k1"))
        except Denied:
            return
        most.append((await one(house, "concurrent_requests")).used)
        await house.store.settle("acme", reservation_id, charge(output_tokens, outcome=outcome))
        charged.append(0 if outcome == "rejected" else 10 + output_tokens)

    async with anyio.create_task_group() as group:
        for plan in plans:
            group.start_soon(live, *plan)

    for key_id in (None, "k1"):
        assert (await one(house, "tokens_per_day", key_id)).used == sum(charged) <= 900
        assert (await one(house, "tokens_per_day", key_id)).reserved == 0
        assert (await one(house, "concurrent_requests", key_id)).used == 0
    assert max(most) <= 7


async def test_several_gateways_share_one_budget_by_the_servers_own_clock(store: redis.asyncio.Redis) -> None:
    """The stores as they are served, without a clock of the test's."""
    await TenantStore(store).create({"id": "acme", "limits": {"tokens_per_day": 600}})
    gateways = [RedisQuotaStore(store) for _ in range(4)]
    granted: list[str] = []

    async def attempt(number: int) -> None:
        try:
            await gateways[number % 4].reserve(ask(f"f{number}"))
        except Denied:
            return
        granted.append(f"f{number}")

    async with anyio.create_task_group() as group:
        for number in range(80):
            group.start_soon(attempt, number)
    for number, reservation_id in enumerate(granted):
        await gateways[(number + 1) % 4].settle("acme", reservation_id, charge(number))

    (status,) = await gateways[0].statuses("acme", "acme")
    assert len(granted) == 20
    assert (status.used, status.reserved) == (20 * 10 + sum(range(20)), 0)
    assert len(await Ledger(store).entries("acme", "acme")) == 20


async def test_a_reserve_and_its_give_up_may_arrive_in_either_order(house: House) -> None:
    """After a time-out the caller settles at once, while the reservation may still be on its way."""
    await house.tenant(Limits(tokens_per_day=10**6, concurrent_requests=1000))

    async def give_up(reservation_id: str) -> None:
        await house.store.settle("acme", reservation_id, Charge.refund())

    async def late(reservation_id: str) -> None:
        with contextlib.suppress(AlreadySettled):
            await house.store.reserve(ask(reservation_id))

    async with anyio.create_task_group() as group:
        for number in range(60):
            first, second = (late, give_up) if number % 2 else (give_up, late)
            group.start_soon(first, f"f{number}")
            group.start_soon(second, f"f{number}")

    await house.set_clock(START_MS + 1)
    assert (await one(house, "tokens_per_day")).reserved == 0
    assert (await one(house, "concurrent_requests")).used == 0
