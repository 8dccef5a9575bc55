"""Limits of a tenant, its key, its model and lane, and the tenants above: all of them hold, on every store."""

import pytest

from fairlane.quotas.limits import Limits
from fairlane.quotas.store import AccessDenied, Ask
from tests.support.quotas.house import House, ask, charge, refused

pytestmark = pytest.mark.anyio

MANY = Limits(tokens_per_day=1_000)


def of_web(reservation_id: str = "f1", **changes: object) -> Ask:
    return ask(reservation_id, tenant="web", **changes)


async def organisation(house: House, limits: Limits, **of_parent: object) -> None:
    """acme with these limits, and its project web with many."""
    await house.tenant(limits, **of_parent)  # type: ignore[arg-type]
    await house.tenant(MANY, tenant="web", root="acme", parents=["acme"])


async def figures(house: House, tenant: str) -> dict[tuple[str, str], tuple[int, int]]:
    found = await house.store.statuses("acme", tenant)
    return {(status.scope, status.name): (status.used, status.reserved) for status in found}


async def test_a_request_counts_against_the_tenant_above_too(house: House) -> None:
    await organisation(house, Limits(tokens_per_day=100))
    await house.store.reserve(of_web("f1"))
    await house.store.reserve(of_web("f2"))
    await house.store.settle("acme", "f1", charge(5))

    assert await figures(house, "web") == {
        ("tenant", "tokens_per_day"): (15, 30),
        ("parent", "tokens_per_day"): (15, 30),
    }
    assert await figures(house, "acme") == {("tenant", "tokens_per_day"): (15, 30)}


async def test_the_tenant_above_refuses_for_all_below(house: House) -> None:
    await organisation(house, Limits(tokens_per_day=50))
    await house.tenant(MANY, tenant="jobs", root="acme", parents=["acme"])
    await house.store.reserve(of_web("f1"))

    denied = await refused(house, tenant="jobs")

    assert (denied.status.scope, denied.status.name, denied.status.reserved) == ("parent", "tokens_per_day", 30)


async def test_a_refusal_above_writes_nothing_below(house: House) -> None:
    await organisation(house, Limits(concurrent_requests=0))

    await refused(house, tenant="web")

    assert await figures(house, "web") == {
        ("tenant", "tokens_per_day"): (0, 0),
        ("parent", "concurrent_requests"): (0, 0),
    }


@pytest.mark.parametrize("state", ["suspended", "deleted"])
async def test_nothing_runs_below_a_tenant_that_may_not_be_used(house: House, state: str) -> None:
    await organisation(house, Limits(), barred=state)

    with pytest.raises(AccessDenied) as caught:
        await house.store.reserve(of_web())

    assert caught.value.reason == state


async def test_each_tenants_day_begins_in_its_own_zone(house: House) -> None:
    await house.tenant(Limits(tokens_per_day=100), timezone="Pacific/Auckland")
    await house.tenant(MANY, tenant="web", root="acme", parents=["acme"], timezone="Europe/Berlin")
    await house.store.reserve(of_web())
    await house.store.settle("acme", "f1", charge())

    own, above = await house.store.statuses("acme", "web")

    assert own.resets_at is not None
    assert above.resets_at is not None
    assert (own.used, above.used) == (30, 30)
    assert own.resets_at - above.resets_at == 12 * 3600  # at ten in the morning, UTC


@pytest.mark.parametrize(
    ("names", "is_bound"),
    [
        (("smol", ""), True),
        (("", "latency"), True),
        (("smol", "latency"), True),
        (("smol", "throughput"), False),
        (("large", ""), False),
        (("", "throughput"), False),
    ],
)
async def test_limits_of_a_model_and_lane_hold_for_these_alone(
    house: House, names: tuple[str, str], is_bound: bool
) -> None:
    await house.tenant(MANY, limits_by={names: Limits(tokens_per_day=20)})

    (_, *named) = await house.store.statuses("acme", "acme", model="smol", lane="latency")
    assert [(status.scope, status.limit) for status in named] == ([("model_lane", 20)] if is_bound else [])
    if is_bound:
        denied = await refused(house)
        assert (denied.status.scope, denied.status.limit, denied.kind) == ("model_lane", 20, "exceeds")
    else:
        await house.store.reserve(ask())


async def test_limits_by_model_count_each_model_by_itself(house: House) -> None:
    await house.tenant(
        MANY, limits_by={("smol", ""): Limits(tokens_per_day=40), ("large", ""): Limits(tokens_per_day=40)}
    )
    await house.store.reserve(ask("f1", model="smol"))
    await house.store.reserve(ask("f2", model="large"))

    assert (await refused(house, model="large")).status.reserved == 30


async def test_a_reservation_is_settled_at_the_levels_that_it_was_reserved_at(house: House) -> None:
    await house.tenant(MANY, limits_by={("smol", ""): Limits(concurrent_requests=1)})
    await house.store.reserve(ask("f1"))
    await house.tenant(MANY)
    await house.store.settle("acme", "f1", charge())
    await house.tenant(MANY, limits_by={("smol", ""): Limits(concurrent_requests=1)})

    await house.store.reserve(ask("f2"))
    assert (await refused(house)).status.scope == "model_lane"
