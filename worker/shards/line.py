"""A worker's calls to one shard of its queue."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from functools import partial

from fairlane.scheduler.protocol.messages import Lease
from fairlane.scheduler.queue.redis_queue import RedisQueue
from fairlane.scheduler.queue.types import News, Progress
from fairlane.store.retry import StoreLink
from fairlane.worker.leases import Asked
from fairlane.worker.shards.division import Division
from fairlane.worker.shards.store_reports import StoreCalls


class ShardLine:
    """The calls of one worker to one shard. `accept` gives leases to the engine; `unreached` returns the gateways of
    which the worker should be given no jobs."""

    def __init__(
        self,
        shard: int,
        queue: RedisQueue,
        *,
        worker_id: str,
        division: Division,
        link: StoreLink,
        accept: Callable[["ShardLine", Sequence[Lease]], Awaitable[None]],
        unreached: Callable[[], Sequence[str]],
    ) -> None:
        self.shard = shard
        self.intake = division.intakes[shard]
        self._queue = queue
        self._worker_id = worker_id
        self._division = division
        self._link = link
        self._accept = accept
        self._unreached = unreached
        self._last_id = "0-0"
        # One report at a time: the store recognises the repeat of the last one only.
        self._reporting = asyncio.Lock()
        # The serial of that report, what it asks for, and what was read of the streams by then.
        self._asking: tuple[str, Asked | None, str] = "", None, ""

    @property
    def calls(self) -> StoreCalls:
        return StoreCalls(report=self._report, release=self._release_once, new_serial=self._queue.new_serial)

    async def _report(self, items: Sequence[Progress], serial: str) -> set[str]:
        """Report, and ask for jobs if some may come. A repeat asks for the same, so that leases whose reply was lost
        are returned again; `renew` returns those that never arrive here."""
        async with self._reporting:
            if self._asking[0] != serial:
                self._asking = serial, self._division.ask(self.shard), self._last_id
            _, asked, last_id = self._asking
            if asked is None:
                return await self._queue.report(self._worker_id, items, serial=serial)
            floors, elsewhere = self._division.elsewhere(self.shard)
            turn = await self._queue.turn(
                *(self._worker_id, asked.capacity, items),
                called=asked.called,
                unreached=self._unreached(),
                last_id=last_id,
                serial=serial,
                floors=floors,
                elsewhere=elsewhere,
            )
        await self._accept(self, turn.leases)
        self._division.answered(self.shard, turn)
        return turn.refused

    async def news(self, block_ms: int) -> News:
        read = partial(self._queue.read_news, self._worker_id, self._last_id, block_ms)
        news = await self._link.persist("control", read)
        self._last_id = news.last_id
        return news

    async def renew(self, holding: Callable[[], Collection[str]]) -> bool:
        """Renew the lease. Return False, once, if it had expired. `holding` returns the jobs that the worker knows."""
        serial = self._queue.new_serial()
        return await self._link.persist(
            "renew", lambda: self._queue.renew(self._worker_id, holding=holding(), serial=serial)
        )

    async def release(self, job_ids: Sequence[str]) -> None:
        await self._link.persist("release", partial(self._release_once, job_ids))

    async def _release_once(self, job_ids: Sequence[str]) -> None:
        await self._queue.release(self._worker_id, job_ids)
        self._division.woken(self.shard)  # the queue has no room of a worker that returned jobs

    async def retire(self) -> None:
        async with self._reporting:
            pass
        await self._link.persist("retire", partial(self._queue.retire, self._worker_id))
