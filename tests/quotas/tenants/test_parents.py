"""Tenants below others: how they are made, and what may not be."""

import pytest
import redis.asyncio

from fairlane.quotas.field_checks import FieldError
from fairlane.quotas.limits import Limits, LimitsBy
from fairlane.quotas.redis_store import RedisQuotaStore
from fairlane.quotas.store import Denied
from fairlane.quotas.tenants import TenantHasChildren, TenantStore
from tests.support.quotas.house import ask

pytestmark = pytest.mark.anyio


@pytest.fixture
def tenants(client: redis.asyncio.Redis) -> TenantStore:
    return TenantStore(client)


async def test_a_tenant_below_another_shares_its_root(tenants: TenantStore) -> None:
    await tenants.create({"id": "acme"})
    await tenants.create({"id": "web", "parent": "acme"})
    await tenants.create({"id": "shop", "parent": "web"})

    shop = await tenants.get("shop")

    assert shop is not None
    assert (shop.root, shop.parent, shop.parents) == ("acme", "web", ("web", "acme"))


async def test_a_line_of_tenants_has_a_bound(tenants: TenantStore) -> None:
    await tenants.create({"id": "t1"})
    for number in (2, 3, 4):
        await tenants.create({"id": f"t{number}", "parent": f"t{number - 1}"})

    with pytest.raises(FieldError, match="parent"):
        await tenants.create({"id": "t5", "parent": "t4"})


async def test_a_parent_cannot_change(tenants: TenantStore) -> None:
    await tenants.create({"id": "acme"})
    await tenants.create({"id": "web", "parent": "acme"})

    for parent in (None, "web", "other"):
        with pytest.raises(FieldError, match="parent"):
            await tenants.update("web", {"parent": parent})
    assert (await tenants.update("web", {"parent": "acme", "name": "Web"})).name == "Web"


async def test_a_tenant_with_others_below_it_cannot_be_deleted_before_them(tenants: TenantStore) -> None:
    await tenants.create({"id": "acme"})
    await tenants.create({"id": "web", "parent": "acme"})

    with pytest.raises(TenantHasChildren):
        await tenants.delete("acme")
    await tenants.delete("web")
    await tenants.delete("acme")

    with pytest.raises(FieldError, match="parent"):
        await tenants.create({"id": "late", "parent": "acme"})


async def test_an_id_keeps_the_organisation_whose_ledger_it_has(tenants: TenantStore) -> None:
    await tenants.create({"id": "acme"})
    await tenants.create({"id": "web", "parent": "acme"})
    await tenants.delete("web")

    with pytest.raises(FieldError, match="id"):
        await tenants.create({"id": "web"})
    assert (await tenants.create({"id": "web", "parent": "acme"})).root == "acme"


async def test_limits_by_model_and_lane_hold_until_they_are_taken_away(
    tenants: TenantStore, client: redis.asyncio.Redis
) -> None:
    by = [{"model": "smol", "lane": "latency", "limits": {"concurrent_requests": 0}}]
    tenant = await tenants.create({"id": "acme", "limits_by": by})
    store = RedisQuotaStore(client)

    with pytest.raises(Denied) as caught:
        await store.reserve(ask(model="smol", lane="latency"))
    await tenants.update("acme", {"limits_by": []})
    await store.reserve(ask(model="smol", lane="latency"))

    assert tenant.limits_by == (LimitsBy(model="smol", lane="latency", limits=Limits(concurrent_requests=0)),)
    assert caught.value.status.scope == "model_lane"
    assert not await client.keys("*limits:by:*")
