"""One pass over one deleted tenant: what is erased, in which order."""

import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from fairlane.gateway.batches.erasure import BatchErasure
from fairlane.gateway.insight.request_records.storage import RecordStore
from fairlane.quotas.erasure.budgets import BudgetErasure
from fairlane.quotas.erasure.ledger import LedgerErasure
from fairlane.quotas.erasure.listed import DeletedTenant
from fairlane.store.errors import STORE_ERRORS

log = logging.getLogger(__name__)

# Queue events younger than this are kept; every live gateway has read all older ones.
EVENTS_KEPT_MS = 300_000


class ErasableQueue(Protocol):
    """The queue of one model; `scheduler.queue.redis_queue.RedisQueue` implements it."""

    async def erase(self, tenant: str, deleted_ms: int, *, events_until_ms: int = 0) -> int:
        """Delete the remaining records of a deleted tenant's jobs; return their number."""


class CachedPrompts(Protocol):
    """The prefix caches of the workers; `scheduler.queue.registry.RedisRegistry` implements it."""

    async def forget_prompts(self, tenant: str, tenant_since: float, share_group: str) -> int:
        """Ask every worker to evict the tenant's cached prompts; return the number of workers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PassResult:
    """The result of one pass."""

    # Erased objects by kind.
    erased: Counter[str]
    # Batches that are being cancelled; a later pass erases them.
    open_batches: int = 0
    # Steps that failed in the store or the storage; a later pass repeats them.
    failures: int = 0

    @property
    def is_whole(self) -> bool:
        return not (self.open_batches or self.failures)


class ErasureSteps:
    """Erases one tenant's data. A step that fails is counted, and the next steps still run."""

    def __init__(
        self,
        *,
        budgets: BudgetErasure,
        ledger: LedgerErasure,
        batches: BatchErasure,
        records: RecordStore,
        queues: Callable[[], Iterable[ErasableQueue]],
        cached_prompts: CachedPrompts,
        fleet_metrics: Callable[[DeletedTenant], Awaitable[int]],
    ) -> None:
        """`fleet_metrics` erases a tenant's name from the history of metrics."""
        self._budgets = budgets
        self._ledger = ledger
        self._batches = batches
        self._records = records
        self._queues = queues
        self._cached_prompts = cached_prompts
        self._fleet_metrics = fleet_metrics

    async def run(self, gone: DeletedTenant, now_ms: int) -> PassResult:
        is_settled, done = gone.is_settled(now_ms), _Pass()
        open_batches = await done.make("batches", self._batches.batches(gone, is_settled=is_settled))
        if open_batches == 0:  # open batches still read and write files
            await done.make("files", self._batches.files(gone))
        await done.make("keys", self._budgets.erase_keys(gone))
        await done.make("responses", self._budgets.erase_responses(gone))
        await done.make("workers_told", self._forget_prompts(gone))
        await done.make("jobs", self._jobs(gone, now_ms if is_settled else 0))
        await done.make("request_records", self._records.erase(gone.account))
        await done.make("figures", self._fleet_metrics(gone))
        if gone.with_ledger:
            await done.make("ledger_entries", self._ledger.erase_entries(gone))
            await done.make("audit_entries", self._ledger.redact_audit(gone))
            if is_settled and not (open_batches or done.failures):
                await done.make("limits", self._ledger.erase_figures(gone))
                await done.make("ids", self._ledger.forget(gone))
        return PassResult(erased=done.erased, open_batches=open_batches or 0, failures=done.failures)

    async def _forget_prompts(self, gone: DeletedTenant) -> int:
        return await self._cached_prompts.forget_prompts(gone.id, gone.created_s, gone.share_group)

    async def _jobs(self, gone: DeletedTenant, settled_ms: int) -> int:
        events_until_ms = settled_ms and settled_ms - EVENTS_KEPT_MS
        queues = list(self._queues())
        return sum([await queue.erase(gone.id, gone.deleted_ms, events_until_ms=events_until_ms) for queue in queues])


class _Pass:
    def __init__(self) -> None:
        self.erased = Counter[str]()
        self.failures = 0

    async def make(self, name: str, step: Awaitable[int | tuple[int, int]]) -> int | None:
        """Run a step and count what it erased. Return what is left, 0 if nothing, or None if the step failed."""
        try:
            erased = await step
        except (*STORE_ERRORS, OSError) as error:
            log.info("erasure step failed and will be repeated: step=%s error=%s", name, type(error).__name__)
        except Exception:  # a defect in one step must not stop the other steps or tenants
            log.exception("erasure step failed: step=%s", name)
        else:
            count, left = erased if isinstance(erased, tuple) else (erased, 0)
            self.erased[name] += count
            return left
        self.failures += 1
        return None
