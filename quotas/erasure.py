"""Erasure of deleted tenants: the durable list of them, and their data in this package.

A pass may be interrupted and repeated: every step erases whatever it finds. The last pass runs SETTLED_S after the
deletion and finds writes that were in flight then. The ledger stays until an operator asks for its erasure."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta

from fairlane.quotas import idempotency, keyspace
from fairlane.quotas.audit import Audit
from fairlane.quotas.ledger import FIRST_LOOK_DAYS
from fairlane.quotas.scripts import Database, Redis
from fairlane.quotas.tenants import TenantIds, enlist_erasure
from fairlane.store.bounds import chunks

# Writes for a deleted tenant stop within this time: gateways end its requests within seconds, requests and uploads
# end at their deadlines, and the leases of a killed gateway lapse within ten minutes.
SETTLED_S = 900.0
# Keys removed in one call, and tenants of a root handled in one round.
AT_ONCE = 64
# How far back monthly sums may exist.
_MONTHS = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletedTenant:
    """A deleted tenant whose data must be erased."""

    root: str
    account: str
    deleted_ms: int = 0
    created_s: float = 0.0
    share_group: str = ""
    # Pairs of model and lane that have their own limits.
    by: Sequence[Sequence[str]] = ()
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


class TenantErasure:
    """Erases a deleted tenant's data in this package. Every call may raise StoreUnavailable, and may be repeated; most
    return how many objects they erased."""

    def __init__(self, client: Redis) -> None:
        self._database = Database(client)
        self._audit = Audit(client)
        self._ids = TenantIds(self._database)

    async def erase_keys(self, gone: DeletedTenant) -> int:
        index, count = f"{keyspace.of_root(gone.root)}keys:{gone.account}", 0
        while ids := await self._database.call("ZRANGE", index, 0, AT_ONCE - 1):
            for key_id in ids:
                await self._erase_key(gone.root, key_id)
            await self._database.run("keys_drop", keyspace.of_root(gone.root), gone.account, *ids)
            count += len(ids)
        return count

    async def _erase_key(self, root: str, key_id: str) -> None:
        pointer = keyspace.api_key(key_id)
        imported, way = await self._database.call("HMGET", pointer, "imported", "way")
        if imported is not None:
            await self._database.run("delete_if", imported, "id", key_id)
        if way is not None:
            await self._database.run("delete_if", keyspace.api_key(way), "key", key_id)
        await self._database.call("DEL", pointer)
        await idempotency.forget_all(self._database, root, key_id)

    async def erase_responses(self, gone: DeletedTenant) -> int:
        prefix = keyspace.of_root(gone.root)
        await self._database.call("DEL", f"{prefix}seal:{gone.account}")
        count: int = await self._database.call("ZCARD", f"{prefix}responses:{gone.account}")
        while await self._database.run("responses_drop", prefix, gone.account, AT_ONCE):
            pass
        return count

    async def erase_entries(self, gone: DeletedTenant) -> int:
        prefix, account = keyspace.of_root(gone.root), gone.account
        stream = f"{prefix}ledger:{account}"
        count = int(await self._database.call("XLEN", stream))
        await self._remove([stream, *(f"{prefix}{kind}:{account}" for kind in ("exported", "rolled", "rolling"))])
        await self._remove([f"{prefix}usage:{account}:{span}" for span in await self._spans(gone)])
        return count

    async def erase_figures(self, gone: DeletedTenant) -> int:
        prefix = keyspace.of_root(gone.root)
        levels = [keyspace.tenant_level(gone.account)]
        levels += [keyspace.model_lane_level(gone.account, model, lane) for model, lane in gone.by]
        months = [span for span in await self._spans(gone) if len(span) == len("2026-11")]
        for level in levels:
            named = [f"{prefix}{kind}:{level}" for kind in ("card", "figures", "minute", "paused")]
            await self._remove([*named, *(f"{prefix}spent:{level}:{month}" for month in months)])
        return len(levels)

    async def redact_audit(self, gone: DeletedTenant) -> int:
        return await self._audit.redact(gone.id, gone.deleted_ms)

    async def forget(self, gone: DeletedTenant) -> bool:
        """Forget the account, and its id unless another tenant has it; return whether the id was forgotten."""
        root, tenant_id = gone.root, gone.id
        claim = await self._ids.claim_of(tenant_id)
        if not await self._database.run("tenant_forget", keyspace.of_root(root), gone.account, claim):
            return False
        await self._database.run("tenant_unclaim", keyspace.TENANTS, tenant_id, root, claim)
        return True

    async def _spans(self, gone: DeletedTenant) -> list[str]:
        today = datetime.fromtimestamp(await self._database.now_ms() / 1e3, UTC).date() + timedelta(days=1)
        first = today - timedelta(days=31 * _MONTHS)
        if gone.created_s:
            first = max(first, datetime.fromtimestamp(gone.created_s, UTC).date() - timedelta(days=1))
        days = min((today - first).days, 2 * FIRST_LOOK_DAYS)
        found = [(today - timedelta(days=number)).isoformat() for number in range(days + 1)]
        return found + _months(first, today)

    async def _remove(self, names: Sequence[str]) -> None:
        for some in chunks(names):
            await self._database.call("UNLINK", *some)


def _months(first: date, last: date) -> list[str]:
    month, found = first.replace(day=1), list[str]()
    while month <= last:
        found.append(month.isoformat()[:7])
        month = (month + timedelta(days=31)).replace(day=1)
    return found


def _list(root: str) -> str:
    return f"{keyspace.of_root(root)}gone"


def _details(root: str, account: str) -> str:
    return f"{keyspace.of_root(root)}gone:{account}"
