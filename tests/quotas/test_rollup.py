"""Retention of the ledger: rolled up once, whoever does it, and never a token lost or counted twice."""

import asyncio
from datetime import UTC, date, datetime, time, timedelta
from typing import Any

import pytest
import redis.asyncio

from fairlane.quotas.field_checks import FieldError
from fairlane.quotas.ledger import Ledger, RollUp, UsageSums
from fairlane.quotas.limits import Limits
from fairlane.quotas.store import Charge
from fairlane.quotas.tenants import TenantStore
from tests.support.quotas.house import RedisHouse, ask

pytestmark = pytest.mark.anyio

TODAY = date(2026, 11, 21)
KEPT_DAYS = 40
LAST_ROLLED = TODAY - timedelta(days=KEPT_DAYS + 1)
"""2026-10-11: within a month."""


@pytest.fixture
async def house(store: redis.asyncio.Redis) -> RedisHouse:
    """acme, with one request on each of its last 120 days: the first is settled, the others are written like it."""
    house = RedisHouse(store)
    await TenantStore(store).create({"id": "acme"})
    await house.tenant(Limits())
    first = datetime.combine(TODAY, time(12), UTC) - timedelta(days=119)
    await house.set_clock(int(first.timestamp() * 1e3))
    await house.store.reserve(ask("f0"))
    await house.store.settle("acme", "f0", Charge(prompt_tokens=1, output_tokens=1, outcome="finished"))
    sums: Any = await store.hgetall(f"fl:quota:{{acme}}:usage:acme:{first.date()}")
    entries: Any = await store.xrange("fl:quota:{acme}:ledger:acme")
    async with store.pipeline() as pipe:
        for number in range(1, 120):
            day = first.date() + timedelta(days=number)
            pipe.hset(f"fl:quota:{{acme}}:usage:acme:{day}", mapping=sums)
            pipe.xadd("fl:quota:{acme}:ledger:acme", entries[0][1])
        await pipe.execute()
    return house


@pytest.fixture
def ledger(house: RedisHouse) -> Ledger:
    return Ledger(house.client)


def rollup(house: RedisHouse, days: int = KEPT_DAYS) -> RollUp:
    return RollUp(house.client, days=days, months=12)


async def total(ledger: Ledger, first: date, last: date = TODAY) -> int:
    return (await ledger.usage("acme", "acme", first, last)).total.requests


async def day_sums(house: RedisHouse) -> int:
    return len(await house.client.keys("*usage:acme:*-*-*"))


async def test_what_is_rolled_up_stays_in_the_sums(house: RedisHouse, ledger: Ledger) -> None:
    whole = await ledger.usage("acme", "acme", date(2026, 7, 1), TODAY, ["lane", "model", "key"])

    await rollup(house).all(TODAY)

    assert await ledger.usage("acme", "acme", date(2026, 7, 1), TODAY, ["lane", "model", "key"]) == whole
    assert whole.total == UsageSums(requests=120, prompt_tokens=120, output_tokens=120)
    assert await day_sums(house) == KEPT_DAYS + 1


async def test_a_day_that_was_rolled_up_goes_by_its_month(house: RedisHouse, ledger: Ledger) -> None:
    await rollup(house).all(TODAY)

    rows = (await ledger.usage("acme", "acme", date(2026, 9, 1), date(2026, 10, 13), ["day"])).rows

    assert [(row.group["day"], row.usage.requests) for row in rows] == [
        ("2026-09", 30),
        ("2026-10", 11),
        ("2026-10-12", 1),
        ("2026-10-13", 1),
    ]


@pytest.mark.parametrize(
    ("first", "last", "field"),
    [
        (date(2026, 9, 2), TODAY, "from"),
        (date(2026, 10, 2), TODAY, "from"),
        (date(2026, 9, 1), date(2026, 9, 29), "to"),
        (date(2026, 9, 1), date(2026, 10, 10), "to"),
    ],
)
async def test_a_span_that_parts_a_rolled_month_is_refused(
    house: RedisHouse, ledger: Ledger, first: date, last: date, field: str
) -> None:
    await rollup(house).all(TODAY)

    with pytest.raises(FieldError) as caught:
        await ledger.usage("acme", "acme", first, last)
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("first", "last", "requests"),
    [
        (date(2026, 9, 1), date(2026, 9, 30), 30),
        (date(2026, 10, 1), date(2026, 10, 11), 11),
        (date(2026, 10, 1), date(2026, 10, 31), 31),
        (date(2026, 10, 12), date(2026, 10, 12), 1),
        (date(2025, 1, 5), date(2025, 3, 5), 0),
    ],
)
async def test_a_span_that_parts_nothing_is_answered(
    house: RedisHouse, ledger: Ledger, first: date, last: date, requests: int
) -> None:
    await rollup(house).all(TODAY)

    assert await total(ledger, first, last) == requests


async def test_rolling_up_again_changes_nothing(house: RedisHouse, ledger: Ledger) -> None:
    for _ in range(3):
        await rollup(house).all(TODAY)

    assert await total(ledger, date(2026, 7, 1)) == 120


async def test_day_after_day_comes_to_the_same(house: RedisHouse, ledger: Ledger) -> None:
    for number in range(20):
        await rollup(house).all(TODAY + timedelta(days=number))

    assert await total(ledger, date(2026, 7, 1)) == 120
    assert await day_sums(house) == KEPT_DAYS + 1 - 19


async def test_several_gateways_at_once_roll_up_each_day_once(house: RedisHouse, ledger: Ledger) -> None:
    async def keep_asking() -> list[int]:
        return [await total(ledger, date(2026, 7, 1)) for _ in range(20)]

    asked, *_ = await asyncio.gather(keep_asking(), *(rollup(house, days).all(TODAY) for days in (31, 40, 40, 60)))

    assert asked == [120] * 20
    assert await total(ledger, date(2026, 7, 1)) == 120


async def test_a_day_is_rolled_up_by_one_of_those_who_ask(house: RedisHouse) -> None:
    await asyncio.gather(*(rollup(house).daily() for _ in range(4)))
    first = await house.client.get("fl:quota:{acme}:rolled:acme")
    await house.client.set("fl:quota:{acme}:rolled:acme", "2020-01-01")
    await rollup(house).daily()

    assert first is not None
    assert await house.client.get("fl:quota:{acme}:rolled:acme") == b"2020-01-01"


async def test_months_and_entries_have_an_end_too(house: RedisHouse, ledger: Ledger) -> None:
    entries = await ledger.entries("acme", "acme", 1_000)
    await rollup(house).all(TODAY)
    kept = await ledger.entries("acme", "acme", 1_000)
    await rollup(house, days=31).all(datetime.now(UTC).date() + timedelta(days=60))

    assert 0 < await house.client.pttl("fl:quota:{acme}:usage:acme:2026-09") <= 12 * 31 * 86_400_000
    assert (len(entries), len(kept), await ledger.entries("acme", "acme")) == (120, 120, [])


async def test_a_deleted_tenant_is_rolled_up_too(house: RedisHouse, ledger: Ledger) -> None:
    await TenantStore(house.client).delete("acme")

    await rollup(house).all(TODAY)

    assert await day_sums(house) == KEPT_DAYS + 1
    assert await total(ledger, date(2026, 7, 1)) == 120
