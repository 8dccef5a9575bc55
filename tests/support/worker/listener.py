"""The gateway's side of the queue, as little of it as a worker's tests need: puts jobs, reads events, reclaims."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial

import redis.asyncio

from fairlane.scheduler.protocol.lanes import DEFAULT_LANES
from fairlane.scheduler.protocol.messages import Event, Finished, TokenDelta
from fairlane.scheduler.queue.redis_queue import RedisQueue
from fairlane.scheduler.queue.registry import RedisRegistry
from fairlane.store.errors import STORE_ERRORS
from fairlane.store.retry import StoreLink

LIMIT_S = 30.0


@dataclass
class Listener:
    """What one gateway hears. A token out of order or twice fails the test at once."""

    queue: RedisQueue
    registry: RedisRegistry
    gateway_id: str = "gateway"
    events: list[Event] = field(default_factory=list)
    tokens: dict[tuple[str, int], list[int]] = field(default_factory=lambda: defaultdict(list))
    ends: dict[str, Finished] = field(default_factory=dict)
    epochs: dict[str, set[int]] = field(default_factory=lambda: defaultdict(set))
    reclaimed: int = 0
    fault: BaseException | None = None
    _news: asyncio.Condition = field(default_factory=asyncio.Condition)
    _closed: asyncio.Event = field(default_factory=asyncio.Event)

    async def until(self, holds: Callable[[], object], limit_s: float = LIMIT_S) -> None:
        """Wait until the events so far satisfy `holds`."""
        async with asyncio.timeout(limit_s), self._news:
            await self._news.wait_for(lambda: self.fault is not None or holds())
        if self.fault is not None:
            raise self.fault

    async def ended(self, *job_ids: str) -> None:
        """Wait for the end of these jobs."""
        await self.until(lambda: self.ends.keys() >= set(job_ids))

    def count(self, job_id: str, choice: int = 0) -> int:
        """Tokens of a choice so far."""
        return len(self.tokens[job_id, choice])

    async def listen(self) -> None:
        """Read for ever, through outages of the store."""
        last_id, link = "0-0", StoreLink(5.0)
        while True:
            read = partial(self.queue.read_events, self.gateway_id, last_id, 500)
            last_id, events = await link.persist("events", read)
            async with self._news:
                for event in events:
                    self._hear(event)
                self._news.notify_all()

    async def reclaim(self, every_s: float) -> None:
        """What each gateway does for all, and its own heartbeat."""
        while True:
            with suppress(*STORE_ERRORS):
                await self.queue.gateway_alive(self.gateway_id)
                self.reclaimed += await self.queue.reclaim()
            with suppress(TimeoutError):
                async with asyncio.timeout(every_s):
                    await self._closed.wait()

    def _hear(self, event: Event) -> None:
        self.events.append(event)
        match event:
            case TokenDelta():
                heard = self.tokens[event.job_id, event.choice]
                if event.first_index != len(heard):
                    self.fault = AssertionError(f"{event} after {len(heard)} tokens")
                heard.extend(event.token_ids)
                self.epochs[event.job_id].add(event.epoch)
            case Finished():
                if event.job_id in self.ends:
                    self.fault = AssertionError(f"{event.job_id} ended twice")
                self.ends[event.job_id] = event


@asynccontextmanager
async def listening(
    url: str, queue_name: str, *, lease_s: float, gateway_id: str = "gateway"
) -> AsyncIterator[Listener]:
    """A gateway at a queue."""
    client = redis.asyncio.from_url(url, socket_timeout=None)
    queue = RedisQueue(client, queue_name, DEFAULT_LANES, lease_ms=int(lease_s * 1e3))
    listener = Listener(queue, RedisRegistry(client), gateway_id)
    tasks = [asyncio.create_task(listener.listen()), asyncio.create_task(listener.reclaim(lease_s / 4))]
    try:
        yield listener
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await client.aclose()
