"""A worker for tests: the real queue, registry and links, and a script instead of a model."""

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
from fairlane.scheduler.protocol.media import MeasureMedia
from fairlane.scheduler.protocol.messages import (
    Cancel,
    Event,
    Finished,
    FinishReason,
    Job,
    Lease,
    ModelCard,
    Outcome,
    Paused,
    PositionLogprobs,
    PromptLogprobs,
    TokenDelta,
    WorkerStatus,
)
from fairlane.scheduler.queue.registry import RedisRegistry, queue_name
from fairlane.scheduler.queue.shards import shard_names
from fairlane.store.errors import STORE_ERRORS
from fairlane.store.retry import StoreLink
from fairlane.worker.engine.engine import RemotePart
from fairlane.worker.outlet import Outlet
from fairlane.worker.reports import Publication
from fairlane.worker.runtime import dial
from fairlane.worker.shards.store_reports import StoreCalls
from tests.support.gateway.cards import byte_level_card
from tests.support.scheduler.queues import TakingQueue

SAID = "The capital of France is Paris."
IDLE_MS = 20
LONGEST_BEAT_S = 0.2

T = TypeVar("T")


def _of_prompt(job: Job) -> PromptLogprobs:
    """Token 65 is more likely than each of the prompt's own."""
    most = job.sampling.prompt_logprobs or 0
    found = [PositionLogprobs(-0.75, ((65, -0.25), (token, -0.75))[:most], 2) for token in job.prompt[1:]]
    return PromptLogprobs(job_id=job.job_id, first=1, logprobs=tuple(found))


@cache
def _text_model(card: bytes) -> TextModel:
    """The text model of an encoded card: cards that hold dictionaries have no hash."""
    return TextModel(msgspec.json.decode(card, type=ModelCard))


@dataclass
class HandWorker:
    """Generates the same words for every choice, one token per step, and then ends the choice."""

    redis: redis.asyncio.Redis
    card: ModelCard = field(default_factory=byte_level_card)
    worker_id: str = "hand"
    words: str = SAID
    # Tokens of each choice after which it waits; None: no limit.
    limit: int | None = None
    # Jobs that generate nothing for now.
    held: set[str] = field(default_factory=set)
    taking: bool = True
    lease_ms: int = 6_000
    blocks: int = 256
    lanes: dict[LaneName, Lane] = field(default_factory=lambda: dict(DEFAULT_LANES))
    step_weights: tuple[float, ...] = ()
    single_stream_ms: float = 0.0
    # Added to the duration of a step.
    step_s: float = 0.0
    # The one shard of its queue that it serves.
    shard: int = 0
    # Error with which each job fails before its first token; empty: none.
    fails: str = ""
    # Measures media, and gets those of jobs.
    engine: RemotePart | None = None
    leases: dict[str, Lease] = field(default_factory=dict)
    produced: dict[str, list[int]] = field(default_factory=dict)
    # Set once the registry has its first heartbeat.
    known: asyncio.Event = field(default_factory=asyncio.Event)
    seen: list[Lease] = field(default_factory=list)
    cancelled: list[str] = field(default_factory=list)
    # Output tokens per choice that a job may produce, if that was raised.
    granted: dict[str, int] = field(default_factory=dict)

    @property
    def script(self) -> Sequence[int]:
        """The tokens of every choice, including its end token."""
        return (*_text_model(msgspec.json.encode(self.card)).encode(self.words), self.card.eos_token_ids[0])

    def say(self, words: str) -> None:
        """Set the words of every choice from now on."""
        self.words = words
        self._script = self.script

    def renew(self) -> None:
        """Reset all settings, as for a new worker."""
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
        queue = queue_name(self.card.model, sha256)
        shard = shard_names(queue)[self.shard]
        self.queue = TakingQueue(self.redis, shard, self.lanes, lease_ms=self.lease_ms)

        self.outlet = Outlet(
            self,
            dial=partial(dial, self.worker_id, queue, registry),
            stores=[
                StoreCalls(
                    lambda items, serial: self.queue.report(self.worker_id, items, serial=serial),
                    partial(self.queue.release, self.worker_id),
                    self.queue.new_serial,
                )
            ],
            link=StoreLink(self.lease_ms / 1e3),
            patience_s=self.lease_ms / 2e3,
            remote=self.engine,
        )
        tasks = [asyncio.create_task(self._beat(registry, sha256)), asyncio.create_task(self.outlet.run())]
        try:
            await self._serve()
        finally:
            for task in tasks:
                task.cancel()
            try:
                await asyncio.gather(*tasks, return_exceptions=True)
            finally:  # also after another cancellation: a gateway must see that its links are gone
                await self.outlet.aclose()

    # worker.outlet.JobOwner.

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
        self._last_id = "0-0"
        self._may_find = True
        while True:
            news = await self._sure(partial(self.queue.read_news, self.worker_id, self._last_id, self._patience_ms()))
            self._last_id = news.last_id
            self._accept(news.leases)
            for control in news.controls:
                if isinstance(control, Cancel) and self.outlet.cancel(control.job_id):
                    self.cancel_job(control.job_id)
                elif isinstance(control, MeasureMedia):
                    self.outlet.measure(control)
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
        # The second turn offers no room, so that jobs wait while `taking` is False; work that may yield gets it called.
        offer = Yielding((), (), 1, free, pool)
        called = Capacity({}, {}, pool_tokens=pool, yielding=dict.fromkeys(LaneName, offer))
        for capacity in (room, called):
            turn = await self._sure(partial(self.queue.turn, self.worker_id, capacity, last_id=self._last_id))
            self._accept(turn.leases)

    def _accept(self, leases: Sequence[Lease]) -> None:
        """Start jobs that were leased by a turn, or at once when they were put between the two turns."""
        self.outlet.took(leases)
        pool = 16 * self.blocks
        for lease in leases:
            if lease.job.max_total_tokens > pool:  # as in an engine
                self.leases.pop(lease.job.job_id, None)
                self._end(lease, Outcome.FAILED, error=f"it needs more than {pool} tokens")

    def _step(self, lease: Lease) -> None:
        job, made = lease.job, self.produced[lease.job.job_id]
        if self.fails:
            self._end(self.leases.pop(job.job_id), Outcome.FAILED, error=self.fails)
            return
        if job.job_id in self.held or self._is_held(lease):
            return
        if not made and job.sampling.prompt_logprobs is not None:
            self.outlet.put([Publication(lease, (_of_prompt(job),))])
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
        """Return the next token of the script, which repeats for a job that ignores its end token."""
        return self._script[index % len(self._script)]

    def _end(self, lease: Lease, outcome: Outcome, error: str = "") -> None:
        end = Finished(
            job_id=lease.job.job_id, epoch=lease.epoch, outcome=outcome, error=error, worker_id=self.worker_id
        )
        self.outlet.put([Publication(lease, (end,), ends=outcome)])

    async def tell(self, event: Event) -> None:
        """Publish an event without tokens of a running job."""
        lease = self.leases[event.job_id]
        self.outlet.put([Publication(lease, (event,))])

    async def _sure(self, call: Callable[[], Awaitable[T]]) -> T:
        """Repeat a call until the store answers."""
        while True:
            try:
                return await call()
            except STORE_ERRORS:
                await asyncio.sleep(IDLE_MS / 1e3)
