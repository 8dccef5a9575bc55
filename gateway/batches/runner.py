"""Which batches this gateway runs: it takes those that nobody has, under a lease, and hands them back at its end.

Any gateway takes over the batches of one that has died, once their leases have run out. Here files that expire are
swept too, and what processes that are no more have left on disk.
"""

import asyncio
import logging
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress

import msgspec
from starlette.types import ASGIApp

from fairlane.gateway.batches import files
from fairlane.gateway.batches.batch import Batch
from fairlane.gateway.batches.batch_records import BatchRecords, TakenBatch
from fairlane.gateway.batches.files import FileRecords
from fairlane.gateway.batches.line_call import LineCalls
from fairlane.gateway.batches.line_runner import BatchParts
from fairlane.gateway.batches.open_batch import OpenBatch
from fairlane.gateway.batches.storage import Drafts, Storage
from fairlane.gateway.errors import tenant_deleted
from fairlane.gateway.fleet import FleetCache
from fairlane.gateway.http.body_budget import BodyRoom
from fairlane.gateway.observability.metrics import Telemetry
from fairlane.quotas.api_keys import Identity, KeyStore
from fairlane.quotas.idempotency import IdempotencyRecords
from fairlane.quotas.tenants import TenantStore
from fairlane.store.errors import STORE_ERRORS
from fairlane.store.retry import every

log = logging.getLogger(__name__)

LOOK_EVERY_S = 1.0
SWEEP_EVERY_S = 600.0
SWEPT_AT_ONCE = 100
"""That are listed by one call, of a root."""
TURN_S = 60.0
"""After so long a batch leaves its place to a root that has none."""
ELSEWHERE_S = 60.0
"""How long a batch is left to others whose file this gateway does not have."""
TRUSTED_S = 1.0
"""How long a tenant and its key are taken as they were."""
CLOSE_S = 15.0
"""How long batches may take to be handed back."""


class BatchSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What bounds the batches of one gateway."""

    lease_s: float
    most_batches: int
    most_lines: int
    """Of all batches, that are under way."""
    most_batch_lines: int
    """Of one batch."""
    max_answer_bytes: int


class BatchRunner:
    """Runs batches while `running` lasts."""

    def __init__(
        self,
        owner: str,
        settings: BatchSettings,
        *,
        records: BatchRecords,
        files: FileRecords,
        storage: Storage,
        drafts: Drafts,
        tenants: TenantStore,
        keys: KeyStore,
        earlier: IdempotencyRecords,
        fleet_cache: FleetCache,
        telemetry: Telemetry,
        room: BodyRoom,
        is_stopping: Callable[[], bool],
    ) -> None:
        """`owner`: this process's own name, new with each start."""
        self._owner = owner
        self._settings = settings
        self._records = records
        self._files = files
        self._storage = storage
        self._drafts = drafts
        self._tenants, self._keys = tenants, keys
        self._earlier = earlier
        self._fleet_cache = fleet_cache
        self._telemetry = telemetry
        self._room = room
        self._is_stopping = is_stopping
        self._open: dict[asyncio.Task[None], OpenBatch] = {}
        self._elsewhere: dict[str, float] = {}
        """Batches whose files are not in this gateway's storage, and until when they are left to others."""
        self._news = asyncio.Event()
        self._identities: dict[tuple[str, str], tuple[float, Identity | None]] = {}

    @property
    def open_count(self) -> int:
        """Batches that this gateway runs."""
        return len(self._open)

    @property
    def left_to_others(self) -> list[str]:
        """Batches whose files are not in this gateway's storage."""
        return list(self._elsewhere)

    def cancelled(self, batch_id: str) -> None:
        """A batch is to end; where another gateway runs it, that one hears of it with its lease."""
        for batch in self._open.values():
            if batch.id == batch_id:
                batch.is_cancelling = True

    def wake(self) -> None:
        """There is a new batch."""
        self._news.set()

    @asynccontextmanager
    async def running(self, endpoints: Mapping[str, ASGIApp]) -> AsyncIterator[None]:
        """Until the block ends; then batches are handed back. `endpoints`: by path, inside their tenant middleware."""
        calls = LineCalls(
            endpoints,
            self._telemetry,
            max_answer_bytes=self._settings.max_answer_bytes,
            at_once=self._settings.most_lines,
        )
        parts = self._parts(calls)
        tasks = [
            asyncio.create_task(self._look_on(parts), name="batches"),
            asyncio.create_task(every(SWEEP_EVERY_S, "sweeping files", self.sweep), name="file sweep"),
        ]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._close()

    async def sweep(self) -> None:
        """Forget what has expired. Raises StoreUnavailable."""
        await asyncio.to_thread(self._drafts.sweep)
        for root in await self._files.roots():
            await self._sweep(root)
            await self._files.unlist_if_empty(root)

    async def _sweep(self, root: str) -> None:
        """Forget what has expired of a root. What the storage does not delete stays, and keeps nothing else."""
        stuck, fault = 0, ""
        while expired := await self._files.expired(root, SWEPT_AT_ONCE, but_first=stuck):
            for name in expired:
                try:
                    await self._delete(name)
                except OSError as error:
                    stuck, fault = stuck + 1, type(error).__name__
                else:
                    drop = self._files.drop if files.is_id(name) else self._records.drop
                    await drop(root, name)
        if stuck:
            log.warning("%d expired files cannot be deleted from the storage (%s)", stuck, fault)

    async def _delete(self, name: str) -> None:
        """Delete the contents of a file or a batch."""
        if files.is_id(name):
            await self._storage.delete(files.contents(name))
            await self._storage.delete(files.index(name))
        else:
            await self._storage.delete_folder(f"batches/{name}")

    async def _look_on(self, parts: BatchParts) -> None:
        while True:
            try:
                await self._look(parts)
            except STORE_ERRORS as error:
                log.debug("looking for batches waits for the store (%s)", type(error).__name__)
            except Exception:  # a defect in one round must not end all batches
                log.exception("looking for batches failed")
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_EVERY_S):
                    await self._news.wait()
            self._news.clear()

    async def _look(self, parts: BatchParts) -> None:
        """Take on batches that nobody runs, one of each root at a time. Raises StoreUnavailable.

        Roots with the fewest places come first. Where all places are taken, a root that has none gets one more, and
        the root with the most gives one back: its batch goes on from there when its turn comes.
        """
        if self._is_stopping() or not self._settings.most_batches:
            return
        now_s = time.monotonic()
        self._elsewhere = {batch: until_s for batch, until_s in self._elsewhere.items() if until_s > now_s}
        roots = await self._records.roots()
        random.shuffle(roots)  # gateways that look at the same time begin with different ones
        for root in sorted(roots, key=self._places().__getitem__):
            if self._is_stopping() or not self._may_take(root):
                return
            lease_ms = round(self._settings.lease_s * 1e3)
            taken = await self._records.take(root, self._owner, lease_ms, but=self._elsewhere)
            if taken is not None:
                self._begin(taken, parts)
                self._make_room()

    def _places(self) -> Counter[str]:
        """Batches that run here and keep their place, by root."""
        return Counter(batch.root for batch in self._open.values() if not batch.gives_way)

    def _may_take(self, root: str) -> bool:
        """Whether a batch of this root may begin: there is a place, or one that another root is to leave to it."""
        places, most = self._places(), self._settings.most_batches
        if len(self._open) >= 2 * most:  # those that leave their places have not landed yet
            return False
        return places.total() < most or (not places[root] and self._leaving(places) is not None)

    def _make_room(self) -> None:
        """Have a batch leave its place, where more are taken than there are."""
        places = self._places()
        leaving = self._leaving(places) if places.total() > self._settings.most_batches else None
        if leaving is not None:
            leaving.gives_way = True

    def _leaving(self, places: Counter[str]) -> OpenBatch | None:
        """The batch that has to leave first: of the root with the most places the longest here; None if none has to."""
        here = [batch for batch in self._open.values() if not batch.gives_way]
        first = max(here, key=lambda batch: (places[batch.root], -batch.begun_s))
        is_over = places[first.root] > 1 or time.monotonic() - first.begun_s >= TURN_S
        return first if is_over else None

    def _begin(self, taken: TakenBatch, parts: BatchParts) -> None:
        log.info("batch %s is run here (epoch %d)", taken.batch.id, taken.epoch)
        batch = OpenBatch(taken, parts)
        task = asyncio.create_task(batch.run(), name=f"batch {taken.batch.id}")
        self._open[task] = batch
        task.add_done_callback(self._ended)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        batch = self._open.pop(task)
        if batch.is_elsewhere:
            self._elsewhere[batch.id] = time.monotonic() + ELSEWHERE_S
        if not task.cancelled() and (fault := task.exception()) is not None:
            log.error("batch %s cannot go on here (%s)", batch.id, type(fault).__name__, exc_info=fault)
        self._news.set()  # there is room for another

    async def _close(self) -> None:
        if self._open:
            await asyncio.wait(list(self._open), timeout=CLOSE_S)
        for task in self._open:
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    def _parts(self, calls: LineCalls) -> BatchParts:
        settings = self._settings
        return BatchParts(
            owner=self._owner,
            lease_s=settings.lease_s,
            records=self._records,
            files=self._files,
            storage=self._storage,
            drafts=self._drafts,
            calls=calls,
            room=self._room,
            identity=self._identity,
            earlier_runs=self._earlier.runs_of,
            over=self._earlier.over,
            is_stopping=self._is_stopping,
            is_crowded=lambda: self._places().total() >= settings.most_batches,
            share=lambda: max(1, min(settings.most_batch_lines, settings.most_lines // max(1, len(self._open)))),
            unstated_tokens=lambda: self._fleet_cache.longest_context() or 0,
            counted=self._telemetry.batch_lines.add,
            ended=self._telemetry.batches.add,
        )

    async def _identity(self, batch: Batch) -> Identity | None:
        """Whose batch it is, as of the last TRUSTED_S; None: its key is no more. Raises ApiError `tenant_deleted`,
        StoreUnavailable."""
        who, now_s = (batch.account, batch.key_id), time.monotonic()
        seen_s, known = self._identities.get(who, (0.0, None))
        if known is None or now_s - seen_s > TRUSTED_S:
            tenant = await self._tenants.get(batch.tenant)
            if tenant is None or tenant.incarnation != batch.incarnation:
                raise tenant_deleted()
            key = await self._keys.get(tenant, batch.key_id)
            is_open = key is not None and await self._keys.is_open(key)
            known = Identity(tenant, key) if key is not None and is_open else None
            if len(self._identities) > 2 * self._settings.most_batches:
                self._identities.clear()
            self._identities[who] = now_s, known
        return known
