"""State that gateways sharing a store have together: active roots, live gateways, the key of pseudonyms in traces, and
what is left to export.

A root is listed before it has leases or audit entries, and dropped a day after the last listing, once it has none."""

import time
from dataclasses import dataclass
from typing import Generic, TypeVar

from fairlane.quotas import keyspace
from fairlane.quotas.scripts import Database, Redis

ROOTS_PER_LOOK = 256
ENLIST_EVERY_S = 3_600.0
QUIET_AFTER_MS = 86_400_000


class ActiveRoots:
    """The list of roots that need attention, for one process. Every call may raise StoreUnavailable."""

    def __init__(self, database: Database) -> None:
        self._database = database
        # When this process enlisted each root, on its monotonic clock.
        self._enlisted: dict[str, float] = {}
        self._next = 0

    async def enlist(self, root: str) -> None:
        await self._database.call("ZADD", keyspace.ROOTS, await self._database.now_ms(), root)
        self._enlisted[root] = time.monotonic()

    def is_enlisted(self, root: str) -> bool:
        """Return whether this process enlisted the root recently enough that no gateway will drop it soon."""
        return time.monotonic() - self._enlisted.get(root, -ENLIST_EVERY_S) < ENLIST_EVERY_S

    async def next_batch(self) -> list[str]:
        last = self._next + ROOTS_PER_LOOK - 1
        roots: list[str] = await self._database.call("ZRANGE", keyspace.ROOTS, self._next, last)
        self._next = last + 1 if len(roots) == ROOTS_PER_LOOK else 0
        return roots

    async def idle(self) -> set[str]:
        some = ("LIMIT", 0, ROOTS_PER_LOOK)
        return set(await self._database.call("ZRANGEBYSCORE", keyspace.ROOTS, "-inf", await self._quiet_ms(), *some))

    async def forget(self, root: str) -> None:
        await self._database.run("unlist", keyspace.ROOTS, root, await self._quiet_ms())

    async def _quiet_ms(self) -> int:
        return await self._database.now_ms() - QUIET_AFTER_MS


PRESENT_MS = 10_000


class GatewayPresence:
    """One gateway among those that share a store. Every call may raise StoreUnavailable."""

    def __init__(self, client: Redis, gateway_id: str) -> None:
        self._database = Database(client)
        self._gateway_id = gateway_id

    async def beat(self) -> tuple[int, int]:
        """Record that this gateway is alive; return the number of live gateways, and the store's clock in ms."""
        now_ms = await self._database.now_ms()
        await self._database.call("ZADD", keyspace.GATEWAYS, now_ms, self._gateway_id)
        await self._database.call("ZREMRANGEBYSCORE", keyspace.GATEWAYS, "-inf", now_ms - PRESENT_MS)
        return int(await self._database.call("ZCARD", keyspace.GATEWAYS)), now_ms

    async def count(self) -> int:
        """Record that this gateway is alive; return the number of live gateways."""
        return (await self.beat())[0]

    async def leave(self) -> None:
        await self._database.call("ZREM", keyspace.GATEWAYS, self._gateway_id)


async def pseudonym_key(client: Redis) -> bytes:
    """Return the key of the pseudonyms in request traces, drawing it if there is none. Raises StoreUnavailable."""
    return bytes.fromhex(await Database(client).secret(keyspace.PSEUDONYMS))


Entry = TypeVar("Entry")


@dataclass(frozen=True, slots=True)
class Unexported(Generic[Entry]):
    """The next entries to export of one account, or of the audit log."""

    after: str
    # How many entries the ledger had before these, since its beginning.
    number: int
    # Entries trimmed before they were exported.
    lost: int
    entries: list[Entry]
