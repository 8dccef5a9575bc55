"""Resumes a request with an idempotency key from the tokens that workers handed in for its earlier runs.

A run that was not answered (it ended with 5xx, or its gateway died) is charged for its tokens. The next run begins with
them, and is charged only for what exceeds the earlier charges (`quotas/lua/lib/writes.lua`)."""

import asyncio
import logging
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import msgspec

from fairlane.gateway.identity.auth import Caller
from fairlane.gateway.model_text.token_stream import TokenStream
from fairlane.gateway.pipeline.delivery import Dispatcher
from fairlane.gateway.pipeline.prepare import Plan
from fairlane.gateway.pipeline.settlement import recorded
from fairlane.gateway.request.live_request import LiveJob, job_ids, total
from fairlane.quotas.store import Once, QuotaStore, Resumption
from fairlane.scheduler.planner.sequence import finish_reason
from fairlane.scheduler.protocol.messages import Finished, FinishReason, Job, Outcome, TokenDelta
from fairlane.scheduler.queue.redis_queue import RedisQueue
from fairlane.scheduler.queue.shards import shard_for
from fairlane.scheduler.queue.types import JobRecord, JobState, Published

log = logging.getLogger(__name__)

# Interval for polling a cancelled job's end, which its worker reports within a step.
ASK_AGAIN_S = 0.02


class Head(msgspec.Struct, frozen=True):
    """The tokens with which one choice begins."""

    token_ids: tuple[int, ...]
    # Tokens that are charged: all, or those up to the end of a stop string.
    counted: int
    stopped: bool

    def end(self, message: Job) -> FinishReason | None:
        return "stop" if self.stopped else finish_reason(message, list(self.token_ids))

    def __repr__(self) -> str:
        return f"Head({len(self.token_ids)} tokens, counted={self.counted})"


# Of one job's choices; empty without any.
Heads = tuple[Head, ...]
_NOTHING = Head((), 0, stopped=False)


@dataclass(frozen=True, slots=True)
class Earlier:
    """Finds the heads of a request's choices, and ends the runs that produced them.

    A request starts from scratch if the model's queue has no record of the run, its prompt was another (a chat template
    may contain the date), a job does not end in time, or log-probabilities are requested: records do not have them."""

    quotas: QuotaStore
    dispatcher: Dispatcher
    patience_s: float

    async def heads(self, caller: Caller, once: Once, plan: Plan, messages: Sequence[Job]) -> list[Heads]:
        """Return each job's heads from the run with the most tokens; empty if the request starts from scratch.

        Raises STORE_ERRORS."""
        first = messages[0]
        if first.sampling.logprobs is not None or first.sampling.prompt_logprobs is not None:
            return []
        until_s = asyncio.get_running_loop().time() + min(self.patience_s, _due_s(first))
        found = [await self._heads_of(run, caller.root, once, plan, messages, until_s) for run in caller.runs]
        furthest = max(found, key=_published, default=[])
        if not _published(furthest):
            log.info("job %s: the repeated request starts from scratch", first.job_id)
            return []
        log.info("job %s: the repeated request resumes from %d tokens", first.job_id, _published(furthest))
        return furthest

    async def _heads_of(
        self, run: str, root: str, once: Once, plan: Plan, messages: Sequence[Job], until_s: float
    ) -> list[Heads]:
        ids, name = job_ids(run, len(messages)), shard_for(plan.model.queue, root)
        queue = self.dispatcher.queue(name)
        records = [await _ended(queue, job_id, until_s) for job_id in ids]
        known = [record for record in records if record is not None]
        if not known or any(record.state is not JobState.ENDED for record in known):
            return []
        heads, charges = [], []
        for message, job_id, record in zip(messages, ids, records, strict=True):
            own = _read(message, plan, await queue.published(job_id) if record is not None else None)
            heads.append(own)
            if record is not None:
                counted = tuple([head.counted for head in own])
                charges.append(recorded(replace(record, generated=sum(counted)) if own else record))
                self.dispatcher.forget(name, job_id, until_ms=once.until_ms)
        if len(known) == len(ids):  # else a reaper settles it, which searches other queues too
            await self.quotas.settle(root, run, total(charges))
        return heads


def resumption(jobs: Iterable[tuple[Job, Heads]]) -> Resumption:
    """Return the figures of a resumed request for its reservation."""
    going, ended = list[int](), list[int]()
    for message, heads in jobs:
        for head in heads or (_NOTHING,) * message.n:
            (going if head.end(message) is None else ended).append(head.counted)
    published = sum(going) + sum(ended)
    return Resumption(published=published, ended=sum(ended), going=len(going), longest=max(going, default=0))


def begin(job: LiveJob, message: Job, heads: Heads) -> bool:
    """Deliver the heads to a job as if they had just arrived. Return whether all its choices are finished by them."""
    if not heads:
        return False
    ends = [head.end(message) for head in heads]
    for choice, (head, end) in enumerate(zip(heads, ends, strict=True)):
        if head.token_ids:
            finish = None if head.stopped else end  # the reader finds the stop string itself
            ids = head.token_ids
            delta = TokenDelta(
                job_id=job.id, epoch=0, choice=choice, first_index=0, token_ids=ids, finish_reason=finish
            )
            job.accept(delta)
    is_over = None not in ends
    if is_over:
        job.accept(Finished(job_id=job.id, epoch=0, outcome=Outcome.FINISHED))
    return is_over


async def _ended(queue: RedisQueue, job_id: str, until_s: float) -> JobRecord | None:
    loop, record = asyncio.get_running_loop(), await queue.cancel(job_id)
    while record is not None and record.state is not JobState.ENDED and loop.time() < until_s:
        await asyncio.sleep(ASK_AGAIN_S)
        record = await queue.record(job_id)
    return record


def _read(message: Job, plan: Plan, published: Published | None) -> Heads:
    if published is None or published.prompt_print != message.prompt_print or len(published.token_ids) != message.n:
        return ()
    return tuple(_head(message, plan.reader(), token_ids) for token_ids in published.token_ids)


def _head(message: Job, reader: TokenStream, token_ids: tuple[int, ...]) -> Head:
    piece = reader.push(token_ids)
    if not piece.stopped and finish_reason(message, list(token_ids)) is not None:
        piece = reader.flush()
    return Head(token_ids, piece.counted, piece.stopped)


def _due_s(message: Job) -> float:
    stated = [ms for ms in (message.deadline_ms, message.hard_ttft_ms) if ms is not None]
    return min(stated, default=math.inf) / 1e3


def _published(heads: Sequence[Heads]) -> int:
    return sum(len(head.token_ids) for own in heads for head in own)
