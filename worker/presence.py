"""The worker's entries in the registry: its heartbeat and its model card."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial

from fairlane.scheduler.protocol.messages import ModelCard, WorkerStatus
from fairlane.scheduler.queue.registry import RedisRegistry
from fairlane.store.retry import StoreLink

LEAVE_S = 2.0
# Interval at which the model card's expiry is extended.
ANNOUNCE_S = 600.0
HEARTBEATS_PER_LEASE = 4


class Presence:
    """One worker's entries in the registry.

    On a Cluster the registry may be on another node than the queue, so an unavailable registry costs no lease.
    """

    def __init__(
        self,
        registry: RedisRegistry,
        card: ModelCard,
        link: StoreLink,
        status: Callable[[], WorkerStatus],
        lease_s: float,
    ) -> None:
        self._registry = registry
        self._card = card
        self._link = link
        self._status = status
        self._lease_s = lease_s

    async def beat(self) -> None:
        while True:
            beat = partial(self._registry.beat, self._status(), int(self._lease_s * 1e3))
            await self._link.persist("beat", beat)
            await asyncio.sleep(self._lease_s / HEARTBEATS_PER_LEASE)

    async def announce(self) -> None:
        while True:
            await self._link.persist("announce", partial(self._registry.announce, self._card))
            self._link.returned.clear()
            await within(ANNOUNCE_S, self._link.returned.wait())

    async def leave(self, worker_id: str) -> None:
        await within(LEAVE_S, self._link.persist("leave", partial(self._registry.leave, worker_id)))


async def within(limit_s: float, what: Awaitable[object]) -> None:
    """Wait for `what`, and cancel it after `limit_s`."""
    with suppress(TimeoutError):
        async with asyncio.timeout(limit_s):
            await what
