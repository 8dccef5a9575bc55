"""What gateways that share a store keep up together: which roots to look after, and which gateways live.

A root has to be looked after for reservations that may lapse there, and entries that the audit log awaits. It is
enlisted before it has any of them, and forgotten a day after it last was, once it has none.
"""

import time

from fairlane.quotas import keyspace
from fairlane.quotas.scripts import Database, Redis

ROOTS_PER_LOOK = 256
"""Roots that one call of `some` gives; the next goes on from there."""
ENLIST_EVERY_S = 3_600.0
QUIET_AFTER_MS = 86_400_000


class ActiveRoots:
    """The list of roots to look after, as one process keeps it up. Every call may raise StoreUnavailable."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._enlisted: dict[str, float] = {}
        """When this process did so, on its monotonic clock."""
        self._next = 0

    async def enlist(self, root: str) -> None:
        """Add a root, or note that it is still used."""
        await self._database.call("ZADD", keyspace.ROOTS, await self._database.now_ms(), root)
        self._enlisted[root] = time.monotonic()

    def is_enlisted(self, root: str) -> bool:
        """This process has done so lately: nobody forgets it for a long while."""
        return time.monotonic() - self._enlisted.get(root, -ENLIST_EVERY_S) < ENLIST_EVERY_S

    async def some(self) -> list[str]:
        """The next roots of a round over all of them."""
        last = self._next + ROOTS_PER_LOOK - 1
        roots: list[str] = await self._database.call("ZRANGE", keyspace.ROOTS, self._next, last)
        self._next = last + 1 if len(roots) == ROOTS_PER_LOOK else 0
        return roots

    async def quiet(self) -> set[str]:
        """Some that were enlisted so long ago that no process counts on it."""
        some = ("LIMIT", 0, ROOTS_PER_LOOK)
        return set(await self._database.call("ZRANGEBYSCORE", keyspace.ROOTS, "-inf", await self._quiet_ms(), *some))

    async def forget(self, root: str) -> None:
        """Remove a quiet root that holds nothing; one that was enlisted meanwhile stays."""
        await self._database.run("unlist", keyspace.ROOTS, root, await self._quiet_ms())

    async def _quiet_ms(self) -> int:
        return await self._database.now_ms() - QUIET_AFTER_MS


PRESENT_MS = 10_000
"""A gateway that was silent for so long is none."""


class GatewayPresence:
    """One gateway among those that ask one store. Every call may raise StoreUnavailable."""

    def __init__(self, client: Redis, gateway_id: str) -> None:
        self._database = Database(client)
        self._gateway_id = gateway_id

    async def beat(self) -> tuple[int, int]:
        """Say that this one lives; how many do, and the store's clock in ms."""
        now_ms = await self._database.now_ms()
        await self._database.call("ZADD", keyspace.GATEWAYS, now_ms, self._gateway_id)
        await self._database.call("ZREMRANGEBYSCORE", keyspace.GATEWAYS, "-inf", now_ms - PRESENT_MS)
        return int(await self._database.call("ZCARD", keyspace.GATEWAYS)), now_ms

    async def leave(self) -> None:
        await self._database.call("ZREM", keyspace.GATEWAYS, self._gateway_id)
