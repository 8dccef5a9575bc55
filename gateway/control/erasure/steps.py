"""One pass over one deleted tenant: the data to erase, and the order."""

import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field

from redis.asyncio import Redis

from fairlane.gateway.batches.batch_records import BatchRecords
from fairlane.gateway.batches.erasure import BatchErasure
from fairlane.gateway.batches.files import FileRecords
from fairlane.gateway.batches.storage import Storage
from fairlane.gateway.insight.fleet_metrics.metrics_store import FleetMetricsStore
from fairlane.gateway.insight.request_records.storage import RecordStore
from fairlane.quotas.erasure import DeletedTenant, TenantErasure
from fairlane.scheduler.queue.redis_queue import RedisQueue
from fairlane.scheduler.queue.registry import RedisRegistry
from fairlane.store.errors import STORE_ERRORS

log = logging.getLogger(__name__)

# Entries of the queues' streams younger than this are kept; every live gateway and worker has read all older ones.
ENTRIES_KEPT_MS = 300_000


@dataclass(slots=True)
class ErasurePass:
    """One pass over a tenant, and its result."""

    gone: DeletedTenant
    # By the store's clock.
    began_ms: int
    erased: Counter[str] = field(default_factory=Counter)
    # Batches that are being cancelled; a later pass erases them.
    open_batches: int = 0
    # Steps that failed in the store or the storage; a later pass repeats them.
    failures: int = 0

    @property
    def is_whole(self) -> bool:
        return not (self.open_batches or self.failures)

    @property
    def is_settled(self) -> bool:
        return self.gone.is_settled(self.began_ms)

    async def make(self, name: str, step: Awaitable[int | tuple[int, int]]) -> int | None:
        try:
            erased = await step
        except (*STORE_ERRORS, OSError) as error:
            log.info("erasure step failed and will be repeated: step=%s error=%s", name, type(error).__name__)
        except Exception:  # a bug in one step must not stop the other steps or tenants
            log.exception("erasure step failed: step=%s", name)
        else:
            count, left = erased if isinstance(erased, tuple) else (erased, 0)
            self.erased[name] += count
            return left
        self.failures += 1
        return None


class ErasureSteps:
    """Erases one tenant's data. A step that fails is counted, and the next steps still run."""

    def __init__(
        self,
        client: Redis,
        *,
        batches: BatchRecords,
        files: FileRecords,
        storage: Storage,
        records: RecordStore,
        fleet_metrics: FleetMetricsStore,
        workers: RedisRegistry,
        queues: Callable[[], Iterable[RedisQueue]],
    ) -> None:
        self._budgets = TenantErasure(client)
        self._batches = BatchErasure(client, batches, files, storage)
        self._records = records
        self._fleet_metrics = fleet_metrics
        self._workers = workers
        self._queues = queues

    async def run(self, gone: DeletedTenant, now_ms: int) -> ErasurePass:
        done = ErasurePass(gone, now_ms)
        open_batches = await done.make("batches", self._batches.batches(gone, is_settled=done.is_settled))
        done.open_batches = open_batches or 0
        if open_batches == 0:  # open batches still read and write files
            await done.make("files", self._batches.files(gone))
        await done.make("keys", self._budgets.erase_keys(gone))
        await done.make("responses", self._budgets.erase_responses(gone))
        await done.make("workers_told", self._workers.forget_prompts(gone.id, gone.created_s, gone.share_group))
        await done.make("jobs", self._jobs(gone, now_ms if done.is_settled else 0))
        await done.make("request_records", self._records.erase(gone.account))
        await done.make("figures", self._fleet_metrics.erase(gone.id, gone.created_s, gone.deleted_ms / 1e3))
        if gone.with_ledger:
            await done.make("ledger_entries", self._budgets.erase_entries(gone))
            await done.make("audit_entries", self._budgets.redact_audit(gone))
            if done.is_settled and done.is_whole:
                await done.make("limits", self._budgets.erase_figures(gone))
                await done.make("ids", self._budgets.forget(gone))
        return done

    async def _jobs(self, gone: DeletedTenant, settled_ms: int) -> int:
        until_ms = settled_ms and settled_ms - ENTRIES_KEPT_MS
        queues = list(self._queues())
        return sum([await queue.erase(gone.id, gone.deleted_ms, streams_until_ms=until_ms) for queue in queues])
