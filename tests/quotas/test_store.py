"""What every quota store answers: the same suite for the twin, for Valkey and for Redis."""

import pytest

from fairlane.quotas.limits import LIMIT_NAMES, RULES, Limits
from fairlane.quotas.store import AlreadySettled, Charge, Denied
from tests.support.quotas.house import House, ask, charge, one, refused

pytestmark = pytest.mark.anyio


async def test_a_reservation_holds_prompt_and_output_of_all_choices(house: House) -> None:
    await house.tenant(Limits(tokens_per_minute=1000))

    reservation = await house.store.reserve(ask(n=3))

    (status,) = reservation.statuses
    assert reservation.granted_tokens == 20
    assert (status.used, status.reserved, status.remaining) == (0, 70, 930)


async def test_without_limits_everything_is_granted_and_nothing_reported(house: House) -> None:
    await house.tenant(Limits())

    reservation = await house.store.reserve(ask(prompts=(10**9,), max_output_tokens=10**9))

    assert (reservation.granted_tokens, reservation.statuses) == (10**9, ())


async def test_settling_charges_what_was_published_and_releases_the_rest(house: House) -> None:
    await house.tenant(Limits(tokens_per_minute=100, tokens_per_day=100, tokens_per_month=100))
    await house.store.reserve(ask())

    assert (await house.store.settle("acme", "f1", charge(output_tokens=5))).first

    for status in await house.store.statuses("acme", "acme"):
        assert (status.used, status.reserved, status.remaining) == (15, 0, 85)


async def test_only_the_first_settle_counts(house: House) -> None:
    await house.tenant(Limits(tokens_per_day=100))
    await house.store.reserve(ask())

    answers = [(await house.store.settle("acme", "f1", charge(output_tokens=n))).first for n in (5, 20, 0)]

    assert answers == [True, False, False]
    assert (await one(house, "tokens_per_day")).used == 15


@pytest.mark.parametrize("refund", [True, False])
async def test_a_settlement_says_how_the_limits_stand_then(house: House, refund: bool) -> None:
    await house.tenant(
        Limits(requests_per_minute=7, tokens_per_day=100, max_output_tokens=20, tokens_per_minute=10**15)
    )
    await house.store.reserve(ask())

    done = await house.store.settle("acme", "f1", Charge.refund() if refund else charge(output_tokens=5))

    assert done.statuses == tuple(await house.store.statuses("acme", "acme"))
    assert [status.reserved for status in done.statuses] == [0, 0, 0, 0]
    assert (await house.store.settle("acme", "f1", charge())).statuses is None


async def test_reserving_a_reservation_twice_holds_it_once(house: House) -> None:
    await house.tenant(Limits(tokens_per_day=100, requests_per_minute=5))

    first = await house.store.reserve(ask())
    second = await house.store.reserve(ask())

    assert first == second
    assert (await one(house, "tokens_per_day")).reserved == 30
    assert (await one(house, "requests_per_minute")).used == 1


async def test_a_settled_reservation_can_not_be_reserved_again(house: House) -> None:
    await house.tenant(Limits())
    await house.store.reserve(ask())
    await house.store.settle("acme", "f1", charge())

    with pytest.raises(AlreadySettled):
        await house.store.reserve(ask())


async def test_a_refund_that_comes_before_its_reservation_keeps_it_out(house: House) -> None:
    await house.tenant(Limits(tokens_per_day=100))

    assert not (await house.store.settle("acme", "f1", Charge.refund())).first

    with pytest.raises(AlreadySettled):
        await house.store.reserve(ask())
    assert (await one(house, "tokens_per_day")).reserved == 0


async def test_reserved_tokens_count_against_every_window(house: House) -> None:
    await house.tenant(Limits(tokens_per_minute=50, tokens_per_day=1000))
    await house.store.reserve(ask())

    denied = await refused(house)

    assert (denied.status.name, denied.status.reserved, denied.requested) == ("tokens_per_minute", 30, 30)


@pytest.mark.parametrize(
    ("limits", "fits"),
    [
        (Limits(requests_per_minute=3), 3),
        (Limits(tokens_per_minute=90), 3),
        (Limits(input_tokens_per_minute=39), 3),
        (Limits(output_tokens_per_minute=40), 2),
        (Limits(tokens_per_day=119), 3),
        (Limits(tokens_per_month=30), 1),
        (Limits(concurrent_requests=2), 2),
        (Limits(max_prompt_tokens=10, max_output_tokens=20, queued_requests=0), 5),
        (Limits(requests_per_minute=4, concurrent_requests=3, tokens_per_day=60), 2),
    ],
)
async def test_each_limit_lets_in_exactly_what_it_says(house: House, limits: Limits, fits: int) -> None:
    await house.tenant(limits)

    granted = 0
    for number in range(5):
        try:
            await house.store.reserve(ask(f"f{number}"))
            granted += 1
        except Denied:
            continue

    assert granted == fits


async def test_a_running_request_frees_its_place_when_it_ends(house: House) -> None:
    await house.tenant(Limits(concurrent_requests=1))
    await house.store.reserve(ask())
    denied = await refused(house)

    await house.store.settle("acme", "f1", charge())

    assert (denied.kind, denied.retry_after_s, denied.status.used) == ("concurrency", None, 1)
    assert await house.store.reserve(ask("f2"))


@pytest.mark.parametrize(
    ("limits", "name", "requested"),
    [
        (Limits(requests_per_minute=0), "requests_per_minute", 1),
        (Limits(tokens_per_minute=29), "tokens_per_minute", 30),
        (Limits(tokens_per_month=29), "tokens_per_month", 30),
        (Limits(concurrent_requests=0), "concurrent_requests", 1),
        (Limits(max_prompt_tokens=9), "max_prompt_tokens", 10),
        (Limits(max_output_tokens=19), "max_output_tokens", 20),
        (Limits(tokens_per_day=29, tokens_per_minute=10**6), "tokens_per_day", 30),
    ],
)
async def test_what_no_window_could_hold_exceeds(house: House, limits: Limits, name: str, requested: int) -> None:
    await house.tenant(limits)

    denied = await refused(house)

    assert (denied.kind, denied.retry_after_s) == ("exceeds", None)
    assert (denied.status.name, denied.requested) == (name, requested)


async def test_an_unstated_maximum_is_cut_to_what_the_limits_leave(house: House) -> None:
    await house.tenant(Limits(tokens_per_minute=100, output_tokens_per_minute=60, max_output_tokens=25))

    plain = await house.store.reserve(ask("f1", max_output_tokens=4096, explicit_max=False))
    forked = await house.store.reserve(ask("f2", max_output_tokens=4096, n=4, explicit_max=False))

    assert plain.granted_tokens == 25
    assert forked.granted_tokens == 8  # (60 - 25) // 4


async def test_an_unstated_maximum_gets_at_least_a_token_per_choice_or_nothing(house: House) -> None:
    await house.tenant(Limits(tokens_per_day=42))
    await house.store.reserve(ask())

    last = await house.store.reserve(ask("f2", max_output_tokens=4096, n=2, explicit_max=False))
    denied = await refused(house, max_output_tokens=4096, explicit_max=False)

    assert last.granted_tokens == 1
    assert (denied.kind, denied.requested) == ("quota", 11)


async def test_several_prompts_are_one_request(house: House) -> None:
    await house.tenant(Limits(requests_per_minute=1, concurrent_requests=1, tokens_per_minute=100, max_prompt_tokens=6))

    reservation = await house.store.reserve(ask(prompts=(6, 3, 1), max_output_tokens=5, n=2))

    held = {status.name: status.used + status.reserved for status in reservation.statuses}
    assert held == {
        "requests_per_minute": 1,
        "concurrent_requests": 1,
        "tokens_per_minute": 10 + 3 * 2 * 5,
        "max_prompt_tokens": 0,
    }


async def test_what_several_prompts_can_never_have_together_exceeds(house: House) -> None:
    await house.tenant(Limits(tokens_per_minute=14))

    denied = await refused(house, prompts=(4, 4, 4), max_output_tokens=1)

    assert (denied.kind, denied.requested) == ("exceeds", 15)


async def test_an_unstated_maximum_is_split_over_all_prompts(house: House) -> None:
    await house.tenant(Limits(tokens_per_minute=50))

    reservation = await house.store.reserve(ask(prompts=(1, 1), max_output_tokens=4096, explicit_max=False))

    assert reservation.granted_tokens == 24


async def test_an_unstated_maximum_still_exceeds_where_the_prompt_alone_does(house: House) -> None:
    await house.tenant(Limits(tokens_per_minute=10))

    denied = await refused(house, explicit_max=False)

    assert (denied.kind, denied.requested) == ("exceeds", 11)


async def test_key_and_tenant_limits_must_both_fit(house: House) -> None:
    await house.tenant(Limits(tokens_per_day=70))
    await house.key("k1", Limits(tokens_per_day=40))
    await house.key("k2", Limits())
    await house.store.reserve(ask("f1", key_id="k1"))

    of_key = await refused(house, key_id="k1")
    await house.store.reserve(ask("f2", key_id="k2"))
    of_tenant = await refused(house, key_id="k2")

    assert (of_key.status.scope, of_key.status.remaining) == ("key", 10)
    assert (of_tenant.status.scope, of_tenant.status.remaining) == ("tenant", 10)


async def test_a_denial_by_the_key_leaves_the_tenant_untouched(house: House) -> None:
    await house.tenant(Limits(requests_per_minute=10, tokens_per_day=1000, concurrent_requests=10))
    await house.key("k1", Limits(tokens_per_day=29))

    await refused(house, key_id="k1")

    assert all(status.used == status.reserved == 0 for status in await house.store.statuses("acme", "acme"))


async def test_tenants_do_not_share_budgets(house: House) -> None:
    await house.tenant(Limits(tokens_per_day=30))
    await house.tenant(Limits(tokens_per_day=30), tenant="other")
    await house.store.reserve(ask())

    assert await house.store.reserve(ask("f2", root="other", tenant="other"))


async def test_a_changed_limit_holds_for_the_next_request(house: House) -> None:
    await house.tenant(Limits(tokens_per_day=1000))
    await house.store.reserve(ask())

    await house.tenant(Limits(tokens_per_day=50))

    assert (await refused(house)).status.limit == 50


async def test_usage_before_a_limit_was_set_counts_against_it(house: House) -> None:
    await house.tenant(Limits())
    await house.store.reserve(ask("f1"))
    await house.store.settle("acme", "f1", charge())
    await house.store.reserve(ask("f2"))

    await house.tenant(Limits(tokens_per_minute=100))

    status = await one(house, "tokens_per_minute")
    assert (status.used, status.reserved) == (30, 30)


async def test_statuses_come_in_the_order_of_the_names_tenant_first(house: House) -> None:
    every = Limits(**dict.fromkeys(LIMIT_NAMES, 7))
    await house.tenant(every)
    await house.key("k1", every)

    found = await house.store.statuses("acme", "acme", "k1")

    known = [rule.name for rule in RULES]
    expected = [("tenant", name) for name in known] + [("key", name) for name in known]
    assert [(status.scope, status.name) for status in found] == expected
    assert all(status.limit == status.remaining == 7 for status in found)


async def test_a_limit_that_counts_nothing_of_a_request_does_not_refuse_it(house: House) -> None:
    await house.tenant(Limits(input_tokens_per_minute=10))
    await house.store.reserve(ask("f1"))
    await house.store.settle("acme", "f1", charge(prompt_tokens=50))

    assert await house.store.reserve(ask("f2", prompts=(0,)))


async def test_the_prompt_counts_whole_though_it_was_cached(house: House) -> None:
    await house.tenant(Limits(input_tokens_per_minute=100))
    await house.store.reserve(ask())

    await house.store.settle("acme", "f1", Charge(prompt_tokens=10, cached_tokens=8, output_tokens=1, outcome="x"))

    assert (await one(house, "input_tokens_per_minute")).used == 10
