"""A worker for tests: the real queue, registry and links, a written script instead of a model."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from typing import TypeVar

import msgspec
import redis.asyncio

from fairlane.gateway.model_text.tokenizer import TextModel
from fairlane.scheduler.planner.steps import Capacity, Yielding
from fairlane.scheduler.protocol.lanes import DEFAULT_LANES, Lane, LaneName
from fairlane.scheduler.protocol.messages import (
    Cancel,
    Event,
    Finished,
    FinishReason,
    Lease,
    ModelCard,
    Outcome,
    Paused,
    PositionLogprobs,
    TokenDelta,
    WorkerStatus,
)
from fairlane.scheduler.queue.registry import RedisRegistry, queue_name
from fairlane.store.errors import STORE_ERRORS
from fairlane.store.retry import StoreLink
from fairlane.worker.outlet import Outlet
from fairlane.worker.reports import Publication
from fairlane.worker.runtime import dial
from tests.support.gateway.cards import byte_level_card
from tests.support.scheduler.queues import TakingQueue

SAID = "The capital of France is Paris."
IDLE_MS = 20
LONGEST_BEAT_S = 0.2

T = TypeVar("T")


@cache
def _text_model(card: bytes) -> TextModel:
    """The text model of an encoded card: cards that hold dictionaries have no hash."""
    return TextModel(msgspec.json.decode(card, type=ModelCard))


@dataclass
class HandWorker:
    """Says the same words to everyone, a token of each choice per step, and then ends the choice.

    `limit` holds every choice after so many tokens, until it is raised or None.
    """

    redis: redis.asyncio.Redis
    card: ModelCard = field(default_factory=byte_level_card)
    worker_id: str = "hand"
    words: str = SAID
    limit: int | None = None
    held: set[str] = field(default_factory=set)
    """Jobs that say nothing for now."""
    taking: bool = True
    lease_ms: int = 6_000
    blocks: int = 256
    lanes: dict[LaneName, Lane] = field(default_factory=lambda: dict(DEFAULT_LANES))
    step_weights: tuple[float, ...] = ()
    single_stream_ms: float = 0.0
    step_s: float = 0.0
    """How long a step takes, beside what it does."""
    fails: str = ""
    """With this reason each job ends as failed, before its first token."""
    leases: dict[str, Lease] = field(default_factory=dict)
    produced: dict[str, list[int]] = field(default_factory=dict)
    known: asyncio.Event = field(default_factory=asyncio.Event)
    """The registry has its first heartbeat."""
    seen: list[Lease] = field(default_factory=list)
    cancelled: list[str] = field(default_factory=list)
    granted: dict[str, int] = field(default_factory=dict)
    """Output tokens per choice that it may make, where that was raised."""

    @property
    def script(self) -> Sequence[int]:
        """What every choice says, its end token included."""
        return (*_text_model(msgspec.json.encode(self.card)).encode(self.words), self.card.eos_token_ids[0])

    def say(self, words: str) -> None:
        """What every choice says from now on."""
        self.words = words
        self._script = self.script

    def renew(self) -> None:
        """Serve from now on as a new worker does."""
        self.limit, self.taking, self.fails, self.step_s = None, True, "", 0.0
        self.held.clear()
        self.seen.clear()
        self.cancelled.clear()
        self.say(SAID)

    async def run(self) -> None:
        """Serve until cancelled."""
        registry = RedisRegistry(self.redis)
        sha256 = await self._sure(partial(registry.announce, self.card))
        await self._sure(registry.link_secret)
        self.queue = TakingQueue(self.redis, queue_name(self.card.model, sha256), self.lanes, lease_ms=self.lease_ms)

        self.outlet = Outlet(
            self,
            dial=partial(dial, self.worker_id, self.queue.name, registry),
            report=lambda items, serial: self.queue.report(self.worker_id, items, serial=serial),
            release=partial(self.queue.release, self.worker_id),
            link=StoreLink(self.lease_ms / 1e3),
            new_serial=self.queue.new_serial,
            patience_s=self.lease_ms / 2e3,
        )
        tasks = [asyncio.create_task(self._beat(registry, sha256)), asyncio.create_task(self.outlet.run())]
        try:
            await self._serve()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self.outlet.aclose()

    # What the outlet asks of its owner.

    def start_job(self, lease: Lease, *, again: bool) -> None:
        self.seen.append(lease)
        self.leases[lease.job.job_id] = lease
        self.produced[lease.job.job_id] = list(lease.generated[0]) if lease.generated else []
        self.granted.pop(lease.job.job_id, None)

    def grant_job(self, job_id: str, granted_until: int) -> None:
        self.granted[job_id] = granted_until

    def cancel_job(self, job_id: str) -> None:
        lease = self.leases.pop(job_id, None)
        if lease is not None:
            self.cancelled.append(job_id)
            self._end(lease, Outcome.CANCELLED)

    def drop_jobs(self, jobs: Sequence[tuple[str, int]], why: str) -> None:
        for job_id, _ in jobs:
            self.leases.pop(job_id, None)

    def forget_job(self, job_id: str, epoch: int) -> None: ...

    async def _beat(self, registry: RedisRegistry, sha256: str) -> None:
        while True:
            status = WorkerStatus(
                worker_id=self.worker_id,
                model=self.card.model,
                queue=queue_name(self.card.model, sha256),
                card_sha256=sha256,
                started_at_ms=0.0,
                block_size=16,
                blocks_total=self.blocks,
                blocks_free=self.blocks,
                max_sequences=8,
                step_weights=self.step_weights,
                single_stream_ms=self.single_stream_ms,
                step_ms=1.0,
            )
            await self._sure(partial(registry.beat, status, self.lease_ms))
            await self._sure(partial(self.queue.renew, self.worker_id, holding=list(self.leases)))
            self.known.set()
            await asyncio.sleep(min(self.lease_ms / 4e3, LONGEST_BEAT_S))

    async def _serve(self) -> None:
        self._script = self.script
        last_id = "0-0"
        self._may_find = True
        while True:
            news = await self._sure(partial(self.queue.read_news, self.worker_id, last_id, self._patience_ms()))
            last_id = news.last_id
            for control in news.controls:
                if isinstance(control, Cancel) and self.outlet.cancel(control.job_id):
                    self.cancel_job(control.job_id)
            if self.taking and (self._may_find or news.calls or self._patience_ms()):
                self._may_find = False
                await self._take()
            for lease in list(self.leases.values()):
                self._step(lease)
            if self.step_s:
                await asyncio.sleep(self.step_s)

    def _patience_ms(self) -> int:
        return IDLE_MS if all(self._is_held(lease) for lease in self.leases.values()) else 0

    def _is_held(self, lease: Lease) -> bool:
        made, job_id = len(self.produced[lease.job.job_id]), lease.job.job_id
        if made >= self.granted.get(job_id, lease.job.granted_until):
            return True
        return self.limit is not None and made >= self.limit

    async def _take(self) -> None:
        pool = 16 * self.blocks
        free = 8 - len(self.leases)
        room = Capacity(sequences=dict.fromkeys(LaneName, free), kv_tokens=dict.fromkeys(LaneName, pool))
        turn = await self._sure(partial(self.queue.turn, self.worker_id, room))
        # It offers no room, so that jobs wait while it does not take. It is called as one whose work may yield.
        offer = Yielding((), (), 1, free, pool)
        called = Capacity({}, {}, pool_tokens=pool, yielding=dict.fromkeys(LaneName, offer))
        await self._sure(partial(self.queue.turn, self.worker_id, called))
        for lease in turn.leases:
            self.outlet.took([lease])
            if lease.job.max_total_tokens > pool:  # as an engine does
                self.leases.pop(lease.job.job_id, None)
                self._end(lease, Outcome.FAILED, error=f"it needs more than {pool} tokens")

    def _step(self, lease: Lease) -> None:
        job, made = lease.job, self.produced[lease.job.job_id]
        if self.fails:
            self._end(self.leases.pop(job.job_id), Outcome.FAILED, error=self.fails)
            return
        if job.job_id in self.held or self._is_held(lease):
            return
        token = self._next(lease, len(made))
        made.append(token)
        finish: FinishReason | None = None
        if token in job.sampling.stop_token_ids:
            finish = "stop"
        elif len(made) >= job.max_tokens:
            finish = "length"
        logprobs = () if job.sampling.logprobs is None else (PositionLogprobs(-0.5, ((token, -0.5),)),)
        deltas = tuple(
            TokenDelta(
                job_id=job.job_id,
                epoch=lease.epoch,
                choice=choice,
                first_index=len(made) - 1,
                token_ids=(token,),
                logprobs=logprobs,
                finish_reason=finish,
                queued_ms=lease.arrived_ms_ago if len(made) == 1 else None,
                worker_id=self.worker_id if len(made) == 1 else "",
            )
            for choice in range(job.n)
        )
        if finish is None:
            is_paused = len(made) == self.granted.get(job.job_id, job.granted_until)
            pauses = [Paused(job_id=job.job_id, choice=choice) for choice in range(job.n) if is_paused]
            self.outlet.put([Publication(lease, (*deltas, *pauses), cost=1.0)])
            return
        del self.leases[job.job_id]
        self._may_find = True
        end = Finished(job_id=job.job_id, epoch=lease.epoch, outcome=Outcome.FINISHED, worker_id=self.worker_id)
        self.outlet.put([Publication(lease, (*deltas, end), cost=1.0, ends=Outcome.FINISHED)])

    def _next(self, lease: Lease, index: int) -> int:
        """The script; where a job ignores its end token, again and again."""
        return self._script[index % len(self._script)]

    def _end(self, lease: Lease, outcome: Outcome, error: str = "") -> None:
        end = Finished(
            job_id=lease.job.job_id, epoch=lease.epoch, outcome=outcome, error=error, worker_id=self.worker_id
        )
        self.outlet.put([Publication(lease, (end,), ends=outcome)])

    async def tell(self, event: Event) -> None:
        """Publish an event that brings no token, of a job in hand."""
        lease = self.leases[event.job_id]
        self.outlet.put([Publication(lease, (event,))])

    async def _sure(self, call: Callable[[], Awaitable[T]]) -> T:
        """Ask again until the store answers."""
        while True:
            try:
                return await call()
            except STORE_ERRORS:
                await asyncio.sleep(IDLE_MS / 1e3)
