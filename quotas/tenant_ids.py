"""Whose each tenant's id is: the index of all tenants says which root organisation has it, and is the one arbiter.

    claim ──> put in the root's slot ──> the id is that root's for good, since the ledger stays
      └ a creation that was cut off here has the index's entry and no tenant: another root bars it, then takes the id

A claim has a number. To bar it is a note in the slot of the root that has it, where its put would find it: of a put
and a bar the first one holds, so a creation that only seemed dead can make nothing any more.
"""

from typing import Literal

from fairlane.quotas import keyspace
from fairlane.quotas.scripts import Database

Taken = Literal["taken", "kept"]
"""By a tenant of another root; `kept`: by one that was deleted, for its ledger."""


class TenantIds:
    """The index of tenants. Every call may raise StoreUnavailable."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def root(self, tenant_id: str) -> str | None:
        """Root of a tenant, of a deleted one too: where its ledger stands. None where nobody has claimed the id."""
        entries = await self._database.call(
            "ZRANGEBYLEX", keyspace.TENANTS, f"[{tenant_id} ", f"({tenant_id} \x7f", "LIMIT", 0, 1
        )
        return entries[0].split(" ")[1] if entries else None

    async def claim(self, tenant_id: str, root: str) -> int | Taken:
        """Have the id for a root: the number of the claim, under which its tenant may be put; or why it cannot be."""
        barred: int | Literal[""] = ""
        while True:  # again only where somebody else was given it meanwhile
            owner, number = await self._database.run("tenant_claim", keyspace.TENANTS, tenant_id, root, barred)
            if owner == root:
                return int(number)
            state = await self._database.run("tenant_bar", keyspace.of_root(owner), tenant_id, number)
            if state:
                return "kept" if state == "deleted" else "taken"
            barred = number

    async def some(self, after: str | None, limit: int) -> list[tuple[str, str]]:
        """At most `limit` ids with their roots, from the one after `after`; not each has a tenant."""
        start = "-" if after is None else f"({after} \x7f"
        entries = await self._database.call("ZRANGEBYLEX", keyspace.TENANTS, start, "+", "LIMIT", 0, limit)
        return [(tenant_id, root) for tenant_id, root in (entry.split(" ") for entry in entries)]
