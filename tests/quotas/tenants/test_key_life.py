"""How API keys end: expired, revoked, rotated."""

import dataclasses

import pytest
import redis.asyncio

from fairlane.quotas.api_keys import ApiKey, KeyNotFound, KeyStore
from fairlane.quotas.field_checks import FieldError
from fairlane.quotas.packing import key_card
from fairlane.quotas.redis_store import RedisQuotaStore
from fairlane.quotas.scripts import Database, Reply
from fairlane.quotas.store import AccessDenied
from fairlane.quotas.tenants import Tenant, TenantStore, VersionConflict
from tests.support.quotas.house import ask

pytestmark = pytest.mark.anyio
FAR = "2059-01-31T00:00:00Z"


@pytest.fixture
def keys(store: redis.asyncio.Redis) -> KeyStore:
    return KeyStore(store)


@pytest.fixture
async def acme(store: redis.asyncio.Redis) -> Tenant:
    return await TenantStore(store).create({"id": "acme"})


async def expire(store: redis.asyncio.Redis, key: ApiKey) -> None:
    """Let the moment come at which the key expires."""
    await store.hset(f"fl:quota:{{acme}}:key:{key.id}", "expires_ms", "1")
    await store.set(f"fl:quota:{{acme}}:card:key:{key.id}", key_card(key.state, 1, key.limits, "acme"))


async def test_an_expired_key_is_unknown_and_reserves_nothing(
    keys: KeyStore, acme: Tenant, store: redis.asyncio.Redis
) -> None:
    new = await keys.create(acme, {"expires_at": FAR})
    assert await keys.lookup(new.secret) is not None

    await expire(store, new.key)

    assert await keys.lookup(new.secret) is None
    with pytest.raises(AccessDenied, match="expired"):
        await RedisQuotaStore(store).reserve(ask(key_id=new.key.id))


async def test_a_revoked_key_fails_everywhere_at_once(keys: KeyStore, acme: Tenant, store: redis.asyncio.Redis) -> None:
    new = await keys.create(acme, {})

    revoked = await keys.revoke(acme, new.key.id)

    assert revoked.state == "revoked"
    assert await KeyStore(store).lookup(new.secret) is None
    with pytest.raises(AccessDenied, match="revoked"):
        await RedisQuotaStore(store).reserve(ask(key_id=new.key.id))
    assert await keys.revoke(acme, new.key.id) == revoked


async def test_a_suspended_tenants_key_is_recognised_and_says_so(
    keys: KeyStore, acme: Tenant, store: redis.asyncio.Redis
) -> None:
    new = await keys.create(acme, {})
    await TenantStore(store).suspend("acme")

    identity = await keys.lookup(new.secret)

    assert identity is not None
    assert identity.tenant.state == "suspended"


async def test_while_a_rotation_overlaps_both_keys_work(
    keys: KeyStore, acme: Tenant, store: redis.asyncio.Redis
) -> None:
    old = await keys.create(acme, {"name": "ci", "limits": {"tokens_per_day": 9}, "scopes": {"models": ["smol"]}})

    new = await keys.rotate(acme, old.key.id, 3600)
    both = [await keys.lookup(key.secret) is not None for key in (old, new)]
    ends = await keys.get(acme, old.key.id)
    await expire(store, old.key)

    assert both == [True, True]
    assert ends is not None
    assert ends.expires_at == pytest.approx(new.key.created_at + 3600)
    assert (new.key.name, new.key.limits, new.key.scopes) == ("ci", old.key.limits, old.key.scopes)
    assert new.key.id != old.key.id
    assert [await keys.lookup(key.secret) is not None for key in (old, new)] == [False, True]


async def test_a_rotation_without_overlap_ends_the_old_key_at_once(keys: KeyStore, acme: Tenant) -> None:
    old = await keys.create(acme, {})

    new = await keys.rotate(acme, old.key.id)

    assert await keys.lookup(old.secret) is None
    assert await keys.lookup(new.secret) is not None


async def test_a_rotation_never_makes_a_key_live_longer(keys: KeyStore, acme: Tenant) -> None:
    now_ms = await keys._database.now_ms()
    soon = now_ms / 1e3 + 60
    old = await keys.create(acme, {"expires_at": soon})

    new = await keys.rotate(acme, old.key.id, 3600)

    ends = await keys.get(acme, old.key.id)
    assert ends is not None
    assert ends.expires_at == pytest.approx(soon, abs=0.001)
    assert new.key.expires_at == pytest.approx(soon, abs=0.001)


@pytest.mark.parametrize("overlap_s", [-1, True, "1h", float("nan"), 10**9, None])
async def test_an_overlap_that_can_not_be_one_is_refused(keys: KeyStore, acme: Tenant, overlap_s: object) -> None:
    old = await keys.create(acme, {})

    with pytest.raises(FieldError, match="overlap_s"):
        await keys.rotate(acme, old.key.id, overlap_s)

    assert len(await keys.list(acme)) == 1


async def test_a_key_ends_only_in_the_name_of_its_own_tenant(keys: KeyStore, acme: Tenant) -> None:
    new = await keys.create(acme, {})
    relative = dataclasses.replace(acme, id="child")  # of the same root

    with pytest.raises(KeyNotFound):
        await keys.revoke(relative, new.key.id)

    assert await keys.get(relative, new.key.id) is None
    assert await keys.lookup(new.secret) is not None


async def test_a_key_that_ended_can_not_be_rotated(keys: KeyStore, acme: Tenant, store: redis.asyncio.Redis) -> None:
    revoked = await keys.create(acme, {})
    await keys.revoke(acme, revoked.key.id)
    expired = await keys.create(acme, {"expires_at": FAR})
    await expire(store, expired.key)

    for key_id in (revoked.key.id, expired.key.id, "never"):
        with pytest.raises(KeyNotFound):
            await keys.rotate(acme, key_id)


async def test_a_key_that_others_change_meanwhile_is_not_rotated(
    keys: KeyStore, acme: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = await keys.create(acme, {"name": "old"})
    run = Database.run

    async def meanwhile(database: Database, script: str, key: str, *args: str | int | bytes) -> Reply:
        if script == "key_put":
            await keys.update(acme, old.key, {"name": "new"})
        return await run(database, script, key, *args)

    monkeypatch.setattr(Database, "run", meanwhile)
    with pytest.raises(VersionConflict):
        await keys.rotate(acme, old.key.id, 60)
    with pytest.raises(VersionConflict):
        await keys.rotate(acme, old.key.id, 60, version=0)

    assert [(key.name, key.expires_at) for key in await keys.list(acme)] == [("new", None)]
    assert len([name async for name in keys._database._client.scan_iter("fl:apikey:*")]) == 1
