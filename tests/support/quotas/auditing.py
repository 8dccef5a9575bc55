"""Changes that are told, and a store that fails in the midst of them."""

import itertools
from collections.abc import Awaitable, Callable

import pytest
import redis.asyncio

from fairlane.quotas import audit, keyspace
from fairlane.quotas.audit import Audit, Note
from fairlane.quotas.redis_store import RedisQuotaStore
from fairlane.quotas.scripts import Database, Reply
from fairlane.quotas.tenants import TenantStore

OUTBOX = f"{keyspace.of_root('acme')}audit"


def note(target: str = "acme", **changes: object) -> Note:
    return Note(actor="admin", action="tenant.update", target=target, changes=changes)


async def rename(store: redis.asyncio.Redis, name: str = "new") -> None:
    await TenantStore(store).update("acme", {"name": name}, note=note(name=name))


async def told(store: redis.asyncio.Redis) -> list[object]:
    """What the log says of `name`, the oldest first."""
    return [entry.changes["name"] for entry in reversed(await Audit(store).list())]


async def upkeep(store: redis.asyncio.Redis) -> None:
    """Another gateway's round."""
    await RedisQuotaStore(store).expired(10)


def failing(monkeypatch: pytest.MonkeyPatch, error: BaseException, *, left: int = 0, only: str = "") -> None:
    """After so many calls the store answers no more: no call, or only this script or command."""
    count = itertools.count()

    def patch(asked: Callable[..., Awaitable[Reply]]) -> Callable[..., Awaitable[Reply]]:
        async def asks(database: Database, what: str, *rest: object) -> Reply:
            if only in ("", what) and next(count) >= left:
                raise error
            return await asked(database, what, *rest)

        return asks

    monkeypatch.setattr(audit, "VALID_MS", 0)  # no test waits for rights that an absent store might have given
    monkeypatch.setattr(Database, "run", patch(Database.run))
    monkeypatch.setattr(Database, "call", patch(Database.call))
