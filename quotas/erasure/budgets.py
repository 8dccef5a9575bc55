"""Erases a deleted tenant's keys and responses, but not its ledger."""

from fairlane.quotas import keyspace
from fairlane.quotas.erasure.listed import AT_ONCE, DeletedTenant
from fairlane.quotas.idempotency import forget_all
from fairlane.quotas.responses import forget_responses, forget_seal
from fairlane.quotas.scripts import Database, Redis


class BudgetErasure:
    """Erases a deleted tenant's keys and responses, but not its ledger. Every call may raise StoreUnavailable."""

    def __init__(self, client: Redis) -> None:
        self._database = Database(client)

    async def erase_keys(self, gone: DeletedTenant) -> int:
        index, count = f"{keyspace.of_root(gone.root)}keys:{gone.account}", 0
        while ids := await self._database.call("ZRANGE", index, 0, AT_ONCE - 1):
            for key_id in ids:
                await self._key(gone.root, key_id)
            await self._database.run("keys_drop", keyspace.of_root(gone.root), gone.account, *ids)
            count += len(ids)
        return count

    async def erase_responses(self, gone: DeletedTenant) -> int:
        await forget_seal(self._database, gone.root, gone.account)
        return await forget_responses(self._database, gone.root, gone.account)

    async def _key(self, root: str, key_id: str) -> None:
        pointer = keyspace.api_key(key_id)
        imported, way = await self._database.call("HMGET", pointer, "imported", "way")
        if imported is not None:
            await self._database.run("delete_if", imported, "id", key_id)
        if way is not None:
            await self._database.run("delete_if", keyspace.api_key(way), "key", key_id)
        await self._database.call("DEL", pointer)
        await forget_all(self._database, root, key_id)
