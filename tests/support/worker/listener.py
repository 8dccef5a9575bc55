"""A gateway as workers' tests need it: puts jobs, accepts links, reads the store's events, and reclaims."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial

import msgspec
import redis.asyncio

from fairlane.scheduler.links.listener import LinkListener
from fairlane.scheduler.protocol.lanes import DEFAULT_LANES
from fairlane.scheduler.protocol.messages import Job
from fairlane.scheduler.queue.registry import RedisRegistry
from fairlane.scheduler.queue.shards import queue_of
from fairlane.scheduler.queue.types import JobRecord, Put
from fairlane.store.errors import STORE_ERRORS
from fairlane.store.retry import StoreLink
from tests.support.scheduler.queues import TakingQueue
from tests.support.worker.gateway_end import GatewayEnd

LIMIT_S = 30.0


class GatewayQueue(TakingQueue):
    """The real queue. Jobs of this gateway get its address, and it expects them."""

    listener: "Listener"

    async def put(  # type: ignore[override]
        self, job: Job, *, tenant_limit: int | None = None, prefixes: bytes = b"", generated: int = 0
    ) -> Put:
        return await super().put(
            self.listener.registered(job), tenant_limit=tenant_limit, prefixes=prefixes, generated=generated
        )


@dataclass
class Listener(GatewayEnd):
    """One gateway at a queue. A token out of order or twice fails the test at once."""

    queue: GatewayQueue = field(kw_only=True)
    registry: RedisRegistry = field(kw_only=True)
    gateway_id: str = "gateway"
    address: str = ""
    reclaimed: int = 0
    _news: asyncio.Event = field(default_factory=asyncio.Event)
    _closed: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.queue_name = queue_of(self.queue.name)
        self.queue.listener = self
        self.on_news = self._news.set
        self.links = LinkListener(self.gateway_id, self.registry.link_secret, self)

    async def until(self, holds: Callable[[], object], limit_s: float = LIMIT_S) -> None:
        """Wait until the events so far satisfy `holds`."""
        async with asyncio.timeout(limit_s):
            while self.fault is None and not holds():
                self._news.clear()
                await self._news.wait()
        if self.fault is not None:
            raise self.fault

    async def ended(self, *job_ids: str) -> None:
        """Wait for the end of these jobs."""
        await self.until(lambda: self.ends.keys() >= set(job_ids))

    async def record_of_end(self, job_id: str) -> JobRecord:
        """Return a job's record once the store has its end, which its worker reports after its gateway has it."""
        async with asyncio.timeout(LIMIT_S):
            while (record := await self.queue.record(job_id)) is None or record.outcome is None:
                pass
        return record

    def registered(self, job: Job) -> Job:
        """Expect a job, and return it with this gateway's address."""
        job = msgspec.structs.replace(job, gateway_address=self.address)
        self.expect(job)
        return job

    def count(self, job_id: str, choice: int = 0) -> int:
        """Tokens of a choice so far."""
        return len(self.tokens[job_id, choice])

    async def listen(self) -> None:
        """Accept links."""
        port = await self.links.listen("127.0.0.1", 0)
        self.address = f"tcp://127.0.0.1:{port}"

    async def read(self) -> None:
        """Read the store's events for ever, through its outages."""
        last_id, link = "0-0", StoreLink(5.0)
        while True:
            read = partial(self.queue.read_events, self.gateway_id, last_id, 500)
            last_id, events = await link.persist("events", read)
            for event in events:
                self.accept(event)

    async def reclaim(self, every_s: float) -> None:
        """What each gateway does for all, and its own heartbeat."""
        while True:
            with suppress(*STORE_ERRORS):
                await self.queue.gateway_alive(self.gateway_id)
                self.reclaimed += await self.queue.reclaim()
            with suppress(TimeoutError):
                async with asyncio.timeout(every_s):
                    await self._closed.wait()


@asynccontextmanager
async def listening(
    url: str, queue_name: str, *, lease_s: float, gateway_id: str = "gateway"
) -> AsyncIterator[Listener]:
    """A gateway at a queue."""
    client = redis.asyncio.from_url(url, socket_timeout=None)
    queue = GatewayQueue(client, queue_name, DEFAULT_LANES, lease_ms=int(lease_s * 1e3))
    listener = Listener(queue=queue, registry=RedisRegistry(client), gateway_id=gateway_id)
    await listener.listen()
    tasks = [asyncio.create_task(listener.read()), asyncio.create_task(listener.reclaim(lease_s / 4))]
    try:
        yield listener
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await listener.links.aclose()
        await client.aclose()
