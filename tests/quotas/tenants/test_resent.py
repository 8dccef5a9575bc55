"""Each script of this package, executed twice because its first reply was lost."""

import dataclasses
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import date
from typing import Any

import pytest
import redis.asyncio

from fairlane.cli.embedded_store import EmbeddedStore
from fairlane.quotas import keyspace
from fairlane.quotas.api_keys import ApiKey, KeyExists, KeyNotFound, KeyStore, NewKey
from fairlane.quotas.audit import REDACTED_AT_ONCE, Audit, Note
from fairlane.quotas.erasure import DeletedTenant, TenantErasure
from fairlane.quotas.escrow.transfers import Ending, Rights, Transfer
from fairlane.quotas.idempotency import EndedRun, IdempotencyRecords, LineCharge, Name
from fairlane.quotas.ledger import Ledger, RollUp
from fairlane.quotas.limits import Limits, Prices
from fairlane.quotas.prices import PriceList, PriceRow, PriceStore
from fairlane.quotas.redis_store import RedisQuotaStore
from fairlane.quotas.responses import KeptResponses
from fairlane.quotas.scripts import FUNCTIONS, PARTS, Database
from fairlane.quotas.store import Need
from fairlane.quotas.tenants import Tenant, TenantIds, TenantStore
from fairlane.quotas.upkeep import QUIET_AFTER_MS, ActiveRoots
from tests.support.quotas.house import (
    CLOCK_LUA,
    CLUSTER_CLOCK_LUA,
    LEASE_MS,
    START_MS,
    RedisHouse,
    ask,
    charge,
    clock_lua,
)
from tests.support.store.resent import ResendingRedis, resending

pytestmark = pytest.mark.anyio
NAME = Name("acme", "k1", "d1")
NOTE = Note(actor="admin", action="test", target="acme", changes={})


@dataclass(frozen=True, slots=True)
class Two:
    """A store through two clients: one sends each call twice."""

    twice: ResendingRedis
    plain: redis.asyncio.Redis

    @property
    def house(self) -> RedisHouse:
        return RedisHouse(self.plain)

    @property
    def budgets(self) -> RedisQuotaStore:
        """Whose calls are sent twice."""
        return RedisQuotaStore(self.twice, lease_ms=LEASE_MS, clock=clock_lua(self.plain))

    async def tenant(self) -> Tenant:
        return await TenantStore(self.plain).create({"id": "acme"})

    async def key(self) -> tuple[Tenant, NewKey]:
        tenant = await self.tenant()
        return tenant, await KeyStore(self.plain).create(tenant, {})

    async def works(self, key: NewKey) -> bool:
        return await KeyStore(self.plain).lookup(key.secret) is not None

    def records(self, client: redis.asyncio.Redis) -> IdempotencyRecords:
        return IdempotencyRecords(client, lease_ms=LEASE_MS, most_bytes=1_000)

    def responses(self, client: redis.asyncio.Redis) -> KeptResponses:
        return KeptResponses(client, ttl_ms=60_000, most_bytes=1_000, most_response_bytes=1_000)


async def reserve(two: Two) -> None:
    granted = await two.budgets.reserve(ask())
    assert granted.statuses[0].reserved == 30


async def extend(two: Two) -> None:
    """Part of what it asks for is there: the repeat neither takes more nor makes it wait for a minute with room."""
    await two.house.tenant(Limits(output_tokens_per_minute=100))
    await two.house.store.reserve(ask("other", max_output_tokens=86))
    await two.house.store.reserve(ask(max_output_tokens=40, quantum=10))
    need = Need(published=10, known=10, most=1_000, unit=1, quantum=64, prompt_tokens=10, stuck=True)
    extended = await two.budgets.extend("acme", "f1", need)
    assert (extended.granted_tokens, extended.paused) == (14, False)


async def settle(two: Two) -> None:
    await two.house.store.reserve(ask())
    settled = await two.budgets.settle("acme", "f1", charge())
    assert settled.first
    assert settled.statuses is not None
    assert settled.statuses[0].used == 30
    assert not (await two.budgets.settle("acme", "f1", charge())).first


async def book(two: Two) -> None:
    """The reservation stands, so its request goes on."""
    assert await two.budgets.book(ask())
    await two.house.store.settle("acme", "f1", charge())
    assert not await two.budgets.book(ask())


async def statuses(two: Two) -> None:
    await two.house.store.reserve(ask())
    await two.budgets.statuses("acme", "acme")


async def renew(two: Two) -> None:
    await two.house.store.reserve(ask())
    assert await two.budgets.renew("acme", ["f1", "lost"]) == {"lost"}


async def expired(two: Two) -> None:
    await two.house.store.reserve(ask())
    for passed_ms in range(0, 2 * LEASE_MS, LEASE_MS // 3):
        await two.house.set_clock(START_MS + passed_ms)
        await two.house.store.expired(0)
        await two.plain.hset(keyspace.REAPER, mapping={"seen_ms": START_MS + passed_ms, "grace_ms": 0})
    assert [lapsed.reservation_id for lapsed in await two.budgets.expired(10)] == ["f1"]


async def unlist(two: Two) -> None:
    await two.plain.zadd(keyspace.ROOTS, {"acme": START_MS - QUIET_AFTER_MS})
    await ActiveRoots(Database(two.twice)).forget("acme")
    assert not await two.plain.exists(keyspace.ROOTS)


async def tenant_claim(two: Two) -> None:
    """Also of an id whose first owner made nothing of it."""
    ids = TenantIds(Database(two.twice))
    assert await ids.claim("new", "new") == 0
    assert await ids.claim("new", "other") == 1


async def tenant_read(two: Two) -> None:
    await two.tenant()
    assert [tenant.id for tenant in await TenantStore(two.twice).list()] == ["acme"]


async def tenant_put(two: Two) -> None:
    """A new tenant is no conflict with itself; a change counts once, whatever version it expects."""
    tenants = TenantStore(two.twice)
    assert (await tenants.create({"id": "acme"}, lambda _: NOTE)).version == 1
    assert (await tenants.update("acme", {"weight": 2}, note=NOTE)).version == 2
    assert (await tenants.update("acme", {"weight": 3}, version=2, note=NOTE)).version == 3
    assert len(await Audit(two.plain).list()) == 3


async def tenant_delete(two: Two) -> None:
    tenant, key = await two.key()
    await TenantStore(two.twice).delete("acme", note=NOTE)
    assert not await two.works(key)
    assert await TenantStore(two.plain).get(tenant.id) is None


async def tenant_accounts(two: Two) -> None:
    await two.tenant()
    assert await TenantStore(two.twice).accounts("acme", "acme") == ["acme"]


async def tenant_forget(two: Two) -> None:
    """The id is anybody's then."""
    await two.tenant()
    await TenantStore(two.plain).delete("acme")
    await TenantErasure(two.twice).forget(DeletedTenant(root="acme", account="acme"))
    assert await TenantStore(two.plain).root("acme") is None
    assert (await TenantStore(two.plain).create({"id": "acme"})).incarnation == ""


async def audit_redact(two: Two) -> None:
    """In several parts; no entry is lost or stands twice."""
    audit, many = Audit(two.plain), 2 * REDACTED_AT_ONCE + 1
    for number in range(many):
        target = "acme" if number % 2 else f"other{number}"
        await audit.append(Note(actor="admin", action="test", target=target, changes={"number": number}))
    assert await Audit(two.twice).redact("acme", 10**15) == many // 2
    entries = await audit.list(many + 1)
    assert len(entries) == many
    assert {entry.target == "acme" for entry in entries if not entry.changes} == {True}
    assert {entry.target == "acme" for entry in entries if entry.changes} == {False}


async def keys_read(two: Two) -> None:
    tenant, key = await two.key()
    assert [each.id for each in await KeyStore(two.twice).list(tenant)] == [key.key.id]


async def key_put(two: Two) -> None:
    """A new key works; a rotated one is replaced by one that works."""
    tenant, keys = await two.tenant(), KeyStore(two.twice)
    created = await keys.create(tenant, {"name": "first"}, lambda _: NOTE)
    assert await two.works(created)
    rotated = await keys.rotate(tenant, created.key.id, 0, note=lambda _: NOTE)
    assert (await two.works(created), await two.works(rotated)) == (False, True)
    assert len(await Audit(two.plain).list()) == 2


async def import_claim(two: Two) -> None:
    """Of a secret that nobody holds, of one whose holder was never written, and of one that its holder has."""
    tenant, digest = await two.tenant(), "a" * 64
    for _ in range(2):
        with pytest.raises(KeyNotFound):
            await KeyStore(two.twice).adopt(dataclasses.replace(tenant, incarnation="gone"), digest, {})
    await KeyStore(two.twice)._claim(await _imported(two, digest), ApiKey(id="k0", tenant="acme", created_at=0), "acme")
    adopted = await KeyStore(two.twice).adopt(tenant, digest, {})
    with pytest.raises(KeyExists):
        await KeyStore(two.twice).adopt(tenant, digest, {})
    assert [key.id for key in await KeyStore(two.plain).list(tenant)] == [adopted.id]


async def _imported(two: Two, digest: str) -> str:
    return f"fl:imported:{await KeyStore(two.plain)._hash(digest)}"


async def key_change(two: Two) -> None:
    tenant, key = await two.key()
    assert (await KeyStore(two.twice).update(tenant, key.key, {"name": "new"}, NOTE)).version == 1


async def keys_drop(two: Two) -> None:
    """Those of another tenant of the root stay."""
    _, key = await two.key()
    child = await TenantStore(two.plain).create({"id": "child", "parent": "acme"})
    gone = await KeyStore(two.plain).create(child, {})
    await TenantStore(two.plain).delete("child")
    assert await TenantErasure(two.twice).erase_keys(DeletedTenant(root="acme", account="child")) == 1
    assert await two.works(key)
    assert not await two.plain.keys(f"*{gone.key.id}*")


async def key_end(two: Two) -> None:
    tenant, key = await two.key()
    assert (await KeyStore(two.twice).revoke(tenant, key.key.id, NOTE)).state == "revoked"
    assert len(await Audit(two.plain).list()) == 1


async def prices_put(two: Two) -> None:
    prices, rows = PriceStore(two.twice), PriceList(rows=(PriceRow(prices=Prices(input=3)),))
    assert (await prices.put(rows, note=NOTE)).version == 1
    assert (await prices.put(rows, version=1)).version == 2


async def audit_write(two: Two) -> None:
    await Audit(two.twice).append(NOTE)
    assert len(await Audit(two.plain).list()) == 1


async def identity(two: Two) -> None:
    _, key = await two.key()
    found = await KeyStore(two.twice).lookup(key.secret)
    assert found is not None
    assert found.key.last_used_at is not None


async def usage(two: Two) -> None:
    await two.house.store.reserve(ask())
    await two.house.store.settle("acme", "f1", charge())
    report = await Ledger(two.twice).usage("acme", "acme", date(2026, 11, 21), date(2026, 11, 21))
    assert report.total.requests == 1


async def usage_roll(two: Two) -> None:
    """In several calls for the days, and for the sums of one of them: each is made once."""
    await two.house.store.reserve(ask())
    await two.house.store.settle("acme", "f1", charge())
    (day,) = await two.plain.keys("*usage:acme:*")
    (sums,) = (await two.plain.hgetall(day)).values()
    await two.plain.hset(day, mapping={f"latency\ttiny\tk{number}": sums for number in range(600)})
    await RollUp(two.twice, days=31, months=60).tenant("acme", "acme", date(2027, 1, 31))
    report = await Ledger(two.plain).usage("acme", "acme", date(2026, 11, 1), date(2026, 11, 30))
    assert report.total.requests == 601
    assert await two.plain.get(f"{keyspace.of_root('acme')}rolled:acme") == b"2026-12-30"


async def ledger_unexported(two: Two) -> None:
    await two.house.store.reserve(ask())
    await two.house.store.settle("acme", "f1", charge())
    found = await Ledger(two.twice).unexported("acme", "acme", 10)
    assert (len(found.entries), found.lost) == (1, 0)


async def ledger_exported(two: Two) -> None:
    await two.house.store.reserve(ask())
    await two.house.store.settle("acme", "f1", charge())
    exports = Ledger(two.twice)
    await exports.exported("acme", "acme", "0-0", "5-0", 1)
    await exports.exported("acme", "acme", "0-0", "4-0", 2)  # of a plan that is left behind
    assert (await exports.unexported("acme", "acme", 10)).after == "5-0"


async def export_write(two: Two) -> None:
    exports = Ledger(two.twice)
    assert [await exports.write_export_state(*seen) for seen in (("", "one"), ("one", "two"), ("one", "three"))] == [
        True,
        True,
        False,
    ]


async def idem_begin(two: Two) -> None:
    await two.records(two.twice).begin(NAME, "owner", "print", None)


async def idem_renew(two: Two) -> None:
    await two.records(two.plain).begin(NAME, "owner", "print", None)
    assert await two.records(two.twice).renew(NAME, "owner")


async def idem_finish(two: Two) -> None:
    await two.records(two.plain).begin(NAME, "owner", "print", None)
    assert await two.records(two.twice).finish(NAME, "owner", EndedRun(status=200, headers=(), body=None), None)


async def idem_release(two: Two) -> None:
    await two.records(two.plain).begin(NAME, "owner", "print", None)
    assert await two.records(two.twice).release(NAME, "owner")


async def idem_over(two: Two) -> None:
    await two.plain.hset(f"{keyspace.of_root('acme')}paid:k1:d1:print", "input", "1")
    await two.records(two.twice).expire_runs("acme", ["k1:d1:print"])


async def idem_charged(two: Two) -> None:
    await two.plain.hset(f"{keyspace.of_root('acme')}paid:batch_1:0", "input", "1")
    assert await two.records(two.twice).charges("acme", ["batch_1:0"]) == [LineCharge(1, 0, 0, is_open=False)]


async def response_keep(two: Two) -> None:
    await two.responses(two.plain).keep("acme", "acme", "before", b"content")
    assert await two.responses(two.twice).keep("acme", "acme", "r1", b"content")


async def response_drop(two: Two) -> None:
    await two.responses(two.plain).keep("acme", "acme", "r1", b"content")
    assert await two.responses(two.twice).forget("acme", "acme", "r1")
    assert not await two.responses(two.twice).forget("acme", "acme", "r1")


async def responses_drop(two: Two) -> None:
    await two.responses(two.plain).keep("acme", "acme", "r1", b"content")
    await TenantErasure(two.twice).erase_responses(DeletedTenant(root="acme", account="acme"))


async def transfer(two: Two) -> None:
    """Also the first call of a pool, and one that ends requests."""
    await two.house.tenant(Limits(tokens_per_day=10_000))
    fields: dict[str, Any] = {
        "pool": "a" * 16,
        "root": "acme",
        "account": "acme",
        "key_id": "",
        "model": "smol",
        "lane": "latency",
    }
    first = await two.budgets.transfer(Transfer(call=1, first=0, wanted=Rights(10, 100, 200), **fields))
    assert first.rights == Rights(10, 100, 200)
    entries = (Ending(ask=ask("a" * 16 + "00000000"), charge=charge()),)
    last = await two.budgets.transfer(Transfer(call=2, first=1, wanted=Rights(), entries=entries, **fields))
    assert (last.statuses[0].used, last.statuses[0].reserved) == (30, 0)


async def escrow_reap(two: Two) -> None:
    await two.house.tenant(Limits(tokens_per_day=10_000))
    fields: dict[str, Any] = {
        "pool": "a" * 16,
        "root": "acme",
        "account": "acme",
        "key_id": "",
        "model": "smol",
        "lane": "latency",
    }
    await two.house.store.expired(9)
    await two.budgets.transfer(Transfer(call=1, first=0, wanted=Rights(4, 40, 80), **fields))
    for part in range(1, 4):
        await two.house.set_clock(START_MS + part * LEASE_MS // 2)
        await two.budgets.expired(9)
    assert len(await two.budgets.expired(9)) == 4


CALLS: Mapping[str, Callable[[Two], Awaitable[None]]] = {
    call.__name__: call
    for call in (
        *(reserve, extend, settle, book, statuses, renew, expired, unlist, usage, usage_roll, transfer, escrow_reap),
        *(tenant_accounts, tenant_forget, audit_redact),
        *(ledger_unexported, ledger_exported, export_write),
        *(tenant_claim, tenant_read, tenant_put, tenant_delete, key_put, key_change, key_end, identity, import_claim),
        *(keys_read, keys_drop),
        *(prices_put, audit_write, response_keep, response_drop, responses_drop),
        *(idem_begin, idem_renew, idem_finish, idem_release, idem_over, idem_charged),
    )
} | {
    "watch": expired,
    "tenant_bar": tenant_claim,
    "key_bar": import_claim,
    "delete_if": import_claim,
    "tenant_unclaim": tenant_forget,
    "ledger_trim": usage_roll,
}


def test_every_script_is_resent_here() -> None:
    assert PARTS.keys() | FUNCTIONS.keys() == CALLS.keys()


@pytest.mark.parametrize("script", CALLS)
async def test_a_call_whose_reply_was_lost_is_answered_alike_and_counts_once(
    script: str, valkey: EmbeddedStore
) -> None:
    fixed: Any = None
    databases = [Database(fixed, clock=clock) for clock in (None, CLOCK_LUA, CLUSTER_CLOCK_LUA)]
    scripts = [{**each._scripts, **each._library.scripts} for each in databases]
    async with resending(valkey.url, *scripts) as (resender, client):
        two = Two(resender, client)
        await two.house.set_clock(START_MS)
        if script in (
            *FUNCTIONS,
            "renew",
            "expired",
            "watch",
            "usage",
            "usage_roll",
            "ledger_trim",
            "ledger_unexported",
            "ledger_exported",
        ):
            await two.house.tenant(Limits(tokens_per_day=1_000))

        await CALLS[script](two)

        resender.check(script)
