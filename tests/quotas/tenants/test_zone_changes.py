"""A change of a tenant's time zone: no date's budget is given twice."""

import asyncio
from datetime import datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlane.quotas.limits import Limits, LimitStatus
from fairlane.quotas.store import Denied
from tests.support.quotas.house import START_MS, House, MemoryHouse, ask, charge

pytestmark = pytest.mark.anyio
HOUR_MS, DAY_MS = 3_600_000, 86_400_000
ZONES = ("UTC", "Europe/Berlin", "Asia/Kolkata", "Pacific/Auckland", "America/Los_Angeles", "Pacific/Pago_Pago")
LIMITS = Limits(tokens_per_day=30, tokens_per_month=10_000)


def ms(moment: str) -> int:
    return int(datetime.fromisoformat(moment).timestamp()) * 1000


async def spend(house: House, name: str) -> None:
    """Use up a day's budget."""
    await house.store.reserve(ask(name))
    await house.store.settle("acme", name, charge())


async def figures(house: House) -> list[LimitStatus]:
    return await house.store.statuses("acme", "acme")


@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize("now", ["2026-11-30T23:30:00Z", "2026-12-01T00:30:00Z"])
async def test_a_spent_day_stays_spent_until_it_ends_in_the_old_zone(house: House, now: str, zone: str) -> None:
    await house.set_clock(ms(now))
    await house.tenant(LIMITS)
    await spend(house, "f1")
    before = await figures(house)

    await house.tenant(LIMITS, timezone=zone)

    assert await figures(house) == before
    with pytest.raises(Denied):
        await house.store.reserve(ask("f2"))
    assert before[0].resets_at is not None
    await house.set_clock(round(before[0].resets_at * 1000) - 1)
    assert [(status.used, status.resets_at) for status in await figures(house)] == [
        (status.used, status.resets_at) for status in before
    ]


@pytest.mark.parametrize(
    ("zone", "used", "of_month", "ends"),
    [
        ("Asia/Kolkata", 0, 30, "2026-11-22T18:30:00Z"),  # it is the 22nd at 5:30
        ("America/Los_Angeles", 30, 30, "2026-11-22T08:00:00Z"),  # it is still the 21st
    ],
)
async def test_then_its_days_are_the_new_zones(house: House, zone: str, used: int, of_month: int, ends: str) -> None:
    await house.tenant(LIMITS)
    await spend(house, "f1")
    await house.tenant(LIMITS, timezone=zone)

    await house.set_clock(ms("2026-11-22T00:00:00Z"))

    day, month = await figures(house)
    assert (day.used, month.used, day.resets_at) == (used, of_month, ms(ends) // 1000)


async def test_a_month_that_ended_stays_spent_where_the_new_zone_is_behind(house: House) -> None:
    limits = Limits(tokens_per_month=30)
    await house.set_clock(ms("2026-11-30T20:00:00Z"))
    await house.tenant(limits)
    await spend(house, "f1")
    await house.tenant(limits, timezone="America/Los_Angeles")

    await house.set_clock(ms("2026-12-01T00:00:00Z"))
    [month] = await figures(house)
    assert (month.used, month.resets_at) == (30, ms("2026-12-01T08:00:00Z") // 1000)

    await house.set_clock(ms("2026-12-01T08:00:00Z"))
    [month] = await figures(house)
    assert month.used == 0


@given(
    steps=st.lists(
        st.tuples(st.integers(0, 30 * HOUR_MS), st.sampled_from([*ZONES, "Pacific/Kiritimati", "Etc/GMT+12"])),
        min_size=1,
        max_size=30,
    )
)
@settings(deadline=None, max_examples=200)
def test_changing_the_zone_gains_no_more_than_a_journey_around_the_world(steps: list[tuple[int, str]]) -> None:
    async def spent() -> tuple[int, int]:
        house, now_ms, times = MemoryHouse(), START_MS, 0
        await house.tenant(LIMITS)
        for number, (by_ms, zone) in enumerate(steps):
            now_ms += by_ms
            await house.set_clock(now_ms)
            try:
                await spend(house, f"f{number}")
                times += 1
            except Denied:
                pass
            await house.tenant(LIMITS, timezone=zone)
        return times, now_ms - START_MS

    times, elapsed_ms = asyncio.run(spent())

    assert times <= (elapsed_ms + 26 * HOUR_MS) // DAY_MS + 2
