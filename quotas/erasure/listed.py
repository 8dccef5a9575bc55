"""The durable list of deleted tenants whose data must be erased, in the slots of their roots."""

import json
from collections.abc import Sequence
from dataclasses import dataclass

from fairlane.quotas import keyspace
from fairlane.quotas.scripts import Database, Redis
from fairlane.quotas.tenants import enlist_erasure

# Writes for a deleted tenant stop within this time: gateways end its requests within seconds, requests and uploads
# end at their deadlines, and the leases of a killed gateway lapse within ten minutes.
SETTLED_S = 900.0
# Keys removed in one call, and tenants of a root handled in one round.
AT_ONCE = 64
LEASE_MS = 120_000


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletedTenant:
    """A deleted tenant whose data must be erased."""

    root: str
    account: str
    # By the store's clock; 0 if an older version deleted it and only its names are known.
    deleted_ms: int = 0
    created_s: float = 0.0
    share_group: str = ""
    # Pairs of model and lane that have their own limits.
    by: Sequence[Sequence[str]] = ()
    # Set if an operator asked to erase the ledger too.
    with_ledger: bool = False

    @property
    def id(self) -> str:
        return keyspace.tenant_of(self.account)

    def is_settled(self, now_ms: int) -> bool:
        return now_ms - self.deleted_ms >= SETTLED_S * 1e3


class ErasureList:
    """The deleted tenants whose data must be erased. Every call may raise StoreUnavailable."""

    def __init__(self, client: Redis) -> None:
        self._database = Database(client)

    async def now_ms(self) -> int:
        return await self._database.now_ms()

    async def is_led_by(self, gateway_id: str) -> bool:
        """Return whether this gateway runs the erasure rounds: the first to ask does, while it asks again within the
        lease. Two at the same time do no harm."""
        if await self._database.call("SET", keyspace.ERASER, gateway_id, "NX", "PX", LEASE_MS):
            return True
        if await self._database.call("GET", keyspace.ERASER) != gateway_id:
            return False
        await self._database.call("PEXPIRE", keyspace.ERASER, LEASE_MS)
        return True

    async def roots(self) -> Sequence[str]:
        found: list[str] = await self._database.call("ZRANGE", keyspace.ERASING, 0, -1)
        return found

    async def due(self, root: str, now_ms: int) -> list[DeletedTenant]:
        some = ("LIMIT", 0, AT_ONCE)
        accounts = await self._database.call("ZRANGEBYSCORE", _list(root), "-inf", now_ms, *some)
        return [await self.get(root, account) for account in accounts]

    async def get(self, root: str, account: str) -> DeletedTenant:
        fields = ("deleted_ms", "created_s", "share_group", "by", "with_ledger")
        known = await self._database.call("HMGET", _details(root, account), *fields)
        deleted_ms, created_s, share_group, by, with_ledger = known
        return DeletedTenant(
            root=root,
            account=account,
            deleted_ms=int(deleted_ms or 0),
            created_s=float(created_s or 0.0),
            share_group=share_group or "",
            by=json.loads(by or "[]") or (),
            with_ledger=with_ledger == "1",
        )

    async def add(self, root: str, account: str, now_ms: int) -> None:
        await enlist_erasure(self._database, root)
        past = f"{keyspace.of_root(root)}past:{keyspace.tenant_of(account)}"
        deleted_ms = await self._database.call("ZSCORE", past, account)
        details = _details(root, account)
        await self._database.call("HSETNX", details, "deleted_ms", int(float(deleted_ms or now_ms)))
        await self._database.call("HSET", details, "with_ledger", 1)
        await self._database.call("ZADD", _list(root), now_ms, account)

    async def postpone(self, gone: DeletedTenant, until_ms: int) -> None:
        await self._database.call("ZADD", _list(gone.root), "XX", until_ms, gone.account)

    async def remove(self, gone: DeletedTenant) -> None:
        await self._database.call("DEL", _details(gone.root, gone.account))
        await self._database.call("ZREM", _list(gone.root), gone.account)

    async def unlist_if_empty(self, root: str) -> None:
        if await self._database.call("ZCARD", _list(root)):
            return
        await self._database.call("ZREM", keyspace.ERASING, root)
        if await self._database.call("ZCARD", _list(root)):  # a tenant was deleted in between
            await enlist_erasure(self._database, root)


def _list(root: str) -> str:
    return f"{keyspace.of_root(root)}gone"


def _details(root: str, account: str) -> str:
    return f"{keyspace.of_root(root)}gone:{account}"
