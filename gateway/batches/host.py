"""The gateway that runs batches: its limits, and the services that every running batch uses."""

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from fairlane.gateway.batches.batch import Batch
from fairlane.gateway.batches.batch_records import BatchRecords
from fairlane.gateway.batches.files import FileRecords
from fairlane.gateway.batches.line_call import LineCalls
from fairlane.gateway.batches.storage import Drafts, Storage
from fairlane.gateway.errors import tenant_deleted
from fairlane.gateway.fleet import FleetCache
from fairlane.gateway.http.body_budget import BodyRoom
from fairlane.gateway.insight.telemetry.metrics import Telemetry
from fairlane.quotas.api_keys import Identity, KeyStore
from fairlane.quotas.idempotency import IdempotencyRecords
from fairlane.quotas.tenants import TenantStore

TRUSTED_S = 1.0


class RunningBatch(Protocol):
    """A batch that the gateway runs; `open_batch.OpenBatch` is one."""

    # True: release the slot to a batch of another tenant at the next opportunity.
    gives_way: bool


@dataclass(slots=True, kw_only=True, eq=False)
class BatchHost:
    """The gateway as its running batches see it."""

    # A name for this process, new at each start.
    owner: str
    lease_s: float
    most_batches: int
    # Maximum of concurrent lines, over all batches and per batch.
    most_lines: int
    most_batch_lines: int
    max_answer_bytes: int
    records: BatchRecords
    files: FileRecords
    storage: Storage
    drafts: Drafts
    tenants: TenantStore
    keys: KeyStore
    earlier: IdempotencyRecords
    fleet_cache: FleetCache
    telemetry: Telemetry
    room: BodyRoom
    is_stopping: Callable[[], bool]
    calls: LineCalls = field(init=False)
    # The runner's batches.
    open_batches: Mapping[asyncio.Task[None], RunningBatch] = field(default_factory=dict)
    _identities: dict[tuple[str, str], tuple[float, Identity]] = field(default_factory=dict)

    @property
    def is_crowded(self) -> bool:
        return sum(not batch.gives_way for batch in self.open_batches.values()) >= self.most_batches

    @property
    def share(self) -> int:
        of_all = self.most_lines // max(1, len(self.open_batches))
        return max(1, min(self.most_batch_lines, of_all))

    @property
    def unstated_tokens(self) -> int:
        return self.fleet_cache.longest_context or 0

    async def identity(self, batch: Batch) -> Identity | None:
        """Return the tenant and key of a batch; None: the key no longer exists. Raise ApiError `tenant_deleted`."""
        who, now_s = (batch.account, batch.key_id), time.monotonic()
        seen_s, known = self._identities.get(who, (0.0, None))
        if known is not None and now_s - seen_s <= TRUSTED_S:
            return known
        tenant = await self.tenants.get(batch.tenant)
        if tenant is None or tenant.incarnation != batch.incarnation:
            raise tenant_deleted()
        key = await self.keys.get(tenant, batch.key_id)
        if key is None or not await self.keys.is_open(key):
            self._identities.pop(who, None)
            return None
        if len(self._identities) > 2 * self.most_batches:
            self._identities.clear()
        self._identities[who] = now_s, Identity(tenant, key)
        return self._identities[who][1]
