"""Any sixty seconds, the calendar, and when a refused request would fit: on every store."""

from datetime import datetime

import pytest

from fairlane.quotas.limits import Limits
from fairlane.quotas.store import Charge, Denied
from tests.support.quotas.house import START_MS, House, ask, charge, one, refused

pytestmark = pytest.mark.anyio


def ms(moment: str) -> int:
    return int(datetime.fromisoformat(moment).timestamp()) * 1000


async def spend(house: House, at_ms: int, reservation_id: str, output_tokens: int) -> None:
    """One request of 10 prompt tokens, settled at once."""
    await house.set_clock(at_ms)
    await house.store.reserve(ask(reservation_id, max_output_tokens=output_tokens))
    await house.store.settle("acme", reservation_id, charge(output_tokens))


async def test_usage_counts_for_sixty_seconds_and_at_most_a_slice_more(house: House) -> None:
    await house.tenant(Limits(tokens_per_minute=30))
    await spend(house, START_MS + 100, "f1", 20)

    await house.set_clock(START_MS + 60_249)
    denied = await refused(house)
    await house.set_clock(START_MS + 60_250)

    assert denied.retry_after_s == 0.001
    assert await house.store.reserve(ask("f2"))


async def test_no_sixty_seconds_hold_more_than_the_limit_across_a_wall_clock_minute(house: House) -> None:
    """A fixed window would let twice the limit through around its edge."""
    await house.tenant(Limits(requests_per_minute=2))
    minute = START_MS - START_MS % 60_000 + 60_000
    await spend(house, minute - 500, "f1", 1)
    await spend(house, minute - 250, "f2", 1)

    await house.set_clock(minute + 1)

    assert (await refused(house)).status.used == 2


async def test_retry_says_when_enough_has_slid_out_for_this_request(house: House) -> None:
    await house.tenant(Limits(tokens_per_minute=100))
    await spend(house, START_MS, "f1", 10)  # 20 tokens
    await spend(house, START_MS + 10_000, "f2", 20)  # 30
    await spend(house, START_MS + 20_000, "f3", 30)  # 40: 10 are left

    small = await refused(house, prompts=(10,), max_output_tokens=20)
    large = await refused(house, prompts=(10,), max_output_tokens=50)

    assert (small.kind, small.retry_after_s) == ("rate", 40.25)
    assert (large.kind, large.retry_after_s) == ("rate", 50.25)


async def test_a_request_fits_exactly_when_it_was_told_to_come_back(house: House) -> None:
    await house.tenant(Limits(tokens_per_minute=60))
    await spend(house, START_MS + 777, "f1", 20)
    await spend(house, START_MS + 5_000, "f2", 20)
    denied = await refused(house)
    assert denied.retry_after_s is not None

    back_ms = START_MS + 5_000 + round(denied.retry_after_s * 1000)
    await house.set_clock(back_ms - 1)
    assert (await refused(house)).retry_after_s == 0.001
    await house.set_clock(back_ms)

    assert await house.store.reserve(ask("f3"))


async def test_reserved_tokens_do_not_slide_so_the_retry_is_a_whole_minute(house: House) -> None:
    await house.tenant(Limits(tokens_per_minute=50))
    await house.store.reserve(ask("f1"))

    await house.set_clock(START_MS + 59_000)

    assert (await refused(house)).retry_after_s == 60


async def test_the_longest_wait_of_several_limits_is_told(house: House) -> None:
    await house.tenant(Limits(requests_per_minute=1, tokens_per_day=40))
    await spend(house, START_MS, "f1", 20)

    denied = await refused(house)

    assert (denied.status.name, denied.kind, denied.retry_after_s) == ("tokens_per_day", "quota", 14 * 3600)


async def test_a_day_begins_at_the_tenants_midnight(house: House) -> None:
    await house.tenant(Limits(tokens_per_day=30), timezone="Europe/Berlin")
    await spend(house, ms("2026-11-21T22:59:59Z"), "f1", 20)
    denied = await refused(house)

    await house.set_clock(ms("2026-11-21T23:00:00Z"))

    assert (denied.retry_after_s, denied.status.resets_at) == (1, ms("2026-11-21T23:00:00Z") / 1000)
    assert await house.store.reserve(ask("f2"))


async def test_a_month_begins_at_the_tenants_midnight_of_the_first(house: House) -> None:
    await house.tenant(Limits(tokens_per_month=30), timezone="Asia/Kolkata")
    await spend(house, START_MS, "f1", 20)
    denied = await refused(house)

    await house.set_clock(ms("2026-11-30T18:29:59Z"))
    assert (await refused(house)).retry_after_s == 1
    await house.set_clock(ms("2026-11-30T18:30:00Z"))

    assert denied.status.resets_at == ms("2026-11-30T18:30:00Z") / 1000
    assert await house.store.reserve(ask("f2"))


async def test_a_reservation_over_midnight_is_charged_to_the_day_of_its_end(house: House) -> None:
    await house.tenant(Limits(tokens_per_day=100))
    midnight = ms("2026-11-22T00:00:00Z")
    await house.set_clock(midnight - 1000)
    await house.store.reserve(ask("f1"))

    await house.set_clock(midnight + 1000)
    reserved = await one(house, "tokens_per_day")
    await house.store.settle("acme", "f1", charge())
    await house.set_clock(midnight - 1)
    day_before = await one(house, "tokens_per_day")

    assert (reserved.used, reserved.reserved) == (0, 30)
    assert day_before.used == 0


async def test_time_to_full_ends_when_the_newest_usage_has_left(house: House) -> None:
    await house.tenant(Limits(tokens_per_minute=100, requests_per_minute=10, concurrent_requests=3))
    await spend(house, START_MS, "f1", 10)
    await spend(house, START_MS + 10_000, "f2", 10)

    await house.set_clock(START_MS + 40_000)
    found = {status.name: status.reset_after_s for status in await house.store.statuses("acme", "acme")}
    await house.set_clock(START_MS + 70_250)
    full = await one(house, "tokens_per_minute")

    assert found == {"requests_per_minute": 30.25, "tokens_per_minute": 30.25, "concurrent_requests": 0}
    assert (full.used, full.reset_after_s, full.resets_at) == (0, 0, (START_MS + 70_250) / 1000)


async def test_a_concurrency_limit_has_no_time_of_reset(house: House) -> None:
    await house.tenant(Limits(concurrent_requests=3))

    assert (await one(house, "concurrent_requests")).resets_at is None


async def test_a_long_silence_empties_the_minute(house: House) -> None:
    await house.tenant(Limits(tokens_per_minute=30))
    await spend(house, START_MS, "f1", 20)

    await spend(house, START_MS + 10**9, "f2", 20)

    assert (await one(house, "tokens_per_minute")).used == 30


async def test_a_request_each_slice_for_two_minutes_keeps_the_count_exact(house: House) -> None:
    await house.tenant(Limits(requests_per_minute=1000))

    for number in range(480):
        await house.set_clock(START_MS + number * 250)
        await house.store.reserve(ask(f"f{number}"))

    assert (await one(house, "requests_per_minute")).used == 241


@pytest.mark.parametrize("step_ms", [250, 500, 30_000, 3_600_000])
async def test_a_clock_that_steps_back_forgets_nothing(house: House, step_ms: int) -> None:
    await house.tenant(Limits(tokens_per_minute=60, requests_per_minute=100))
    await spend(house, START_MS, "f1", 20)
    await spend(house, START_MS, "f2", 20)

    await house.set_clock(START_MS - step_ms)
    denied = await refused(house)

    assert denied.status.used == 60
    assert denied.retry_after_s == 60.25  # all of it counts as of now


async def test_a_clock_that_stepped_back_heals_within_a_minute(house: House) -> None:
    await house.tenant(Limits(tokens_per_minute=60))
    await spend(house, START_MS, "f1", 20)
    back = START_MS - 3_600_000

    await spend(house, back, "f2", 20)
    await refused(house)
    await house.set_clock(back + 60_250)

    assert (await one(house, "tokens_per_minute")).used == 0
    assert await house.store.reserve(ask("f3"))


async def test_a_clock_that_leapt_a_year_and_came_back_leaves_todays_budget_as_it_was(house: House) -> None:
    await house.tenant(Limits(tokens_per_day=60, tokens_per_month=60))
    await spend(house, START_MS, "f1", 20)
    await spend(house, START_MS + 365 * 86_400_000, "f2", 20)

    await house.set_clock(START_MS)

    assert [status.used for status in await house.store.statuses("acme", "acme")] == [30, 30]


async def test_a_refund_across_a_step_of_the_clock_corrupts_nothing(house: House) -> None:
    await house.tenant(Limits(requests_per_minute=5, tokens_per_minute=1000))
    await house.store.reserve(ask("f1"))
    await house.set_clock(START_MS - 3_600_000)
    await house.store.reserve(ask("f2"))

    await house.store.settle("acme", "f1", Charge.refund())
    await house.store.settle("acme", "f2", Charge.refund())
    await house.set_clock(START_MS + 120_000)

    assert [(s.used, s.reserved) for s in await house.store.statuses("acme", "acme")] == [(0, 0), (0, 0)]


async def test_a_refund_of_an_older_request_keeps_none_that_came_after_it_longer(house: House) -> None:
    await house.tenant(Limits(requests_per_minute=5))
    await house.store.reserve(ask("old"))
    await house.set_clock(START_MS + 10_000)
    await house.store.reserve(ask("young"))

    await house.store.settle("acme", "old", Charge.refund())
    counted = await one(house, "requests_per_minute")
    await house.set_clock(START_MS + 70_250)

    assert (counted.used, counted.reset_after_s) == (1, 60.25)
    assert (await one(house, "requests_per_minute")).used == 0


async def test_figures_near_the_largest_stay_exact(house: House) -> None:
    await house.tenant(Limits(tokens_per_month=10**15))
    for number in range(3):
        await house.store.reserve(ask(f"f{number}", prompts=(10**9,), max_output_tokens=10**9 - 1, n=10_000))
        await house.store.settle("acme", f"f{number}", charge(10**9 - 1, 10**9))

    status = await one(house, "tokens_per_month")

    assert (status.used, status.reserved, status.remaining) == (3 * (2 * 10**9 - 1), 0, 10**15 - 3 * (2 * 10**9 - 1))


async def test_denials_are_errors_with_a_message_that_names_the_limit(house: House) -> None:
    await house.tenant(Limits(tokens_per_day=40))
    await spend(house, START_MS, "f1", 20)

    with pytest.raises(Denied, match="tenant limit tokens_per_day: 30 requested, 10 remaining"):
        await house.store.reserve(ask("f2"))
