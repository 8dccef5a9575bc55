"""What happens to a reservation whose gateway went away: on every store."""

import pytest

from fairlane.quotas.limits import Limits
from fairlane.quotas.store import Charge, Lapsed
from tests.support.quotas.house import LEASE_MS, START_MS, House, ask, charge, one

pytestmark = pytest.mark.anyio


async def look_each_second(house: House, from_ms: int, until_ms: int) -> list[Lapsed]:
    """What the reapers find while time passes: the last look's answer."""
    found: list[Lapsed] = []
    for now_ms in range(from_ms, until_ms + 1, 1000):
        await house.set_clock(now_ms)
        found = await house.store.expired(100)
    return found


async def test_a_lapsed_reservation_is_found_and_stays_reserved_until_it_is_settled(house: House) -> None:
    await house.tenant(Limits(tokens_per_day=100))
    await house.store.reserve(ask("f1", model="smol", lane="throughput", prompts=(3, 4)))

    early = await look_each_second(house, START_MS, START_MS + LEASE_MS - 1000)
    found = await look_each_second(house, START_MS + LEASE_MS, START_MS + LEASE_MS)
    reserved = await one(house, "tokens_per_day")
    await house.store.settle("acme", "f1", charge(3, 7, "cancelled"))
    settled = await one(house, "tokens_per_day")

    assert early == []
    expected = Lapsed(root="acme", reservation_id="f1", tenant="acme", model="smol", lane="throughput", prompts=2)
    assert found == [expected]
    assert (reserved.used, reserved.reserved) == (0, 47)
    assert (settled.used, settled.reserved) == (10, 0)
    assert await house.store.expired(100) == []


async def test_after_a_gateway_dies_and_its_reservations_are_reaped_nothing_stays_reserved(house: House) -> None:
    every = Limits(tokens_per_minute=10**6, tokens_per_day=10**6, concurrent_requests=50, requests_per_minute=100)
    await house.tenant(every)
    await house.key("k1", every)
    for number in range(20):
        await house.store.reserve(ask(f"f{number}", key_id="k1"))

    for lapsed in await look_each_second(house, START_MS, START_MS + LEASE_MS):
        await house.store.settle(lapsed.root, lapsed.reservation_id, charge(0, 0, "cancelled"))

    for status in await house.store.statuses("acme", "acme", "k1"):
        held = (status.used if status.name == "concurrent_requests" else 0, status.reserved)
        assert held == (0, 0)


async def test_a_renewed_reservation_does_not_lapse(house: House) -> None:
    await house.tenant(Limits())
    await house.store.reserve(ask("f1"))
    await house.store.reserve(ask("f2"))

    await look_each_second(house, START_MS, START_MS + 20_000)
    lost = await house.store.renew("acme", ["f1"])
    found = await look_each_second(house, START_MS + 20_000, START_MS + 45_000)

    assert lost == set()
    assert [lapsed.reservation_id for lapsed in found] == ["f2"]


async def test_renewing_tells_which_reservations_hold_nothing_any_more(house: House) -> None:
    await house.tenant(Limits())
    await house.store.reserve(ask("f1"))
    await house.store.reserve(ask("f2"))
    await house.store.settle("acme", "f2", charge())

    assert await house.store.renew("acme", ["f1", "f2", "f3"]) == {"f2", "f3"}
    assert await house.store.renew("acme", []) == set()


async def test_expired_gives_at_most_what_was_asked_for_the_longest_gone_first(house: House) -> None:
    await house.tenant(Limits())
    for number in range(5):
        await house.set_clock(START_MS + (5 - number) * 100)
        await house.store.reserve(ask(f"f{number}"))

    await look_each_second(house, START_MS, START_MS + LEASE_MS)
    await house.set_clock(START_MS + LEASE_MS + 1000)

    assert [lapsed.reservation_id for lapsed in await house.store.expired(2)] == ["f4", "f3"]
    assert await house.store.expired(0) == []


async def test_expired_finds_the_reservations_of_every_root(house: House) -> None:
    for root in ("acme", "other", "third"):
        await house.tenant(Limits(), tenant=root)
        await house.store.reserve(ask(f"of-{root}", root=root, tenant=root))

    found = await look_each_second(house, START_MS, START_MS + LEASE_MS)

    assert {(lapsed.root, lapsed.reservation_id) for lapsed in found} == {
        ("acme", "of-acme"),
        ("other", "of-other"),
        ("third", "of-third"),
    }


async def test_after_a_pause_of_the_store_holders_have_a_whole_lease_to_renew(house: House) -> None:
    await house.tenant(Limits())
    await house.store.reserve(ask("alive"))
    await house.store.reserve(ask("dead"))
    await house.store.expired(100)

    resumed = START_MS + 10 * LEASE_MS
    await house.set_clock(resumed)
    at_once = await house.store.expired(100)
    await house.store.renew("acme", ["alive"])
    during = await look_each_second(house, resumed, resumed + LEASE_MS - 1000)
    after = await look_each_second(house, resumed + LEASE_MS - 1000, resumed + LEASE_MS)

    assert at_once == during == []
    assert "dead" in {lapsed.reservation_id for lapsed in after}


async def test_leases_dated_by_a_clock_that_then_stepped_back_lapse_all_the_same(house: House) -> None:
    await house.tenant(Limits())
    await house.store.reserve(ask("f1"))
    back = START_MS - 86_400_000

    found = await look_each_second(house, back, back + 2 * LEASE_MS)

    assert [lapsed.reservation_id for lapsed in found] == ["f1"]


async def test_a_clock_that_leapt_ahead_and_came_back_delays_the_reaper_by_no_more_than_a_lease(house: House) -> None:
    await house.tenant(Limits())
    await house.store.reserve(ask("f1"))
    await house.store.expired(100)
    await house.set_clock(START_MS + 86_400_000)
    in_grace = await house.store.expired(100)

    found = await look_each_second(house, START_MS, START_MS + LEASE_MS)

    assert in_grace == []
    assert [lapsed.reservation_id for lapsed in found] == ["f1"]


async def test_the_late_settle_of_a_gateway_that_was_only_slow_changes_nothing(house: House) -> None:
    await house.tenant(Limits(tokens_per_day=100))
    await house.store.reserve(ask("f1"))
    await house.store.settle("acme", "f1", charge(5))  # the reaper

    assert not (await house.store.settle("acme", "f1", charge(20))).first
    assert await house.store.renew("acme", ["f1"]) == {"f1"}
    assert (await one(house, "tokens_per_day")).used == 15


async def test_a_refund_gives_everything_back(house: House) -> None:
    every = Limits(
        requests_per_minute=5,
        tokens_per_minute=100,
        tokens_per_day=100,
        tokens_per_month=100,
        concurrent_requests=2,
    )
    await house.tenant(every)
    await house.key("k1", every)
    before = await house.store.statuses("acme", "acme", "k1")

    await house.store.reserve(ask("f1", key_id="k1"))
    assert (await house.store.settle("acme", "f1", Charge.refund())).first

    assert await house.store.statuses("acme", "acme", "k1") == before
