"""A worker's server in the test's own process: real queue, real planner, scripted arithmetic."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import redis.asyncio

from fairlane.scheduler.planner.costs import CostModel
from fairlane.scheduler.planner.steps import Capacity
from fairlane.scheduler.protocol.lanes import DEFAULT_LANES
from fairlane.scheduler.protocol.messages import Lease, ModelCard, WorkerStatus
from fairlane.scheduler.queue.registry import RedisRegistry
from fairlane.scheduler.queue.shards import shard_names
from fairlane.scheduler.queue.types import News, Turn
from fairlane.store.retry import StoreLink
from fairlane.worker.engine.engine import Engine, RemotePart
from fairlane.worker.engine_thread import Command, EngineThread
from fairlane.worker.heartbeat import Heartbeat
from fairlane.worker.reports import EngineObserver
from fairlane.worker.runtime import dial
from fairlane.worker.server import WorkerServer
from tests.support.scheduler.queues import TakingQueue
from tests.support.worker.listener import Listener, listening
from tests.support.worker.scripted import ScriptedRunner, engine

QUEUE = "tiny@0123456789ab"
LIMIT_S = 20.0
CARD = ModelCard(
    model="tiny", tokenizer_json="{}", chat_template=None, context_length=256, vocab_size=97, eos_token_ids=(2,)
)


class WatchedQueue(TakingQueue):
    """The real queue; counts `take` calls, and can lose the answer of the next, give leases out again, or break."""

    takes = 0
    lose_next_take = False
    given: Sequence[Lease] = ()
    """By the last take that gave any."""
    forgets = False
    """Like a store that has lost its last writes, the next take gives out again what the last one did."""
    overstates = 0
    """As many takes say that the pool is larger than it is."""
    fault: Exception | None = None

    async def turn(self, worker_id: str, capacity: Capacity, *args: Any, **named: Any) -> Turn:
        self.takes += 1
        if self.fault is not None:
            raise self.fault
        if self.overstates:
            capacity = replace(capacity, kv_tokens=dict.fromkeys(capacity.kv_tokens, 10**6), pool_tokens=10**6)
        turn = await super().turn(worker_id, capacity, *args, **named)
        self.overstates -= bool(turn.leases and self.overstates)
        if self.lose_next_take:
            self.lose_next_take = False
            raise redis.ConnectionError("the answer was lost")
        leases = turn.leases
        if leases and self.forgets:
            self.forgets, leases = False, [*leases, *self.given]
        self.given = leases or self.given
        return turn._replace(leases=leases)

    async def read_news(self, worker_id: str, last_id: str, block_ms: int) -> News:
        news = await super().read_news(worker_id, last_id, block_ms)
        self.given = news.leases or self.given
        return news


class WatchedThread(EngineThread):
    """The real engine thread; says when it is told something."""

    def __init__(self, engine: Engine, worker_id: str) -> None:
        super().__init__(engine, worker_id)
        self.news = asyncio.Event()

    def send(self, *commands: Command) -> None:
        super().send(*commands)
        self.news.set()


@dataclass
class Worker:
    """A server that runs, and what a test may look at."""

    worker_id: str
    server: WorkerServer
    thread: WatchedThread
    queue: WatchedQueue
    registry: RedisRegistry
    runner: ScriptedRunner
    task: "asyncio.Task[int]" = field(init=False)

    async def status(self) -> WorkerStatus:
        """Its last heartbeat."""
        async with asyncio.timeout(LIMIT_S):
            while True:
                for status in await self.registry.workers():
                    if status.worker_id == self.worker_id:
                        return status

    async def told(self, commands: int) -> None:
        """Wait until the engine thread has been told so many."""
        async with asyncio.timeout(LIMIT_S):
            while self.thread.commands_sent < commands:
                self.thread.news.clear()
                await self.thread.news.wait()

    async def ended(self) -> int:
        """Its exit status."""
        return await asyncio.wait_for(asyncio.shield(self.task), LIMIT_S)


@asynccontextmanager
async def working(
    url: str, *, lease_s: float = 20.0, drain_s: float = 10.0, runner: ScriptedRunner | None = None,
    worker_id: str = "worker", max_sequences: int = 8, prefix_share: float | None = None, queue_name: str = QUEUE,
    observers: Sequence[EngineObserver] = (), remote: RemotePart | None = None,
) -> AsyncIterator[Worker]:  # fmt: skip
    """A worker from start to end. Its lease is so long that no heartbeat helps where a wake-up is due."""
    runner = runner or ScriptedRunner()
    client = redis.asyncio.from_url(url, socket_timeout=None)
    queues = [
        WatchedQueue(client, name, DEFAULT_LANES, lease_ms=int(lease_s * 1e3)) for name in shard_names(queue_name)
    ]
    registry = RedisRegistry(client)
    about = WorkerStatus(
        worker_id=worker_id, model="tiny", queue=queue_name, card_sha256="0" * 64, started_at_ms=0.0, blocks_total=64
    )
    thread = WatchedThread(engine(runner, max_sequences=max_sequences, prefix_share=prefix_share), worker_id)
    server = WorkerServer(
        worker_id=worker_id,
        engine=thread,
        queues=queues,
        registry=registry,
        card=CARD,
        link=StoreLink(5.0),
        dial=partial(dial, worker_id, queue_name, registry),
        heartbeat=Heartbeat(about, CostModel()),
        observers=observers,
        remote=remote,
        lease_s=lease_s,
        drain_s=drain_s,
        block_s=1.0,
    )
    worker = Worker(worker_id, server, thread, queues[0], registry, runner)
    worker.task = asyncio.create_task(server.run())
    try:
        yield worker
    finally:
        runner.open()
        server.lifecycle.stop()
        await asyncio.wait_for(worker.task, LIMIT_S)
        await client.aclose()


@asynccontextmanager
async def gateway(
    url: str, *, lease_s: float = 20.0, shard: str = QUEUE, gateway_id: str = "gateway"
) -> AsyncIterator[Listener]:
    """A gateway at the workers' queue, or at one of its shards."""
    async with listening(url, shard, lease_s=lease_s, gateway_id=gateway_id) as listener:
        yield listener
