"""The workers and their queues as operators see them: asked of the store each time, over all models."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from gateway.directory import Depths, Directory
from scheduler.lanes import LaneName
from scheduler.messages import WorkerStatus
from scheduler.queue_types import LaneDepth


class Registry(Protocol):
    """Where workers announce themselves; `scheduler.registry.RedisRegistry` is one."""

    async def workers(self) -> list[WorkerStatus]:
        """Every worker that is alive."""

    async def drain(self, worker_id: str) -> bool:
        """Tell it to take no more jobs; False where there is no such worker."""

    async def undrain(self, worker_id: str) -> bool:
        """Tell it to take jobs again; False where there is no such worker."""


class Queue(Protocol):
    """What is asked of one model's queue; `scheduler.redis_queue.RedisQueue` is one."""

    async def depths(self) -> Depths:
        """How full each lane is."""

    async def waiting(self, tenant: str) -> int:
        """How many requests of this tenant wait, over all lanes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Door:
    """One model as a request of one tenant finds it."""

    model: str
    queue: str
    context_length: int
    workers: Sequence[WorkerStatus]
    depths: Depths
    waiting: int
    """Requests of the tenant that wait, over all lanes."""


class StoredFleet:
    """The whole fleet. Every call may raise what the store raises."""

    def __init__(self, registry: Registry, directory: Directory, queue: Callable[[str], Queue]) -> None:
        """`queue`: a model's queue by its name."""
        self._registry = registry
        self._directory = directory
        self._queue = queue

    async def workers(self) -> list[WorkerStatus]:
        """Every worker that is alive."""
        return await self._registry.workers()

    async def drain(self, worker_id: str) -> bool:
        """Let it take no more jobs; False where there is no such worker."""
        return await self._registry.drain(worker_id)

    async def undrain(self, worker_id: str) -> bool:
        """Let it take jobs again; False where there is no such worker."""
        return await self._registry.undrain(worker_id)

    async def depths(self) -> Mapping[LaneName, LaneDepth]:
        """What waits in each lane, over all models."""
        found = [await self._queue(name).depths() for name in sorted(self._directory.queues)]
        return {
            lane: LaneDepth(
                queued=sum(depths[lane].queued for depths in found if lane in depths),
                oldest_wait_ms=max((depths[lane].oldest_wait_ms for depths in found if lane in depths), default=0),
            )
            for lane in LaneName
        }

    async def doors(self, tenant: str, allowed: Collection[str] | None) -> list[Door]:
        """Each model that a tenant may use (None: all), as its next request finds it. Raises as `find` does."""
        return [
            Door(
                model=model.name,
                queue=model.queue,
                context_length=model.context_length,
                workers=model.workers,
                depths=await self._queue(model.queue).depths(),
                waiting=await self._queue(model.queue).waiting(tenant),
            )
            for model in self._directory.find(allowed)
        ]

    async def waiting(self, tenant: str) -> int:
        """How many requests of a tenant wait where most of them do: its `queued_requests` bounds each model's queue."""
        return max([await self._queue(name).waiting(tenant) for name in sorted(self._directory.queues)], default=0)
