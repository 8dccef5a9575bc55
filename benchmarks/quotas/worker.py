"""A worker that makes whatever a budget grants, at once, and notes by the store's clock when each token came."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

from tokenizers import Tokenizer

from benchmarks.gateway.instant import CONTEXT_TOKENS, LEASE_MS, MODEL, WORDS, Engine, Row, beat, card
from fairlane.scheduler.protocol.lanes import DEFAULT_LANES
from fairlane.scheduler.protocol.messages import Lease
from fairlane.scheduler.queue.redis_queue import RedisQueue
from fairlane.scheduler.queue.registry import RedisRegistry, queue_name
from fairlane.store.connections import BoundedRedis, Connections, connections

STORE_TIMEOUT_S = 10.0


@dataclass(kw_only=True)
class Worker(Engine):
    """An engine that makes one token of each row in a step."""

    client: BoundedRedis
    made_ms: list[float] = field(default_factory=list)
    """When each token counted, a job's prompt with its first token: what the store's clock says after it."""

    def start_job(self, lease: Lease, *, again: bool) -> None:
        """Begin a row."""
        super().start_job(lease, again=again)
        self.rows[lease.job.job_id].pace = 1

    async def stepped(self, rows: Sequence[Row]) -> None:
        """Note when it was."""
        counted = sum(1 + len(row.lease.job.prompt) if row.made == 1 else 1 for row in rows)
        pipe = self.client.pipe
        assert pipe is not None  # noqa: S101 - `connections` gives it one
        seconds, microseconds = await pipe.call("TIME")
        self.made_ms += [int(seconds) * 1e3 + int(microseconds) / 1e3] * counted


@asynccontextmanager
async def working(url: str) -> AsyncIterator[Worker]:
    """A worker that serves until the block ends."""
    store: Connections = connections(url, timeout_s=STORE_TIMEOUT_S, limit=8)
    known = card()
    registry = RedisRegistry(store.patient)
    sha256 = await registry.announce(known)
    reader = store.reader()
    queue, news = (
        RedisQueue(client, queue_name(MODEL, sha256), dict(DEFAULT_LANES), lease_ms=LEASE_MS)
        for client in (store.patient, reader)
    )
    ids = Tokenizer.from_str(known.tokenizer_json).get_vocab()
    text = tuple(ids[word] for word in WORDS) * (CONTEXT_TOKENS // len(WORDS))
    assert isinstance(store.patient, BoundedRedis)  # noqa: S101 - see `connections`
    worker = Worker(queue, news, registry, text, client=store.patient)
    works = (beat(queue, registry, sha256), worker.take_in(), worker.step(), worker.outlet.run())
    tasks = [asyncio.create_task(each) for each in works]
    try:
        yield worker
    finally:
        for task in tasks:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        await worker.outlet.aclose()
        await reader.aclose()
        await store.aclose()
