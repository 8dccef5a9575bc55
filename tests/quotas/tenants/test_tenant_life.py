"""What becomes of a tenant's keys, requests and budget when it is changed, suspended or deleted."""

import asyncio

import pytest
import redis.asyncio

from fairlane.common.seal import Seal
from fairlane.quotas.api_keys import KeyNotFound, KeyStore
from fairlane.quotas.erasure import AT_ONCE, ErasureList, TenantErasure
from fairlane.quotas.idempotency import EndedRun, IdempotencyRecords, Name, OwnedRun
from fairlane.quotas.ledger import Ledger
from fairlane.quotas.redis_store import RedisQuotaStore
from fairlane.quotas.store import AccessDenied, Denied
from fairlane.quotas.tenants import TenantNotFound, TenantStore
from tests.support.quotas.house import ask, charge
from tests.support.store import topology
from tests.support.store.watched import Killed, Killer, WatchedRedis

pytestmark = pytest.mark.anyio


@pytest.fixture
def tenants(store: redis.asyncio.Redis) -> TenantStore:
    return TenantStore(store)


async def test_a_change_holds_for_the_next_request(tenants: TenantStore, store: redis.asyncio.Redis) -> None:
    quotas = RedisQuotaStore(store)
    await tenants.create({"id": "acme"})
    await quotas.reserve(ask("f1"))

    await tenants.update("acme", {"limits": {"tokens_per_day": 40}})
    with pytest.raises(Denied):
        await quotas.reserve(ask("f2"))
    await tenants.update("acme", {"shadow": ["tokens_per_day"]})

    assert (await quotas.reserve(ask("f2"))).shadowed == ("tokens_per_day",)


async def test_a_limit_that_was_taken_away_binds_no_more(tenants: TenantStore, store: redis.asyncio.Redis) -> None:
    quotas = RedisQuotaStore(store)
    await tenants.create({"id": "acme", "limits": {"tokens_per_day": 40}, "shadow": ["tokens_per_day"]})
    await quotas.reserve(ask("f1"))

    await tenants.update("acme", {"limits": {"tokens_per_day": None, "concurrent_requests": 9}})

    assert [status.name for status in (await quotas.reserve(ask("f2"))).statuses] == ["concurrent_requests"]


async def test_a_suspended_tenant_is_turned_away_until_it_is_resumed(
    tenants: TenantStore, store: redis.asyncio.Redis
) -> None:
    quotas = RedisQuotaStore(store)
    await tenants.create({"id": "acme"})

    suspended = await tenants.suspend("acme")
    with pytest.raises(AccessDenied, match="suspended"):
        await quotas.reserve(ask())
    again = await tenants.suspend("acme")
    resumed = await tenants.resume("acme")

    assert (suspended.state, again.state, resumed.state) == ("suspended", "suspended", "active")
    assert await quotas.reserve(ask())


async def test_a_suspended_tenant_stays_so_when_it_is_changed(tenants: TenantStore) -> None:
    await tenants.create({"id": "acme"})
    await tenants.suspend("acme")

    assert (await tenants.update("acme", {"name": "x"})).state == "suspended"


async def test_deleting_ends_the_tenant_and_its_keys_at_once(tenants: TenantStore, store: redis.asyncio.Redis) -> None:
    quotas, keys = RedisQuotaStore(store), KeyStore(store)
    tenant = await tenants.create({"id": "acme", "limits": {"tokens_per_day": 10**6}})
    made = [await keys.create(tenant, {"name": f"k{n}"}) for n in range(3)]
    await quotas.reserve(ask("f1", key_id=made[0].key.id))

    await tenants.delete("acme")

    assert await tenants.get("acme") is None
    assert await tenants.list() == []
    assert await quotas.statuses("acme", "acme") == []
    assert [await keys.lookup(new.secret) for new in made] == [None, None, None]
    with pytest.raises(AccessDenied, match="deleted"):
        await quotas.reserve(ask("f2", key_id=made[0].key.id))
    assert (await quotas.settle("acme", "f1", charge())).first
    with pytest.raises(TenantNotFound):
        await tenants.delete("acme")


async def test_a_new_tenant_of_a_deleted_ones_id_has_neither_its_keys_nor_its_usage(
    tenants: TenantStore, store: redis.asyncio.Redis
) -> None:
    quotas, keys = RedisQuotaStore(store), KeyStore(store)
    tenant = await tenants.create({"id": "acme", "limits": {"tokens_per_month": 1000}})
    old = await keys.create(tenant, {})
    await quotas.reserve(ask())
    await quotas.settle("acme", "f1", charge())
    await tenants.delete("acme")

    anew = await tenants.create({"id": "acme", "limits": {"tokens_per_month": 1000}})

    assert anew.version > tenant.version
    assert await keys.lookup(old.secret) is None
    assert await keys.list(anew) == []
    new = await keys.create(anew, {})
    assert await keys.list(anew, limit=1) == [new.key]
    assert anew.incarnation
    assert (await quotas.statuses("acme", anew.account))[0].used == 0
    assert await Ledger(store).entries("acme", anew.account) == []
    assert [entry.output_tokens for entry in await Ledger(store).entries("acme", tenant.account)] == [20]
    assert await tenants.accounts("acme", "acme") == [anew.account, tenant.account]


async def test_where_a_deleted_tenants_ledger_stands_is_still_known(tenants: TenantStore) -> None:
    await tenants.create({"id": "acme"})
    await tenants.delete("acme")

    assert await tenants.root("acme") == "acme"
    assert await tenants.root("nobody") is None


async def test_answers_that_were_kept_go_with_their_tenant_and_nobody_elses(
    tenants: TenantStore, store: redis.asyncio.Redis
) -> None:
    kept, said = (
        IdempotencyRecords(store, lease_ms=30_000, most_bytes=10**6),
        EndedRun(status=200, headers=(), body=b"yes"),
    )
    keys, seal = KeyStore(store), Seal("fl-k-secret")
    for name in ("acme", "zeta"):
        made = await keys.create(await tenants.create({"id": name}), {"name": "k"})
        for number in range(120):
            record = Name(name, made.key.id, f"d{number}")
            assert isinstance(await kept.begin(record, "owner", "print", seal), OwnedRun)
            assert number > 110 or await kept.finish(record, "owner", said, seal)

    await tenants.delete("acme")
    (gone,) = await ErasureList(store).due("acme", 10**15)
    assert await TenantErasure(store).erase_keys(gone) == 1

    left = {str(key) for key in await store.keys("*")}
    assert not [key for key in left if "{acme}" in key and any(word in key for word in ("idem", "answers", "kept"))]
    assert len([key for key in left if "{zeta}:idem:" in key]) == 120
    assert not await kept.finish(Name("acme", made.key.id, "d119"), "owner", said, seal)


async def commands_of(store: redis.asyncio.Redis) -> int:
    """How many commands the store has executed so far, those of scripts too."""
    return topology.commands(await store.info("commandstats"))


async def test_a_tenant_of_many_keys_is_deleted_in_one_step_and_its_keys_in_bounded_ones(
    tenants: TenantStore, store_url: str, store: redis.asyncio.Redis
) -> None:
    topology.one_master(store_url)  # each of several loads a script once more
    keys, many, taken = KeyStore(store), 10 * AT_ONCE, dict[str, int]()
    tenant = await tenants.create({"id": "acme"})
    for _ in range(many // AT_ONCE):
        made = await asyncio.gather(*(keys.create(tenant, {}) for _ in range(AT_ONCE)))
    await keys.create(await tenants.create({"id": "zeta"}), {})
    for name in ("acme", "zeta"):
        before = await commands_of(store)
        await tenants.delete(name)
        taken[name] = await commands_of(store) - before
    assert taken["acme"] == taken["zeta"]

    key = made[0].key
    assert await keys.lookup(made[0].secret) is None
    assert not await keys.has_key("acme", key.id)
    with pytest.raises(KeyNotFound):
        await keys.revoke(tenant, key.id)
    with pytest.raises(KeyNotFound):
        await keys.update(tenant, key, {"name": "again"})
    (gone,) = await ErasureList(store).due("acme", 10**15)
    async with WatchedRedis(store, Killer(3)) as dying:
        with pytest.raises(Killed):
            await TenantErasure(dying).erase_keys(gone)
    assert len(await store.keys("*{acme}:key:*")) == many - 3 * AT_ONCE

    assert await TenantErasure(store).erase_keys(gone) == many - 3 * AT_ONCE

    for pattern in ("*{acme}:key:*", "*{acme}:keys:*", "*{acme}:card:key:*"):
        assert await store.keys(pattern) == []
