"""Erasure of the files and batches of deleted tenants, from the storage and from the store."""

from dataclasses import dataclass

from redis.asyncio import Redis

from fairlane.gateway.batches import files, keys
from fairlane.gateway.batches.batch import OPEN
from fairlane.gateway.batches.batch_records import BatchRecords
from fairlane.gateway.batches.files import FileRecords
from fairlane.gateway.batches.storage import Storage
from fairlane.quotas.erasure import AT_ONCE, DeletedTenant
from fairlane.store.scripts import call, texts


@dataclass(frozen=True, slots=True)
class BatchErasure:
    """Erases batches and files. Every call may raise StoreUnavailable or OSError, and may be repeated."""

    _client: Redis
    _records: BatchRecords
    _files: FileRecords
    _storage: Storage

    async def batches(self, gone: DeletedTenant, *, is_settled: bool) -> tuple[int, int]:
        """Erase ended batches and cancel open ones, which a later pass erases; with `is_settled`, erase those too.

        Return how many were erased, and how many are still open."""
        erased = still_open = 0
        listed = f"{keys.of_root(gone.root)}batches:{gone.account}"
        while ids := texts(await call(self._client, "ZRANGE", listed, still_open, still_open + AT_ONCE - 1)):
            for batch_id in ids:
                known = await self._records.get(gone.root, gone.account, batch_id)
                if known is not None and known.batch.status in OPEN and not is_settled:
                    await self._records.cancel(gone.root, batch_id)
                    still_open += 1
                    continue
                await self._storage.delete_folder(f"batches/{batch_id}")
                await self._records.drop(gone.root, batch_id, gone.account)
                erased += 1
        return erased, still_open

    async def files(self, gone: DeletedTenant) -> int:
        """Erase all files, including unfinished uploads; return their number. No batch of the tenant may be open."""
        erased, prefix = 0, keys.of_root(gone.root)
        listed = f"{prefix}files:{gone.account}"
        while ids := texts(await call(self._client, "ZRANGE", listed, 0, AT_ONCE - 1)):
            for file_id in ids:
                await files.delete(self._storage, self._files, gone.root, file_id)
            await call(self._client, "ZREM", listed, *ids)
            erased += len(ids)
        await call(self._client, "DEL", f"{prefix}bytes:{gone.account}")
        return erased
