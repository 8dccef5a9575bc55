"""Which gateways share the budgets now: each says every few seconds that it lives."""

from fairlane.quotas import keyspace
from fairlane.quotas.scripts import Database, Redis

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
        """It ends in order."""
        await self._database.call("ZREM", keyspace.GATEWAYS, self._gateway_id)
