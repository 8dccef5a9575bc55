"""Who is turned away before any limit is looked at, and what limits in shadow let through: on every store."""

import pytest

from fairlane.quotas.limits import Limits
from fairlane.quotas.store import AccessDenied, Need, Reason
from tests.support.quotas.house import START_MS, House, ask, charge, one

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("reason", ["suspended", "deleted"])
async def test_a_barred_tenant_is_turned_away(house: House, reason: Reason) -> None:
    await house.tenant(Limits(), barred=reason)

    with pytest.raises(AccessDenied) as caught:
        await house.store.reserve(ask())

    assert caught.value.reason == reason


async def test_an_unknown_tenant_counts_as_deleted(house: House) -> None:
    with pytest.raises(AccessDenied, match="deleted"):
        await house.store.reserve(ask())
    assert await house.store.statuses("acme", "acme") == []


async def test_a_revoked_foreign_or_unknown_key_is_turned_away(house: House) -> None:
    await house.tenant(Limits())
    await house.key("gone", Limits(), revoked=True)
    await house.tenant(Limits(), tenant="other")
    await house.key("theirs", Limits(), tenant="other")

    for key_id in ("gone", "theirs", "never"):
        with pytest.raises(AccessDenied, match="revoked"):
            await house.store.reserve(ask(key_id=key_id))


async def test_a_key_works_until_the_moment_it_expires(house: House) -> None:
    await house.tenant(Limits())
    await house.key("k1", Limits(), expires_ms=START_MS + 1000)

    await house.set_clock(START_MS + 999)
    await house.store.reserve(ask("f1", key_id="k1"))
    await house.set_clock(START_MS + 1000)
    with pytest.raises(AccessDenied, match="expired"):
        await house.store.reserve(ask("f2", key_id="k1"))


async def test_a_reservation_in_the_air_is_settled_though_its_tenant_was_suspended(house: House) -> None:
    await house.tenant(Limits(tokens_per_day=100))
    await house.store.reserve(ask())
    await house.tenant(Limits(tokens_per_day=100), barred="suspended")

    assert (await house.store.settle("acme", "f1", charge())).first

    assert (await one(house, "tokens_per_day")).used == 30


@pytest.mark.parametrize("reason", ["suspended", "deleted"])
@pytest.mark.parametrize("tenant", ["acme", "web"])
async def test_a_reservation_in_the_air_gets_nothing_more_once_its_tenant_is_barred(
    house: House, reason: Reason, tenant: str
) -> None:
    await house.tenant(Limits(output_tokens_per_minute=64))
    await house.tenant(Limits(), tenant="web", root="acme", parents=["acme"])
    await house.store.reserve(ask(root="acme", tenant="web", quantum=64, max_output_tokens=60))
    above = ["acme"] if tenant == "web" else []
    await house.tenant(Limits(), tenant=tenant, root="acme", parents=above, barred=reason)

    stuck = Need(published=8, prompt_tokens=10, known=8, most=60, quantum=64, stuck=True)
    extension = await house.store.extend("acme", "f1", stuck)

    assert (extension.granted_tokens, extension.limited_by, extension.spent, extension.paused) == (8, "", False, False)
    assert extension.retry_after_s == 1
    assert (await house.store.settle("acme", "f1", charge(8))).first


async def test_a_limit_in_shadow_is_counted_and_reported_but_never_refuses(house: House) -> None:
    await house.tenant(Limits(tokens_per_day=29, requests_per_minute=5), shadow=["tokens_per_day"])

    reservation = await house.store.reserve(ask())

    shadow = next(status for status in reservation.statuses if status.shadow)
    assert reservation.shadowed == ("tokens_per_day",)
    assert (shadow.name, shadow.reserved, shadow.remaining) == ("tokens_per_day", 30, 0)


async def test_a_limit_in_shadow_does_not_cut_an_unstated_maximum(house: House) -> None:
    await house.tenant(Limits(tokens_per_day=15), shadow=["tokens_per_day"])

    reservation = await house.store.reserve(ask(explicit_max=False))

    assert reservation.granted_tokens == 20


@pytest.mark.parametrize("most", [20, 5_000])
async def test_a_limit_in_shadow_counts_nothing_of_what_it_would_have_cut(house: House, most: int) -> None:
    names = ["tokens_per_minute", "tokens_per_day", "max_output_tokens"]
    figures = Limits(tokens_per_minute=100, tokens_per_day=11, max_output_tokens=5)
    await house.tenant(figures, shadow=names)

    held = await house.store.reserve(ask(max_output_tokens=most, explicit_max=False, quantum=8))
    whole = await house.store.reserve(ask("f2", max_output_tokens=most, explicit_max=False))
    stated = await house.store.reserve(ask("f3", max_output_tokens=120, quantum=8))

    assert (held.granted_tokens, held.shadowed) == (8, ())
    assert (whole.granted_tokens, whole.shadowed) == (most, ("tokens_per_day",))  # the first holds all of the day
    assert stated.shadowed == ("tokens_per_minute", "tokens_per_day", "max_output_tokens")
