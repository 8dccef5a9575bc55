"""Retention of the ledger: days older than is asked become part of their month's sums, so that nothing grows for ever.

Any number of gateways may do it at once: each step is one script, which does nothing where somebody else was first.
"""

from datetime import UTC, date, datetime, timedelta

from quotas import keyspace
from quotas.database import Database, Redis
from quotas.ledger import everyone

FIRST_LOOK_DAYS = 500
"""How far back the first look at a tenant goes."""
DAYS_PER_CALL = 31
_DAY_MS = 86_400_000
_CLAIM_S = 3_600
_REST_S = 72_000


class RollUp:
    """Rolls up the ledgers of all tenants, of deleted ones too. Every call may raise StoreUnavailable."""

    def __init__(self, client: Redis, *, days: int, months: int) -> None:
        """`days`: that are kept one by one, with their entries; `months`: how long sums are kept after that."""
        self._database = Database(client)
        self._days = days
        self._months = months

    async def daily(self) -> None:
        """Once a day, by whichever gateway is the first to ask: roll up what is due.

        Who dies on the way is followed by another within an hour.
        """
        if not await self._database.call("SET", keyspace.ROLL_UP, "running", "NX", "EX", _CLAIM_S):
            return
        today = datetime.fromtimestamp(await self._database.now_ms() / 1e3, UTC).date()
        await self.all(today)
        await self._database.call("SET", keyspace.ROLL_UP, "done", "EX", _REST_S)

    async def all(self, today: date) -> None:
        """Roll up every tenant's days that are too old on this day."""
        async for tenant, root in everyone(self._database):
            await self.tenant(root, tenant, today)

    async def tenant(self, root: str, tenant: str, today: date) -> None:
        """Roll up one tenant's days that are too old on this day."""
        prefix, last = keyspace.of_root(root), today - timedelta(days=self._days + 1)
        marker = await self._database.call("GET", f"{prefix}rolled:{tenant}")
        rolled = last - timedelta(days=FIRST_LOOK_DAYS) if marker is None else date.fromisoformat(marker)
        day = rolled + timedelta(days=1)
        before_ms = (last - date(1970, 1, 1)).days * _DAY_MS
        while day <= last:
            days = [day + timedelta(days=n) for n in range(min(DAYS_PER_CALL, (last - day).days + 1))]
            until, kept_ms = days[-1].isoformat(), self._months * 31 * _DAY_MS
            named = [each.isoformat() for each in days]
            if not await self._database.run(
                "usage_roll", prefix, tenant, marker or "", until, kept_ms, before_ms, *named
            ):
                return
            marker, day = until, days[-1] + timedelta(days=1)
