"""A worker that makes whatever a budget grants, at once, and notes by the store's clock when each token came."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

from tokenizers import Tokenizer

from benchmarks.gateway.instant import IDLE_MS, LEASE_MS, MODEL, SEQUENCES, WORDS, WORKER_ID, beat, card
from fairlane.scheduler.planner.steps import Capacity
from fairlane.scheduler.protocol.lanes import DEFAULT_LANES, LaneName
from fairlane.scheduler.protocol.messages import (
    Cancel,
    Event,
    Finished,
    FinishReason,
    Grant,
    Lease,
    Outcome,
    Paused,
    TokenDelta,
)
from fairlane.scheduler.queue.redis_queue import RedisQueue
from fairlane.scheduler.queue.registry import RedisRegistry, queue_name
from fairlane.scheduler.queue.types import Publication
from fairlane.store.connections import BoundedRedis, Connections, connections

STORE_TIMEOUT_S = 10.0
KV_TOKENS = 10**6


@dataclass(slots=True)
class Row:
    """One sequence, of one choice."""

    lease: Lease
    granted: int
    made: int = 0

    @property
    def can_step(self) -> bool:
        """The budget lets it make another token."""
        return self.made < self.granted

    def step(self, words: Sequence[int]) -> Publication:
        """Its next token, and its end with the last."""
        job, epoch, index = self.lease.job, self.lease.epoch, self.made
        ids = (words[index % len(words)],)
        self.made += 1
        is_over = self.made >= job.max_tokens
        reason: FinishReason | None = "length" if is_over else None
        events: tuple[Event, ...] = (
            TokenDelta(
                job_id=job.job_id,
                epoch=epoch,
                choice=0,
                first_index=index,
                token_ids=ids,
                finish_reason=reason,
            ),
        )
        if is_over:
            events += (_finished(self.lease, Outcome.FINISHED),)
        elif not self.can_step:
            events += (Paused(job_id=job.job_id, choice=0),)
        ends = Outcome.FINISHED if is_over else None
        return Publication(job.job_id, epoch, events, ((0, index, ids),), cost=1.0, ends=ends)


@dataclass
class Worker:
    """The queue's jobs and their rows."""

    client: BoundedRedis
    queue: RedisQueue
    news: RedisQueue
    """The same, for the one task that waits there."""
    words: Sequence[int]
    made_ms: list[float] = field(default_factory=list)
    """When each token counted, a job's prompt with its first token: what the store's clock says after it."""
    rows: dict[str, Row] = field(default_factory=dict)
    stirred: asyncio.Event = field(default_factory=asyncio.Event)
    """Some row may be able to step."""

    async def hear(self) -> None:
        """Take jobs, grants and cancellations in, until cancelled."""
        last_id = "0-0"
        while True:
            last_id, controls, _ = await self.news.read_control(WORKER_ID, last_id, IDLE_MS)
            for control in controls:
                if isinstance(control, Grant) and control.job_id in self.rows:
                    self.rows[control.job_id].granted = control.granted_until
                elif isinstance(control, Cancel) and control.job_id in self.rows:
                    await self._cancel(self.rows.pop(control.job_id).lease)
            free = SEQUENCES - len(self.rows)
            room = Capacity(sequences=dict.fromkeys(LaneName, free), kv_tokens=dict.fromkeys(LaneName, KV_TOKENS))
            for lease in await self.queue.take(WORKER_ID, room):
                self.rows[lease.job.job_id] = Row(lease, lease.job.granted_until)
            self.stirred.set()

    async def step(self) -> None:
        """A token of each row that may make one, again and again, until cancelled."""
        while True:
            await self.stirred.wait()
            steps: dict[str, list[Row]] = {}
            for row in self.rows.values():
                if row.can_step:
                    steps.setdefault(row.lease.job.gateway_id, []).append(row)
            if not steps:
                self.stirred.clear()
            for gateway_id, rows in steps.items():
                await self._publish(gateway_id, rows)

    async def _publish(self, gateway_id: str, rows: Sequence[Row]) -> None:
        counted = sum(1 if row.made else 1 + len(row.lease.job.prompt) for row in rows)
        publications = [row.step(self.words) for row in rows]
        for row in rows:
            if row.made >= row.lease.job.max_tokens:
                del self.rows[row.lease.job.job_id]
        pipe = self.client.pipe
        assert pipe is not None  # noqa: S101 - `connections` gives it one
        refused, (seconds, microseconds) = await asyncio.gather(  # in one write, so that nothing comes between
            self.queue.publish(gateway_id, WORKER_ID, publications), pipe.call("TIME")
        )
        for job_id in refused:
            self.rows.pop(job_id, None)
        if not refused:
            self.made_ms += [int(seconds) * 1e3 + int(microseconds) / 1e3] * counted

    async def _cancel(self, lease: Lease) -> None:
        end = Publication(lease.job.job_id, lease.epoch, (_finished(lease, Outcome.CANCELLED),))
        await self.queue.publish(lease.job.gateway_id, WORKER_ID, [end._replace(ends=Outcome.CANCELLED)])


def _finished(lease: Lease, outcome: Outcome) -> Finished:
    return Finished(job_id=lease.job.job_id, epoch=lease.epoch, outcome=outcome, worker_id=WORKER_ID)


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
    assert isinstance(store.patient, BoundedRedis)  # noqa: S101 - see `connections`
    worker = Worker(store.patient, queue, news, [ids[word] for word in WORDS])
    tasks = [asyncio.create_task(each) for each in (beat(queue, registry, sha256), worker.hear(), worker.step())]
    try:
        yield worker
    finally:
        for task in tasks:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        await reader.aclose()
        await store.aclose()
