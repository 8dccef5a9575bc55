"""The batches that this gateway runs: it takes free ones under a lease, and releases them on shutdown.

The runner also sweeps expired files, and drafts that dead processes have left on disk."""

import asyncio
import logging
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from fairlane.gateway.batches import files
from fairlane.gateway.batches.batch_records import TakenBatch
from fairlane.gateway.batches.host import BatchHost
from fairlane.gateway.batches.line_call import LineCalls
from fairlane.gateway.batches.open_batch import OpenBatch
from fairlane.gateway.pipeline.context import Endpoint
from fairlane.store.retry import every

log = logging.getLogger(__name__)

LOOK_EVERY_S = 1.0
SWEEP_EVERY_S = 600.0
SWEPT_AT_ONCE = 100
# Seconds after which a batch releases its slot to a root that has none.
TURN_S = 60.0
ELSEWHERE_S = 60.0
CLOSE_S = 15.0


class BatchRunner:
    """Runs batches while the context `running` is open."""

    def __init__(self, host: BatchHost) -> None:
        self._host = host
        host.open_batches = self._open = dict[asyncio.Task[None], OpenBatch]()
        self._elsewhere: dict[str, float] = {}
        self._news = asyncio.Event()

    @property
    def open_count(self) -> int:
        return len(self._open)

    def cancelled(self, batch_id: str) -> None:
        """Cancel a batch if it runs here; another owner is informed when it renews its lease."""
        for batch in self._open.values():
            if batch.id == batch_id:
                batch.is_cancelling = True

    def wake(self) -> None:
        self._news.set()

    @asynccontextmanager
    async def running(self, endpoints: Mapping[str, Endpoint]) -> AsyncIterator[None]:
        """Run batches inside the context, and release them at its end. `endpoints`: by path."""
        host = self._host
        host.calls = LineCalls(
            endpoints, host.telemetry, max_answer_bytes=host.max_answer_bytes, at_once=host.most_lines
        )
        looking = every(LOOK_EVERY_S, "the search for batches", self._look, woken=self._news)
        sweeping = every(SWEEP_EVERY_S, "sweeping files", self.sweep)
        tasks = [asyncio.create_task(looking, name="batches"), asyncio.create_task(sweeping, name="file sweep")]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._close()

    async def sweep(self) -> None:
        await asyncio.to_thread(self._host.drafts.sweep)
        for root in await self._host.files.roots():
            await self._sweep(root)
            await self._host.files.unlist_if_empty(root)

    async def _sweep(self, root: str) -> None:
        stuck, fault = 0, ""
        while expired := await self._host.files.expired(root, SWEPT_AT_ONCE, but_first=stuck):
            for name in expired:
                try:
                    await self._delete(root, name)
                except OSError as error:
                    stuck, fault = stuck + 1, type(error).__name__
        if stuck:
            log.warning("%d expired files cannot be deleted from the storage (%s)", stuck, fault)

    async def _delete(self, root: str, name: str) -> None:
        if files.is_id(name):
            await files.delete(self._host.storage, self._host.files, root, name)
        else:
            await self._host.storage.delete_folder(f"batches/{name}")
            await self._host.records.drop(root, name)

    async def _look(self) -> None:
        """Take free batches, one of each root at a time. Raise StoreUnavailable.

        Roots with the fewest slots come first. If all slots are taken, a root without one gets an additional slot,
        and the root with the most releases one."""
        if self._host.is_stopping() or not self._host.most_batches:
            return
        now_s = time.monotonic()
        self._elsewhere = {batch: until_s for batch, until_s in self._elsewhere.items() if until_s > now_s}
        roots = await self._host.records.roots()
        random.shuffle(roots)  # concurrent gateways start with different roots
        for root in sorted(roots, key=self._places().__getitem__):
            if self._host.is_stopping() or not self._may_take(root):
                return
            lease_ms = round(self._host.lease_s * 1e3)
            taken = await self._host.records.take(root, self._host.owner, lease_ms, but=self._elsewhere)
            if taken is not None:
                self._begin(taken)
                self._make_room()

    def _places(self) -> Counter[str]:
        return Counter(batch.root for batch in self._open.values() if not batch.gives_way)

    def _may_take(self, root: str) -> bool:
        places, most = self._places(), self._host.most_batches
        if len(self._open) >= 2 * most:  # batches that are releasing their slots have not ended yet
            return False
        return places.total() < most or (not places[root] and self._leaving(places) is not None)

    def _make_room(self) -> None:
        places = self._places()
        leaving = self._leaving(places) if places.total() > self._host.most_batches else None
        if leaving is not None:
            leaving.gives_way = True

    def _leaving(self, places: Counter[str]) -> OpenBatch | None:
        """Return the batch that must release its slot, if any: the oldest of the root with the most slots."""
        here = [batch for batch in self._open.values() if not batch.gives_way]
        first = max(here, key=lambda batch: (places[batch.root], -batch.begun_s))
        is_over = places[first.root] > 1 or time.monotonic() - first.begun_s >= TURN_S
        return first if is_over else None

    def _begin(self, taken: TakenBatch) -> None:
        log.info("batch taken: batch=%s epoch=%d", taken.batch.id, taken.epoch)
        batch = OpenBatch(taken, self._host)
        task = asyncio.create_task(batch.run(), name=f"batch {taken.batch.id}")
        self._open[task] = batch
        task.add_done_callback(self._ended)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        batch = self._open.pop(task)
        if batch.is_elsewhere:
            self._elsewhere[batch.id] = time.monotonic() + ELSEWHERE_S
        if not task.cancelled() and (fault := task.exception()) is not None:
            log.error(
                "batch stopped by an internal error: batch=%s error=%s", batch.id, type(fault).__name__, exc_info=fault
            )
        self._news.set()  # a slot is free

    async def _close(self) -> None:
        if self._open:
            await asyncio.wait(list(self._open), timeout=CLOSE_S)
        for task in self._open:
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)
