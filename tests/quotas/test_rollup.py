"""Retention of the ledger: rolled up once, whoever does it, and never a token lost or counted twice."""

import asyncio
import itertools
from contextlib import suppress
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
from tests.support.store.watched import Killed, Killer, WatchedRedis

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


AT_ONCE = 256
"""Groups that one call moves."""
KEYS = 10 * AT_ONCE
CROWDED = LAST_ROLLED - timedelta(days=1)


@pytest.fixture
async def crowd(house: RedisHouse) -> RedisHouse:
    """On one of its days, acme had a request with each of many keys more."""
    day = f"fl:quota:{{acme}}:usage:acme:{CROWDED}"
    (sums,) = (await house.client.hgetall(day)).values()
    await house.client.hset(day, mapping={f"latency\ttiny\tk{number}": sums for number in range(KEYS)})
    return house


async def test_a_day_of_many_keys_is_read_in_pages(crowd: RedisHouse) -> None:
    pages = list[None]()

    async def count() -> None:
        pages.append(None)

    async with WatchedRedis(crowd.client, count) as watched:
        report = await Ledger(watched).usage("acme", "acme", CROWDED, TODAY, ["key"])

    assert report.total.requests == KEYS + (TODAY - CROWDED).days + 1
    assert len(report.rows) == KEYS + 1
    assert len(pages) > 10


async def test_a_day_of_many_keys_is_rolled_up_in_calls_that_each_move_some(crowd: RedisHouse, ledger: Ledger) -> None:
    """Whoever reads in between finds the same sums, and it is in the month that a span may not part."""
    moved, month = [0], f"fl:quota:{{acme}}:usage:acme:{CROWDED.isoformat()[:7]}"

    async def look() -> None:
        assert await total(ledger, date(2026, 7, 1)) == 120 + KEYS
        moved.append(await crowd.client.hlen(month))
        if moved[-1] > 1:
            with pytest.raises(FieldError):
                await total(ledger, CROWDED)

    async with WatchedRedis(crowd.client, look) as watched:
        await RollUp(watched, days=KEPT_DAYS, months=12).tenant("acme", "acme", TODAY)

    assert moved[-1] == KEYS + 1
    assert max(later - sooner for sooner, later in itertools.pairwise(moved)) <= AT_ONCE
    assert await day_sums(crowd) == KEPT_DAYS + 1


async def test_a_report_that_a_roll_up_overtakes_is_read_again(crowd: RedisHouse) -> None:
    async with WatchedRedis(crowd.client, Killer(20)) as dying:
        with pytest.raises(Killed):
            await RollUp(dying, days=KEPT_DAYS, months=12).tenant("acme", "acme", TODAY)
    calls = itertools.count()

    async def overtake() -> None:
        if next(calls) % 3 == 2 and await crowd.client.exists("fl:quota:{acme}:rolling:acme"):
            async with WatchedRedis(crowd.client, Killer(2)) as dying:  # trims, and moves once
                with suppress(Killed):
                    await RollUp(dying, days=KEPT_DAYS, months=12).tenant("acme", "acme", TODAY)

    async with WatchedRedis(crowd.client, overtake) as reader:
        assert await total(Ledger(reader), date(2026, 7, 1)) == 120 + KEYS
    assert await crowd.client.get("fl:quota:{acme}:rolled:acme") == LAST_ROLLED.isoformat().encode()


@pytest.mark.parametrize("days", [KEPT_DAYS, KEPT_DAYS + 5])
async def test_another_gateway_finishes_the_roll_up_of_one_that_was_killed(
    crowd: RedisHouse, ledger: Ledger, days: int
) -> None:
    """Whatever its own settings are."""
    async with WatchedRedis(crowd.client, Killer(20)) as dying:
        with pytest.raises(Killed):
            await RollUp(dying, days=KEPT_DAYS, months=12).tenant("acme", "acme", TODAY)
    assert await crowd.client.exists("fl:quota:{acme}:rolling:acme")

    await rollup(crowd, days).all(TODAY)

    assert not await crowd.client.exists("fl:quota:{acme}:rolling:acme")
    assert await crowd.client.get("fl:quota:{acme}:rolled:acme") == LAST_ROLLED.isoformat().encode()
    assert await total(ledger, date(2026, 7, 1)) == 120 + KEYS
    assert await day_sums(crowd) == KEPT_DAYS + 1
