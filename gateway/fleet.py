"""The workers and their queues as operators see them: asked of the store each time, over all models."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol

from gateway.directory import Depths
from scheduler.lanes import LaneName
from scheduler.messages import WorkerStatus
from scheduler.queue_types import LaneDepth


class Registry(Protocol):
    """Where workers announce themselves; `scheduler.registry.RedisRegistry` is one."""

    async def workers(self) -> list[WorkerStatus]:
        """Every worker that is alive."""

    async def drain(self, worker_id: str) -> bool:
        """Tell it to take no more jobs; False where there is no such worker."""


class StoredFleet:
    """The whole fleet. Every call may raise what the store raises."""

    def __init__(
        self, registry: Registry, queues: Callable[[], set[str]], depths: Callable[[str], Awaitable[Depths]]
    ) -> None:
        """`queues`: names of all that are known; `depths`: asks one of them how full its lanes are."""
        self._registry = registry
        self._queues = queues
        self._depths = depths

    async def workers(self) -> list[WorkerStatus]:
        """Every worker that is alive."""
        return await self._registry.workers()

    async def drain(self, worker_id: str) -> bool:
        """Let it take no more jobs; False where there is no such worker."""
        return await self._registry.drain(worker_id)

    async def depths(self) -> Mapping[LaneName, LaneDepth]:
        """What waits in each lane, over all models."""
        found = [await self._depths(queue) for queue in sorted(self._queues())]
        return {
            lane: LaneDepth(
                queued=sum(depths[lane].queued for depths in found if lane in depths),
                oldest_wait_ms=max((depths[lane].oldest_wait_ms for depths in found if lane in depths), default=0),
            )
            for lane in LaneName
        }
