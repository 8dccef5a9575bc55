"""Builds the erasure of one gateway."""

from collections.abc import Callable, Iterable

from redis.asyncio import Redis

from fairlane.gateway.batches.batch_records import BatchRecords
from fairlane.gateway.batches.erasure import BatchErasure
from fairlane.gateway.batches.files import FileRecords
from fairlane.gateway.batches.storage import Storage
from fairlane.gateway.control.erasure.rewrite import StoreRewrite
from fairlane.gateway.control.erasure.rounds import Erasure
from fairlane.gateway.control.erasure.steps import CachedPrompts, ErasableQueue, ErasureSteps
from fairlane.gateway.insight.fleet_metrics.metrics_store import FleetMetricsStore
from fairlane.gateway.insight.request_records.storage import RecordStore
from fairlane.quotas.erasure.budgets import BudgetErasure
from fairlane.quotas.erasure.ledger import LedgerErasure
from fairlane.quotas.erasure.listed import ErasureList


def build_erasure(
    client: Redis,
    gateway_id: str,
    *,
    batches: BatchRecords,
    files: FileRecords,
    storage: Storage,
    records: RecordStore,
    fleet_metrics: FleetMetricsStore,
    cached_prompts: CachedPrompts,
    queues: Callable[[], Iterable[ErasableQueue]],
    is_store_embedded: bool,
) -> Erasure:
    """Build the erasure. `client`: of the store of budgets, files and batches. `queues`: of all models."""
    steps = ErasureSteps(
        budgets=BudgetErasure(client),
        ledger=LedgerErasure(client),
        batches=BatchErasure(client, batches, files, storage),
        records=records,
        queues=queues,
        cached_prompts=cached_prompts,
        fleet_metrics=lambda gone: fleet_metrics.erase(gone.id, gone.created_s, gone.deleted_ms / 1e3),
    )
    rewrite = StoreRewrite(client, is_embedded=is_store_embedded)
    return Erasure(ErasureList(client), steps, gateway_id, rewrite=rewrite.begin)
