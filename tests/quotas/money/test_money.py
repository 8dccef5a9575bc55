"""Money: exact to the nano-unit, fixed at the start of a request, and never beyond a budget."""

import struct
from datetime import UTC, datetime, timedelta

import pytest
import redis.asyncio

from fairlane.quotas.api_keys import KeyStore
from fairlane.quotas.keyspace import of_root
from fairlane.quotas.ledger import Ledger, RollUp
from fairlane.quotas.limits import FREE, LARGEST, Limits, Prices
from fairlane.quotas.prices import LARGEST_PRICE
from fairlane.quotas.redis_store import RedisQuotaStore
from fairlane.quotas.store import AccessDenied, Charge, Need, Once
from fairlane.quotas.tenants import TenantStore
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


async def test_what_an_older_gateway_has_written_is_read_as_free(client: redis.asyncio.Redis) -> None:
    store, day, group = RedisQuotaStore(client), datetime.now(UTC).date(), "latency\tsmol\t"
    await TenantStore(client).create({"id": "acme"})
    await client.hset(f"{of_root('acme')}usage:acme:{day}", group, struct.pack("<4d", 2, 30, 5, 7))
    entry = "1700000000000\told\t\tsmol\tlatency\t10\t0\t20\t0\tfinished"
    await client.xadd(f"{of_root('acme')}ledger:acme", {"entry": entry})
    await store.reserve(ask(prices=PRICES))
    await store.settle("acme", "f1", charge())
    ledger = Ledger(client)

    total = (await ledger.usage("acme", "acme", day, day)).total
    first, second = await ledger.entries("acme", "acme")
    assert (total.requests, total.prompt_tokens, total.output_tokens, total.spend) == (3, 40, 27, 10 * 150 + 20 * 600)
    assert [(each.spend, each.prices) for each in (first, second)] == [(0, FREE), (10 * 150 + 20 * 600, PRICES)]


async def test_money_is_rolled_up_with_the_days(client: redis.asyncio.Redis) -> None:
    store, today = RedisQuotaStore(client), datetime.now(UTC).date()
    await TenantStore(client).create({"id": "acme"})
    await store.reserve(ask(prices=PRICES))
    end = Charge(prompt_tokens=10, output_tokens=20, outcome="finished", gpu_us=5, kv_block_ms=9)
    await store.settle("acme", "f1", end)
    later = (today.replace(day=1) + timedelta(days=100)).replace(day=1)
    await RollUp(client, days=31, months=12).tenant("acme", "acme", later)

    first = today.replace(day=1)
    last = (first + timedelta(days=31)).replace(day=1) - timedelta(days=1)
    total = (await Ledger(client).usage("acme", "acme", first, last)).total
    assert (total.spend, total.gpu_us, total.kv_block_ms) == (10 * 150 + 20 * 600, 5, 9)


async def test_a_key_with_a_budget_of_money_keeps_its_state(client: redis.asyncio.Redis) -> None:
    store, keys = RedisQuotaStore(client), KeyStore(client)
    tenant = await TenantStore(client).create({"id": "acme", "limits": {"spend_per_month": 10**9}})
    key = (await keys.create(tenant, {"name": "k", "limits": {"spend_per_day": 10**6}})).key
    await store.reserve(ask(key_id=key.id, prices=PRICES))
    found = await store.statuses("acme", "acme", key.id)
    await keys.revoke(tenant, key.id)

    assert {(each.scope, each.name, each.limit) for each in found} == {
        ("tenant", "spend_per_month", 10**9),
        ("key", "spend_per_day", 10**6),
    }
    with pytest.raises(AccessDenied):
        await store.reserve(ask("f2", key_id=key.id, prices=PRICES))
