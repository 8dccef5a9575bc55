"""Reports of KV block ownership for operators: the whole map while it is watched, and the blocks of each tenant."""

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
# Approximate number of blocks that the map covers per millisecond of the engine's time.
BLOCKS_PER_MS = 2_000
# Maximum share of the engine's time for maps: the map of a very large pool is published less often.
SHARE = 0.01
LONGEST_WATCH_S = 60.0
# An unchanged map is published again after this time, before the store expires it.
SAME_FOR_S = 3.0


class BlockReports:
    """One worker's block reports. Used on one event loop."""

    def __init__(self, worker_id: str, engine: EngineThread, registry: RedisRegistry, heartbeat: Heartbeat) -> None:
        self._worker_id = worker_id
        self._engine = engine
        self._registry = registry
        self._heartbeat = heartbeat
        self._watched = asyncio.Event()
        self._until_s = 0.0
        self._last: BlockMap | None = None
        self._published_s = 0.0
        self._counting: asyncio.Future[dict[str, int]] | None = None

    def watch(self, for_s: float) -> None:
        self._until_s = max(self._until_s, self._now_s + min(for_s, LONGEST_WATCH_S))
        self._watched.set()

    def count(self, *, idle: bool) -> None:
        if idle:
            self._heartbeat.kv_blocks = {}
        elif self._counting is None or self._counting.done():
            self._counting = self._engine.query(Planner.held_by_tenant)
            self._counting.add_done_callback(self._counted)

    async def run(self) -> None:
        while True:
            await self._watched.wait()
            if self._now_s >= self._until_s:
                self._watched.clear()
                self._last = None
                continue
            try:
                blocks = await self._engine.query(Planner.block_map)
            except Exception:  # a report for operators must not end a worker
                log.exception("the block map failed")
                await asyncio.sleep(EVERY_S)
                continue
            await self._publish(blocks)
            await asyncio.sleep(max(EVERY_S, (blocks.blocks + blocks.host_blocks) / BLOCKS_PER_MS / 1e3 / SHARE))

    async def _publish(self, blocks: BlockMap) -> None:
        is_same, now_s = blocks == self._last, self._now_s
        if is_same and now_s - self._published_s < SAME_FOR_S:
            return
        named = msgspec.structs.replace(blocks, worker=self._worker_id, at_ms=round(time.time() * 1e3))
        try:
            await self._registry.show_blocks(named)
        except STORE_ERRORS as error:
            log.debug("the block map was not published: the store is unavailable (%s)", type(error).__name__)
        else:
            self._last, self._published_s = blocks, now_s

    def _counted(self, found: "asyncio.Future[dict[str, int]]") -> None:
        if not found.cancelled() and found.exception() is None:
            self._heartbeat.kv_blocks = found.result()

    @property
    def _now_s(self) -> float:
        return asyncio.get_running_loop().time()
