"""One way to set up budgets, whichever store keeps them, under a clock that the test moves."""

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Protocol

import pytest
import redis.asyncio

from fairlane.quotas import keyspace
from fairlane.quotas import packing as packed
from fairlane.quotas.limits import Limits, LimitStatus
from fairlane.quotas.memory_levels import MemoryKey, MemoryTenant
from fairlane.quotas.redis_store import RedisQuotaStore
from fairlane.quotas.store import Ask, Charge, Denied, QuotaStore, Reason
from fairlane.quotas.windows import zone_table
from fairlane.store.cluster import ClusterRedis
from tests.support.quotas.oracle import Oracle

CLOCK_KEY = "test:clock"
CLOCK_LUA = f"local function now_ms() return tonumber(redis.call('GET', '{CLOCK_KEY}')) end"
# A script on a Cluster may read keys of one slot only: there the time is a setting of each node.
CLUSTER_CLOCK = "maxmemory"
CLUSTER_CLOCK_LUA = f"""
local function now_ms() return tonumber(string.match(redis.call('INFO', 'memory'), '{CLUSTER_CLOCK}:(%d+)')) end
"""
START_MS = int(datetime.fromisoformat("2026-11-21T10:00:00Z").timestamp()) * 1000
LEASE_MS = 30_000


def ask(reservation_id: str = "f1", **changes: object) -> Ask:
    """10 prompt tokens and 20 output tokens of tenant `acme`, without a key."""
    fields: dict[str, object] = {
        "reservation_id": reservation_id,
        "root": "acme",
        "tenant": "acme",
        "key_id": "",
        "model": "smol",
        "lane": "latency",
        "prompts": (10,),
        "max_output_tokens": 20,
    }
    return Ask(**(fields | changes))  # type: ignore[arg-type]


def charge(output_tokens: int = 20, prompt_tokens: int = 10, outcome: str = "finished") -> Charge:
    return Charge(prompt_tokens=prompt_tokens, output_tokens=output_tokens, outcome=outcome)


class House(Protocol):
    """A quota store, and what tenant and key stores would have written for it."""

    store: QuotaStore

    async def set_clock(self, now_ms: int) -> None: ...

    async def tenant(
        self,
        limits: Limits,
        *,
        tenant: str = "acme",
        timezone: str = "UTC",
        root: str = "",
        shadow: Iterable[str] = (),
        barred: Reason | None = None,
        parents: Sequence[str] = (),
        limits_by: Mapping[tuple[str, str], Limits] | None = None,
    ) -> None: ...

    async def key(
        self,
        key_id: str,
        limits: Limits,
        *,
        tenant: str = "acme",
        root: str = "",
        expires_ms: int | None = None,
        revoked: bool = False,
    ) -> None: ...


class MemoryHouse:
    """Around the twin."""

    def __init__(self) -> None:
        self.now_ms = START_MS
        self.twin = Oracle(lambda: self.now_ms, lease_ms=LEASE_MS)
        self.store: QuotaStore = self.twin

    async def set_clock(self, now_ms: int) -> None:
        self.now_ms = now_ms

    async def tenant(
        self,
        limits: Limits,
        *,
        tenant: str = "acme",
        timezone: str = "UTC",
        root: str = "",
        shadow: Iterable[str] = (),
        barred: Reason | None = None,
        parents: Sequence[str] = (),
        limits_by: Mapping[tuple[str, str], Limits] | None = None,
    ) -> None:
        record = MemoryTenant(timezone=timezone, shadow=frozenset(shadow), barred=barred, parents=tuple(parents))
        self.twin.put_tenant(root or tenant, tenant, limits, record, limits_by)

    async def key(
        self,
        key_id: str,
        limits: Limits,
        *,
        tenant: str = "acme",
        root: str = "",
        expires_ms: int | None = None,
        revoked: bool = False,
    ) -> None:
        self.twin.put_key(
            root or tenant, key_id, limits, MemoryKey(tenant=tenant, expires_ms=expires_ms, revoked=revoked)
        )


def clock_lua(client: redis.asyncio.Redis) -> str:
    """Return a script's clock that `set_clock` moves, in place of the server's."""
    return CLUSTER_CLOCK_LUA if isinstance(client, ClusterRedis) else CLOCK_LUA


async def set_clock(client: redis.asyncio.Redis, now_ms: int) -> None:
    """Set the clock of all scripts that have `clock_lua`."""
    if isinstance(client, ClusterRedis):
        await client.config_set(CLUSTER_CLOCK, now_ms)
    else:
        await client.set(CLOCK_KEY, now_ms)


class RedisHouse:
    """Around the real one, its clock replaced."""

    def __init__(self, client: redis.asyncio.Redis) -> None:
        self.client = client
        self.store: QuotaStore = RedisQuotaStore(client, lease_ms=LEASE_MS, clock=clock_lua(client))

    async def set_clock(self, now_ms: int) -> None:
        await set_clock(self.client, now_ms)

    async def tenant(
        self,
        limits: Limits,
        *,
        tenant: str = "acme",
        timezone: str = "UTC",
        root: str = "",
        shadow: Iterable[str] = (),
        barred: Reason | None = None,
        parents: Sequence[str] = (),
        limits_by: Mapping[tuple[str, str], Limits] | None = None,
    ) -> None:
        prefix, by = keyspace.of_root(root or tenant), limits_by or {}
        before = await self.client.hget(f"{prefix}tenant:{tenant}", "by")
        for names in json.loads(before) if before is not None else ():
            await self.client.delete(f"{prefix}card:{keyspace.model_lane_level(tenant, *names)}")
        record: dict[str, str | int] = {
            "state": barred or "active",
            "version": 1,
            "zone": json.dumps(zone_table(timezone)),
            "by": json.dumps(list(by)),
            "parents": json.dumps(list(parents)),
            "doc": "{}",
        }
        await self.client.hset(f"{prefix}tenant:{tenant}", items=_flat(record))
        card = packed.tenant_card(barred or "active", limits, list(shadow), list(by), parents)
        await self.client.set(f"{prefix}card:{keyspace.tenant_level(tenant)}", card)
        for names, those in by.items():
            level = keyspace.model_lane_level(tenant, *names)
            await self.client.set(f"{prefix}card:{level}", packed.model_lane_card(those, list(shadow)))

    async def key(
        self,
        key_id: str,
        limits: Limits,
        *,
        tenant: str = "acme",
        root: str = "",
        expires_ms: int | None = None,
        revoked: bool = False,
    ) -> None:
        prefix = keyspace.of_root(root or tenant)
        record: dict[str, str | int] = {
            "state": "revoked" if revoked else "active",
            "tenant": tenant,
            "expires_ms": "" if expires_ms is None else expires_ms,
        }
        await self.client.hset(f"{prefix}key:{key_id}", items=_flat(record))
        card = packed.key_card("revoked" if revoked else "active", expires_ms, limits, tenant)
        await self.client.set(f"{prefix}card:{keyspace.key_level(key_id)}", card)


async def forget_minute(client: redis.asyncio.Redis, tenant: str) -> None:
    """As if a minute had passed since the tenant's last token."""
    level = f"{keyspace.of_root(tenant)}figures:{keyspace.tenant_level(tenant)}"
    zeros = bytes(8 * (packed.DAY_SUM - packed.AT))
    await client.setrange(level, 8 * packed.AT, zeros)


async def one(house: House, name: str, key_id: str | None = None) -> LimitStatus:
    """The tenant's (or with `key_id` the key's) status of one limit."""
    found = await house.store.statuses("acme", "acme", key_id)
    scope = "tenant" if key_id is None else "key"
    return next(status for status in found if status.name == name and status.scope == scope)


async def refused(house: House, reservation_id: str = "late", **changes: object) -> Denied:
    with pytest.raises(Denied) as caught:
        await house.store.reserve(ask(reservation_id, **changes))
    return caught.value


def _flat(mapping: Mapping[str, str | int]) -> list[str | int]:
    return [item for pair in mapping.items() for item in pair]
