"""One tenant id under two parents: one of two creations makes it, and one that was cut off bars nobody."""

import anyio
import pytest
import redis.asyncio

from fairlane.quotas.field_checks import FieldError
from fairlane.quotas.scripts import Database
from fairlane.quotas.tenants import TenantExists, TenantIds, TenantStore

pytestmark = pytest.mark.anyio


@pytest.fixture
async def tenants(client: redis.asyncio.Redis) -> TenantStore:
    """Two organisations, whose keys have hash tags of their own."""
    found = TenantStore(client)
    for parent in ("acme", "globex"):
        await found.create({"id": parent})
    return found


async def claimed(client: redis.asyncio.Redis, tenant_id: str, root: str) -> int:
    """What a creation has done that was cut off before it wrote its tenant."""
    claim = await TenantIds(Database(client)).claim(tenant_id, root)
    assert isinstance(claim, int)
    return claim


async def test_of_many_who_create_one_id_under_different_parents_one_succeeds(tenants: TenantStore) -> None:
    for attempt in range(20):
        tenant_id = f"web{attempt}"
        made: list[str] = []

        async def create(parent: str | None, tenant_id: str = tenant_id, made: list[str] = made) -> None:
            try:
                made.append((await tenants.create({"id": tenant_id, "parent": parent})).root)
            except TenantExists:
                return

        async with anyio.create_task_group() as group:
            for parent in ("acme", "globex", None):
                group.start_soon(create, parent)

        found = await tenants.get(tenant_id)
        assert found is not None
        assert made == [found.root]
        assert [tenant.id for tenant in await tenants.list() if tenant.id == tenant_id] == [tenant_id]


async def test_an_id_that_another_organisations_tenant_has_exists(tenants: TenantStore) -> None:
    await tenants.create({"id": "web", "parent": "acme"})

    with pytest.raises(TenantExists):
        await tenants.create({"id": "web", "parent": "globex"})


async def test_a_creation_that_was_cut_off_leaves_its_id_to_whoever_wants_it(
    tenants: TenantStore, client: redis.asyncio.Redis
) -> None:
    await claimed(client, "web", "acme")
    await claimed(client, "shop", "acme")

    assert (await tenants.create({"id": "web", "parent": "globex"})).root == "globex"
    assert (await tenants.create({"id": "shop", "parent": "acme"})).root == "acme"
    assert [tenant.id for tenant in await tenants.list()] == ["acme", "globex", "shop", "web"]


async def test_a_creation_that_only_seemed_dead_makes_nothing(
    tenants: TenantStore, client: redis.asyncio.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stands between its claim and its tenant while another organisation takes the id, and goes on afterwards."""
    claims, asleep, goes_on = TenantIds.claim, anyio.Event(), anyio.Event()

    async def slow(self: TenantIds, tenant_id: str, root: str) -> object:
        number = await claims(self, tenant_id, root)
        if root == "acme":
            asleep.set()
            await goes_on.wait()
        return number

    monkeypatch.setattr(TenantIds, "claim", slow)
    refused: list[str] = []

    async def create() -> None:
        try:
            await tenants.create({"id": "web", "parent": "acme"})
        except TenantExists:
            refused.append("acme")

    async with anyio.create_task_group() as group:
        group.start_soon(create)
        await asleep.wait()
        made = await tenants.create({"id": "web", "parent": "globex"})
        goes_on.set()

    assert refused == ["acme"]
    assert await tenants.get("web") == made


async def test_an_id_goes_back_and_forth_until_one_makes_its_tenant(
    tenants: TenantStore, client: redis.asyncio.Redis
) -> None:
    for root in ("acme", "globex", "acme", "globex"):
        await claimed(client, "web", root)

    assert (await tenants.create({"id": "web", "parent": "acme"})).root == "acme"
    await tenants.delete("web")
    with pytest.raises(FieldError, match="organisation"):
        await tenants.create({"id": "web", "parent": "globex"})
    assert (await tenants.create({"id": "web", "parent": "acme"})).root == "acme"
