"""Tenants as the admin API makes, changes and ends them."""

import json

import anyio
import pytest
import redis.asyncio

from fairlane.quotas.field_checks import FieldError
from fairlane.quotas.limits import Limits
from fairlane.quotas.tenants import Tenant, TenantExists, TenantNotFound, TenantStore, VersionConflict

pytestmark = pytest.mark.anyio

FULL = {
    "id": "acme",
    "name": "Acme GmbH",
    "parent": None,
    "timezone": "Europe/Berlin",
    "weight": 2.5,
    "default_lane": "throughput",
    "lanes": ["throughput", "latency"],
    "models": ["smol"],
    "limits": {"tokens_per_day": 1000, "requests_per_minute": None},
    "limits_by": [],
    "shadow": ["tokens_per_day"],
    "reserve": "full",
    "preemption": "exact",
    "share_group": "family",
}


@pytest.fixture
def tenants(store: redis.asyncio.Redis) -> TenantStore:
    return TenantStore(store)


async def test_a_tenant_needs_nothing_but_an_id(tenants: TenantStore) -> None:
    tenant = await tenants.create({"id": "acme"})

    assert (tenant.root, tenant.parent, tenant.state, tenant.version) == ("acme", None, "active", 1)
    assert (tenant.timezone, tenant.weight, tenant.default_lane, tenant.models) == ("UTC", 1.0, "latency", None)
    assert tenant.limits == Limits()
    assert tenant.created_at > 1_700_000_000
    assert await tenants.get("acme") == tenant


async def test_every_field_is_kept(tenants: TenantStore) -> None:
    created = await tenants.create(FULL)

    found = await tenants.get("acme")

    assert found == created
    assert found == Tenant(
        id="acme",
        name="Acme GmbH",
        root="acme",
        timezone="Europe/Berlin",
        weight=2.5,
        default_lane="throughput",
        lanes=("throughput", "latency"),
        models=("smol",),
        limits=Limits(tokens_per_day=1000),
        shadow=("tokens_per_day",),
        reserve="full",
        preemption="exact",
        share_group="family",
        created_at=created.created_at,
        version=1,
    )


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("name", 7),
        ("name", "x" * 201),
        ("name", "line\nbreak"),
        ("parent", "other"),
        ("timezone", "Mars/Olympus"),
        ("timezone", "America"),
        ("timezone", "../../etc/passwd"),
        ("timezone", None),
        ("weight", 0),
        ("weight", -1),
        ("weight", float("nan")),
        ("weight", float("inf")),
        ("weight", True),
        ("weight", "1"),
        ("default_lane", "fast"),
        ("lanes", ["latency", "batch"]),
        ("lanes", "latency"),
        ("lanes", []),
        ("models", [1]),
        ("models", "smol"),
        ("limits", {"tokens_per_day": -1}),
        ("limits", {"tokens_per_hour": 1}),
        ("limits", 5),
        ("limits_by", [{"limits": {"tokens_per_day": 1}}]),
        ("limits_by", [{"model": "smol", "limits": {"tokens_per_hour": 1}}]),
        ("limits_by", [{"model": "smol", "limits": {"queued_requests": 1}}]),
        ("limits_by", [{"lane": "batch"}]),
        ("limits_by", [{"model": "smol", "tier": "gold"}]),
        ("limits_by", [{"model": "smol"}, {"model": "smol", "lane": None}]),
        ("limits_by", {"model": "smol"}),
        ("parent", "nobody"),
        ("parent", "acme"),
        ("parent", 7),
        ("shadow", ["tokens_per_hour"]),
        ("reserve", "none"),
        ("preemption", True),
        ("share_group", 7),
        ("colour", "blue"),
        ("state", "suspended"),
        ("version", 7),
        ("root", "other"),
    ],
)
async def test_a_bad_field_is_refused_by_name_and_nothing_is_made(
    tenants: TenantStore, field: str, value: object
) -> None:
    with pytest.raises(FieldError) as caught:
        await tenants.create({"id": "acme", field: value})

    assert caught.value.field.split(".")[0] == ("default_lane" if value == [] and field == "lanes" else field)
    assert await tenants.get("acme") is None


@pytest.mark.parametrize("tenant_id", [None, "", 7, "a b", "a{b}", "a:b", "-a", ".a", "x" * 64, "ä", "a\n"])
async def test_an_id_that_could_break_a_key_is_refused(tenants: TenantStore, tenant_id: object) -> None:
    with pytest.raises(FieldError) as caught:
        await tenants.create({"id": tenant_id})

    assert caught.value.field == "id"


async def test_a_second_tenant_of_the_same_id_is_refused(tenants: TenantStore) -> None:
    await tenants.create({"id": "acme", "name": "first"})

    with pytest.raises(TenantExists):
        await tenants.create({"id": "acme", "name": "second"})

    assert (await tenants.list())[0].name == "first"


async def test_of_many_who_create_the_same_tenant_one_succeeds(tenants: TenantStore) -> None:
    made: list[str] = []

    async def create(name: str) -> None:
        try:
            made.append((await tenants.create({"id": "acme", "name": name})).name)
        except TenantExists:
            return

    async with anyio.create_task_group() as group:
        for number in range(20):
            group.start_soon(create, f"n{number}")

    found = await tenants.get("acme")
    assert found is not None
    assert made == [found.name]


async def test_unknown_tenants_are_not_there(tenants: TenantStore) -> None:
    await tenants.create({"id": "acme"})

    assert await tenants.get("acm") is None
    assert await tenants.get("acme ") is None
    assert await tenants.get("acme acme") is None
    for call in (tenants.update("nobody", {}), tenants.suspend("nobody"), tenants.resume("nobody")):
        with pytest.raises(TenantNotFound):
            await call
    with pytest.raises(TenantNotFound):
        await tenants.delete("nobody")


async def test_tenants_are_listed_by_id_page_by_page(tenants: TenantStore) -> None:
    for tenant_id in ("b", "a", "a-1", "a.1", "c", "a1"):
        await tenants.create({"id": tenant_id})

    first = await tenants.list(limit=4)
    second = await tenants.list(limit=4, after=first[-1].id)

    assert [tenant.id for tenant in first] == ["a", "a-1", "a.1", "a1"]
    assert [tenant.id for tenant in second] == ["b", "c"]
    assert await tenants.list(after="c") == []


async def test_a_page_is_full_though_tenants_on_it_were_deleted(tenants: TenantStore) -> None:
    for number in range(6):
        await tenants.create({"id": f"t{number}"})
    await tenants.delete("t1")
    await tenants.delete("t2")

    assert [tenant.id for tenant in await tenants.list(limit=3)] == ["t0", "t3", "t4"]


async def test_an_update_changes_only_what_it_states_and_counts_versions(tenants: TenantStore) -> None:
    await tenants.create(FULL)

    updated = await tenants.update("acme", {"weight": 4, "limits": {"concurrent_requests": 2}})

    assert (updated.weight, updated.name, updated.version) == (4.0, "Acme GmbH", 2)
    assert updated.limits == Limits(tokens_per_day=1000, concurrent_requests=2)
    assert await tenants.get("acme") == updated


async def test_null_takes_a_limit_away_or_all_of_them(tenants: TenantStore) -> None:
    await tenants.create({"id": "acme", "limits": {"tokens_per_day": 5, "tokens_per_month": 6}})

    patched = await tenants.update("acme", {"limits": {"tokens_per_day": None}})
    cleared = await tenants.update("acme", {"limits": None})

    assert patched.limits == Limits(tokens_per_month=6)
    assert cleared.limits == Limits()
    with pytest.raises(FieldError):
        await tenants.update("acme", {"limits": {"tokens_per_day": 0.5}})


async def test_a_default_lane_that_is_not_stated_follows_the_lanes(tenants: TenantStore) -> None:
    made = await tenants.create({"id": "batch", "lanes": ["throughput"]})
    narrowed = await tenants.update("batch", {"lanes": ["latency"]})
    widened = await tenants.update("batch", {"lanes": ["throughput", "latency"]})

    assert [tenant.default_lane for tenant in (made, narrowed, widened)] == ["throughput", "latency", "latency"]


@pytest.mark.parametrize("change", [{"default_lane": "latency"}, {"default_lane": "latency", "lanes": ["throughput"]}])
async def test_a_default_lane_that_is_stated_must_be_one_of_the_lanes(
    tenants: TenantStore, change: dict[str, object]
) -> None:
    await tenants.create({"id": "acme", "lanes": ["throughput"]})

    with pytest.raises(FieldError, match="default_lane"):
        await tenants.update("acme", change)
    updated = await tenants.update("acme", {"lanes": ["latency"], "default_lane": "latency"})

    assert updated.lanes == ("latency",)
    assert updated.default_lane == "latency"


async def test_an_update_of_a_version_that_was_left_behind_is_refused(tenants: TenantStore) -> None:
    seen = await tenants.create({"id": "acme"})
    await tenants.update("acme", {"name": "other"})

    with pytest.raises(VersionConflict):
        await tenants.update("acme", {"name": "mine"}, version=seen.version)

    assert (await tenants.update("acme", {"name": "mine"}, version=2)).version == 3


async def test_concurrent_updates_of_different_fields_are_all_kept(tenants: TenantStore) -> None:
    await tenants.create({"id": "acme"})
    changes: list[dict[str, object]] = [
        {"name": "n"},
        {"weight": 3},
        {"limits": {"tokens_per_day": 1}},
        {"limits": {"tokens_per_month": 2}},
        {"preemption": "exact"},
    ]

    async with anyio.create_task_group() as group:
        for change in changes:
            group.start_soon(tenants.update, "acme", change)

    found = await tenants.get("acme")
    assert found is not None
    assert (found.name, found.weight, found.preemption, found.version) == ("n", 3.0, "exact", 6)
    assert found.limits == Limits(tokens_per_day=1, tokens_per_month=2)


async def test_a_tenant_without_its_entry_in_the_index_can_not_be(
    tenants: TenantStore, store: redis.asyncio.Redis
) -> None:
    """The index is written first: a creation that was cut off leaves an entry that is skipped, and can be repeated."""
    await store.zadd("fl:tenants", {"half half": 0})

    assert await tenants.list() == []
    assert await tenants.get("half") is None
    assert (await tenants.create({"id": "half"})).version == 1


async def test_the_record_has_the_zone_as_the_scripts_read_it(tenants: TenantStore, store: redis.asyncio.Redis) -> None:
    await tenants.create({"id": "acme", "timezone": "Asia/Kolkata"})

    zone = await store.hget("fl:quota:{acme}:tenant:acme", "zone")

    assert json.loads(zone or b"") == [0, 19_800_000]
