"""KV block maps for the console: the owner of each block of each worker, while a console watches."""

import asyncio
import time
from collections.abc import Sequence

from typing_extensions import TypedDict

from fairlane.common.views import view_of
from fairlane.gateway.fleet import FleetCache
from fairlane.scheduler.protocol.block_map import Run
from fairlane.scheduler.queue.registry import RedisRegistry

ASK_EVERY_S = 10.0
# A worker publishes its block map for this long after a request; 1.5 times the refresh interval, so watching never has
# gaps.
ASK_FOR_S = 15.0


class BlockMapView(TypedDict):
    """One worker's blocks, in order. A run is [count, tenant, lane, state]; the last three are indexes into the lists,
    or -1."""

    worker: str
    at: float
    blocks: int
    block_size: int
    host_blocks: int
    tenants: Sequence[str]
    lanes: Sequence[str]
    states: Sequence[str]
    runs: Sequence[Run]
    host_runs: Sequence[Run]


class BlocksView(TypedDict):
    """The block maps of all workers that have published one."""

    workers: list[BlockMapView]


class Blocks:
    """Block maps of all workers. `view` may raise redis.RedisError."""

    def __init__(self, registry: RedisRegistry, fleet: FleetCache) -> None:
        self._registry = registry
        self._fleet = fleet
        self._asked_s: dict[str, float] = {}

    async def view(self) -> BlocksView:
        workers, now_s = self._fleet.workers, time.monotonic()
        alive = {worker.worker_id: worker.queue for worker in workers}
        self._asked_s = {name: asked_s for name, asked_s in self._asked_s.items() if name in alive}
        due = [name for name in alive if now_s - self._asked_s.get(name, -ASK_EVERY_S) >= ASK_EVERY_S]
        await asyncio.gather(*(self._registry.watch_blocks(alive[name], name, int(ASK_FOR_S * 1e3)) for name in due))
        self._asked_s.update(dict.fromkeys(due, now_s))
        found = await self._registry.blocks(sorted(alive))
        return {"workers": [view_of(BlockMapView, one, at=one.at_ms / 1e3) for one in found]}
