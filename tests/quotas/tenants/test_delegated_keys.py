"""Keys that are nobody's secret: made once for each way, following what is stated of it, ended as any other."""

import asyncio
from dataclasses import replace

import pytest
import redis.asyncio

from fairlane.quotas.api_keys import KEY_WAY, ApiKey, KeyStore, Scopes
from fairlane.quotas.audit import Audit, Note
from fairlane.quotas.delegated_keys import DelegatedKeys, Delegation
from fairlane.quotas.limits import Limits
from fairlane.quotas.tenants import Tenant, TenantStore

pytestmark = pytest.mark.anyio

WAY = Delegation(via="issuer:login/research", tenant="acme", limits=Limits(tokens_per_minute=5))


@pytest.fixture
async def acme(store: redis.asyncio.Redis) -> Tenant:
    return await TenantStore(store).create({"id": "acme"})


async def test_a_way_has_one_key_however_many_gateways_come_on_it_first(
    store: redis.asyncio.Redis, acme: Tenant
) -> None:
    gateways = [DelegatedKeys(store) for _ in range(8)]

    found = await asyncio.gather(*(each.identity(WAY) for each in gateways))

    (key,) = await KeyStore(store).list(acme)
    assert {each.key.id for each in found if each} == {key.id} == {WAY.key_id}
    assert (key.via, key.limits) == (WAY.via, WAY.limits)
    entries = [(entry.actor, entry.action) for entry in await Audit(store).list()]
    assert entries == [("gateway", "key.create")]


async def test_a_key_that_another_gateway_makes_meanwhile_does_not_count_as_revoked(
    store: redis.asyncio.Redis, acme: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow, quick = DelegatedKeys(store), DelegatedKeys(store)
    has_key, put = KeyStore.has_key, KeyStore.put

    async def made_meanwhile(keys: KeyStore, root: str, key_id: str) -> bool:
        """Let the quick gateway, which has written the way, write the key after the slow one looked for it."""
        making.set()
        await other
        return await has_key(keys, root, key_id)

    async def later(keys: KeyStore, tenant: Tenant, key: ApiKey, note: Note) -> None:
        begun.set()
        await making.wait()
        await put(keys, tenant, key, note)

    begun, making = asyncio.Event(), asyncio.Event()
    monkeypatch.setattr(KeyStore, "put", later)
    other = asyncio.create_task(quick.identity(WAY))
    await begun.wait()
    monkeypatch.setattr(KeyStore, "has_key", made_meanwhile)

    found = await slow.identity(WAY)

    assert found is not None
    assert found.key.id == WAY.key_id


async def test_other_ways_and_other_tenants_have_other_keys() -> None:
    others = [
        replace(WAY, via="issuer:login"),
        replace(WAY, tenant="beta"),
        replace(WAY, via="issuer:log", tenant="in"),
    ]

    assert len({WAY.key_id, *(each.key_id for each in others)}) == 4
    assert replace(WAY, limits=None).key_id == WAY.key_id


async def test_a_key_follows_its_way_once_and_then_its_operator(store: redis.asyncio.Redis, acme: Tenant) -> None:
    keys, delegated = KeyStore(store), DelegatedKeys(store)
    await delegated.identity(WAY)
    wider = replace(WAY, limits=Limits(tokens_per_day=9), scopes=Scopes(models=("tiny",)))

    found = await DelegatedKeys(store).identity(wider)
    assert found is not None
    assert (found.key.limits, found.key.scopes.models) == (Limits(tokens_per_day=9), ("tiny",))

    again = DelegatedKeys(store)
    await again.identity(wider)
    stored = await keys.get(acme, WAY.key_id)
    assert stored is not None
    await keys.update(acme, stored, {"limits": {"tokens_per_day": 7}})
    after = await again.identity(wider)
    assert after is not None
    assert after.key.limits == Limits(tokens_per_day=7)


async def test_no_secret_leads_to_such_a_key(store: redis.asyncio.Redis, acme: Tenant) -> None:
    keys = KeyStore(store)
    await DelegatedKeys(store).identity(WAY)
    other = (await keys.create(acme, {})).secret
    pretended = other.replace(other.split("-")[1], WAY.key_id)

    assert await keys.lookup(pretended) is None


async def test_a_revoked_way_stays_closed(store: redis.asyncio.Redis, acme: Tenant) -> None:
    delegated = DelegatedKeys(store)
    await delegated.identity(WAY)
    await KeyStore(store).revoke(acme, WAY.key_id)

    assert await delegated.identity(WAY) is None
    assert await delegated.identity(replace(WAY, limits=Limits())) is None
    assert await DelegatedKeys(store).identity(WAY) is None


async def test_a_way_leads_to_a_new_tenant_before_the_deleted_ones_keys_are_erased(
    store: redis.asyncio.Redis, acme: Tenant
) -> None:
    delegated, tenants = DelegatedKeys(store), TenantStore(store)
    await delegated.identity(WAY)
    await tenants.delete("acme")
    assert await delegated.identity(WAY) is None

    anew = await tenants.create({"id": "acme"})

    found = await delegated.identity(WAY)
    assert found is not None
    assert found.tenant == anew


async def test_a_way_to_nowhere_makes_nothing(store: redis.asyncio.Redis) -> None:
    assert await DelegatedKeys(store).identity(WAY) is None
    assert not [name async for name in store.scan_iter("fl:apikey:*")]


async def test_a_way_through_a_key_is_open_as_long_as_that_key_may_act(
    store: redis.asyncio.Redis, acme: Tenant
) -> None:
    keys, tenants = KeyStore(store), TenantStore(store)
    front = await tenants.create({"id": "front"})
    acts = {"scopes": {"act_as": ["acme"]}}
    ours, adopted = (await keys.create(front, acts)).key, await keys.adopt(front, "a" * 64, acts)

    async def is_open(acting: ApiKey) -> bool:
        found = await DelegatedKeys(store).identity(Delegation(via=f"{KEY_WAY}{acting.id}", tenant="acme"))
        assert found is not None
        return await keys.is_open(found.key)

    assert [await is_open(each) for each in (ours, adopted)] == [True, True]
    issuers = await DelegatedKeys(store).identity(WAY)
    assert issuers is not None
    assert await keys.is_open(issuers.key)

    await keys.revoke(front, adopted.id)
    assert [await is_open(each) for each in (ours, adopted)] == [True, False]
    await tenants.suspend("front")
    assert not await is_open(ours)
    await tenants.resume("front")
    await keys.update(front, ours, {"scopes": {"act_as": ["beta"]}})
    assert not await is_open(ours)
