"""Money: exact to the nano-unit, fixed at the start of a request, and never beyond a budget."""

import pytest

from fairlane.quotas.limits import FREE, LARGEST, Limits, Prices
from fairlane.quotas.prices import LARGEST_PRICE
from fairlane.quotas.store import Charge, Need, Once
from tests.support.quotas.house import START_MS, House, ask, charge, one, refused

pytestmark = pytest.mark.anyio

PRICES = Prices(input=150, cached=75, output=600)
HOUR_MS, DAY_MS = 3_600_000, 86_400_000


async def spent(house: House, name: str = "spend_per_month") -> int:
    return (await one(house, name)).used


async def test_a_charge_is_tokens_times_price(house: House) -> None:
    await house.tenant(Limits(spend_per_day=10**9, spend_per_month=10**9))
    await house.store.reserve(ask(prices=PRICES, prompts=(100,)))
    held = await one(house, "spend_per_day")
    await house.store.settle(
        "acme", "f1", Charge(prompt_tokens=100, cached_tokens=40, output_tokens=7, outcome="finished")
    )

    assert (held.used, held.reserved) == (0, 100 * 150 + 20 * 600)
    assert await spent(house) == await spent(house, "spend_per_day") == 60 * 150 + 40 * 75 + 7 * 600
    assert (await one(house, "spend_per_day")).reserved == 0


async def test_what_does_not_fit_is_refused_until_the_window_ends_in_the_tenants_zone(house: House) -> None:
    await house.tenant(Limits(spend_per_day=20 * 600 + 1_500), timezone="Asia/Tokyo")
    await house.store.reserve(ask(prices=PRICES))
    await house.store.settle("acme", "f1", charge())
    denied = await refused(house, prices=PRICES)
    midnight_ms = START_MS + 5 * HOUR_MS  # 10:00 in London is 19:00 there

    assert (denied.kind, denied.status.name) == ("quota", "spend_per_day")
    assert denied.retry_after_s == (midnight_ms - START_MS) / 1e3
    await house.set_clock(midnight_ms - 1)
    await refused(house, prices=PRICES)
    await house.set_clock(midnight_ms)
    await house.store.reserve(ask("f2", prices=PRICES))
    assert (await one(house, "spend_per_day")).used == 0


async def test_a_day_that_comes_back_with_the_clock_has_its_money(house: House) -> None:
    await house.tenant(Limits(spend_per_day=10**9, spend_per_month=10**9))
    await house.store.reserve(ask(prices=PRICES))
    await house.store.settle("acme", "f1", charge())
    first = await spent(house, "spend_per_day")
    await house.set_clock(START_MS + DAY_MS)
    await house.store.reserve(ask("f2", prices=PRICES))
    await house.store.settle("acme", "f2", charge(output_tokens=1))
    await house.set_clock(START_MS)

    assert await spent(house, "spend_per_day") == first
    assert await spent(house) == first + 10 * 150 + 600


async def test_a_running_request_gets_what_the_money_leaves_and_then_ends(house: House) -> None:
    await house.tenant(Limits(spend_per_month=10 * 150 + 12 * 600 + 599))
    await house.store.reserve(ask(prices=PRICES, quantum=8, max_output_tokens=100, explicit_max=False))
    need = Need(published=8, prompt_tokens=10, known=8, most=100, quantum=8, stuck=True)
    more = await house.store.extend("acme", "f1", need)
    last = await house.store.extend("acme", "f1", Need(published=12, prompt_tokens=10, known=12, most=100, quantum=8))

    assert more.granted_tokens == 12
    assert (last.granted_tokens, last.limited_by, last.spent) == (12, "spend_per_month", True)
    status = await one(house, "spend_per_month")
    assert status.used == 10 * 75 + 12 * 600
    assert status.reserved == 10 * 75


async def test_shadow_counts_and_refuses_nothing(house: House) -> None:
    await house.tenant(Limits(spend_per_day=1), shadow=["spend_per_day"])
    reservation = await house.store.reserve(ask(prices=PRICES))

    assert reservation.shadowed == ("spend_per_day",)
    assert (await one(house, "spend_per_day")).reserved == 10 * 150 + 20 * 600


async def test_every_level_counts_money(house: House) -> None:
    of_all = Limits(spend_per_month=10**9)
    await house.tenant(of_all)
    by = {("smol", ""): of_all, ("other", ""): of_all}
    await house.tenant(of_all, tenant="web", root="acme", parents=("acme",), limits_by=by)
    await house.key("k1", of_all, tenant="web", root="acme")
    await house.store.reserve(ask(tenant="web", key_id="k1", prices=PRICES, is_batch=True))
    await house.store.settle("acme", "f1", charge())

    found = await house.store.statuses("acme", "web", "k1", model="smol", lane="latency")
    assert {status.scope: status.used for status in found} == dict.fromkeys(
        ("tenant", "key", "model_lane", "parent"), 10 * 150 + 20 * 600
    )


async def test_tokens_that_are_free_never_meet_a_limit_of_money(house: House) -> None:
    await house.tenant(Limits(spend_per_day=0))
    await house.store.reserve(ask(prices=FREE))
    await refused(house, prices=PRICES)

    await house.tenant(Limits(spend_per_day=10 * 150))
    reservation = await house.store.reserve(ask("f2", prices=Prices(input=150, cached=150), quantum=4))
    assert reservation.granted_tokens == 20


async def test_a_retry_has_the_prices_of_the_first_run(house: House) -> None:
    await house.tenant(Limits(spend_per_month=10**9))
    once = Once("k1:order:one", START_MS + DAY_MS)
    await house.store.reserve(ask("f1", prices=PRICES, once=once))
    await house.store.settle("acme", "f1", charge(output_tokens=5))
    dearer = Prices(input=10**6, cached=10**6, output=10**6)
    await house.store.reserve(ask("f2", prices=dearer, once=once))
    await house.store.settle("acme", "f2", charge(output_tokens=20))

    assert await spent(house) == 10 * 150 + 20 * 600

    await house.store.reserve(ask("f3", prices=dearer, once=Once("k1:order:two", START_MS + DAY_MS)))
    await house.store.settle("acme", "f3", charge(output_tokens=1))
    assert await spent(house) == 10 * 150 + 20 * 600 + 11 * 10**6


async def test_what_was_free_at_first_stays_free(house: House) -> None:
    await house.tenant(Limits(spend_per_month=10**9))
    once = Once("k1:order:one", START_MS + DAY_MS)
    await house.store.reserve(ask("f1", once=once))
    await house.store.settle("acme", "f1", Charge.refund())
    await house.store.reserve(ask("f2", prices=PRICES, once=once))
    await house.store.settle("acme", "f2", charge())

    assert await spent(house) == 0


async def test_the_largest_figures_stay_exact(house: House) -> None:
    dear = Prices(input=LARGEST_PRICE, cached=LARGEST_PRICE - 1, output=LARGEST_PRICE)
    await house.tenant(Limits(spend_per_month=LARGEST))
    await house.store.reserve(ask(prices=dear, prompts=(9_999_970,), max_output_tokens=29))
    cached = 4_999_999
    await house.store.settle(
        "acme", "f1", Charge(prompt_tokens=9_999_970, cached_tokens=cached, output_tokens=29, outcome="finished")
    )

    assert await spent(house) == 9_999_999 * LARGEST_PRICE - cached
    denied = await refused(house, prices=dear, prompts=(1_000,), max_output_tokens=1)
    assert denied.requested == 1_001 * LARGEST_PRICE


async def test_a_lost_reservation_that_is_noted_anew_is_charged_at_its_price(house: House) -> None:
    await house.tenant(Limits(spend_per_month=10**9))
    await house.store.book(ask(prices=PRICES))
    await house.store.settle("acme", "f1", charge())

    assert await spent(house) == 10 * 150 + 20 * 600
