"""Whose the KV blocks are, told to operators: the whole map about each second while somebody watches, and with each
heartbeat how many each tenant holds."""

import asyncio
import logging
import time

import msgspec

from fairlane.scheduler.planner.planner import Planner
from fairlane.scheduler.protocol.block_map import BlockMap
from fairlane.scheduler.queue.registry import RedisRegistry
from fairlane.store.errors import STORE_ERRORS
from fairlane.worker.engine_thread import EngineThread
from fairlane.worker.heartbeat import Heartbeat

log = logging.getLogger(__name__)

EVERY_S = 1.0
BLOCKS_PER_MS = 2_000
"""About what a look at the map finds in a millisecond of the engine's time."""
SHARE = 0.01
"""Of the engine's time, that looks may take: of a very large pool the map is told less often."""
LONGEST_WATCH_S = 60.0
SAME_FOR_S = 3.0
"""A map that is as it was is told again after so long, before the store forgets it."""


class BlockReports:
    """One worker's. For one event loop."""

    def __init__(self, worker_id: str, engine: EngineThread, registry: RedisRegistry, heartbeat: Heartbeat) -> None:
        self._worker_id = worker_id
        self._engine = engine
        self._registry = registry
        self._heartbeat = heartbeat
        self._watched = asyncio.Event()
        self._until_s = 0.0
        """Somebody watches until then, on the loop's clock."""
        self._last: BlockMap | None = None
        self._told_s = 0.0
        self._counting: asyncio.Future[dict[str, int]] | None = None

    def watch(self, for_s: float) -> None:
        """Somebody watches, for so long from now."""
        self._until_s = max(self._until_s, self._now_s + min(for_s, LONGEST_WATCH_S))
        self._watched.set()

    def count(self, *, idle: bool) -> None:
        """Find out what each tenant holds, for the next heartbeat; nothing while the worker is idle."""
        if idle:
            self._heartbeat.kv_blocks = {}
        elif self._counting is None or self._counting.done():
            self._counting = self._engine.look(Planner.held_by_tenant)
            self._counting.add_done_callback(self._counted)

    async def run(self) -> None:
        """Tell the map while somebody watches, until cancelled."""
        while True:
            await self._watched.wait()
            if self._now_s >= self._until_s:
                self._watched.clear()
                self._last = None
                continue
            try:
                blocks = await self._engine.look(Planner.block_map)
            except Exception:  # nothing that people look at may end a worker
                log.exception("the block map failed")
                await asyncio.sleep(EVERY_S)
                continue
            await self._tell(blocks)
            await asyncio.sleep(max(EVERY_S, (blocks.blocks + blocks.host_blocks) / BLOCKS_PER_MS / 1e3 / SHARE))

    async def _tell(self, blocks: BlockMap) -> None:
        is_same, now_s = blocks == self._last, self._now_s
        if is_same and now_s - self._told_s < SAME_FOR_S:
            return
        named = msgspec.structs.replace(blocks, worker=self._worker_id, at_ms=round(time.time() * 1e3))
        try:
            await self._registry.show_blocks(named)
        except STORE_ERRORS as error:
            log.debug("the block map waits for the store (%s)", type(error).__name__)
        else:
            self._last, self._told_s = blocks, now_s

    def _counted(self, found: "asyncio.Future[dict[str, int]]") -> None:
        if not found.cancelled() and found.exception() is None:
            self._heartbeat.kv_blocks = found.result()

    @property
    def _now_s(self) -> float:
        return asyncio.get_running_loop().time()
