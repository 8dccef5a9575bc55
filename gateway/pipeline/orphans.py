"""Queues without workers: their jobs move to the model's new card, wait, or end.

Any gateway handles any of the store's queues. A job is moved only by its own gateway, since the jobs of a dead one are
cancelled long before."""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from fairlane.gateway.errors import unavailable
from fairlane.gateway.fleet import FleetCache, ServedModel
from fairlane.gateway.pipeline.delivery import Dispatcher
from fairlane.gateway.request.live_request import LiveJob
from fairlane.scheduler.admission.decide import Admitted, assess
from fairlane.scheduler.admission.open_requests import Request
from fairlane.scheduler.protocol.lanes import LaneName
from fairlane.scheduler.protocol.messages import Job, ModelCard
from fairlane.scheduler.queue.redis_queue import RedisQueue
from fairlane.scheduler.queue.registry import RedisRegistry
from fairlane.scheduler.queue.shards import queue_of, shard_for, shard_names
from fairlane.scheduler.queue.types import QueueError, QueuePresence
from fairlane.store.errors import STORE_ERRORS, StoreFailures
from fairlane.store.retry import every

log = logging.getLogger(__name__)

# The shorter of both is used: checking less than twice per lease cannot tell which workers had a chance to renew.
TEND_EVERY_S, ROUNDS_PER_LEASE = 1.0, 4
EMPTY_FOR_S = 60.0
RETRY_AFTER_S = 0.1


@dataclass(slots=True)
class Orphans:
    """A background loop over the queues without workers.

    A job without a token moves to the newest card of its model with the same tokenizer. Without such a card it ends
    `unavailable` in the latency lane, and waits in the throughput lane. A job that has started ends `unavailable` in
    the latency lane; in the throughput lane it waits for a worker of its own card."""

    registry: RedisRegistry
    fleet_cache: FleetCache
    dispatcher: Dispatcher
    # A queue by name, without opening a line.
    calls: Callable[[str], RedisQueue]
    lease_s: float
    # How long a queue without workers waits for a new one.
    grace_ms: int
    # Whether this gateway also handles queues without jobs of its own.
    is_elected: Callable[[], bool] = lambda: True
    clock: Callable[[], float] = time.monotonic
    _empty: dict[str, float] = field(default_factory=dict, init=False)

    async def run(self) -> None:
        period_s = min(TEND_EVERY_S, self.lease_s / ROUNDS_PER_LEASE)
        await every(period_s, "tending queues without workers", self.tend)

    async def tend(self) -> None:
        orphans, failures = self.fleet_cache.orphans, StoreFailures()
        unlisted = self.fleet_cache.unlisted if self.is_elected() else {}
        for name, sha256 in unlisted.items():  # after a failover, or with workers of an older release
            with failures:
                await self.registry.note_queue(name, sha256)
        own = {queue_of(job.queue) for job in self.dispatcher.jobs.values()}
        self._empty = {name: until_s for name, until_s in self._empty.items() if name in orphans}
        for name, sha256 in sorted(orphans.items()):
            is_ours = self.is_elected() or name in own
            if is_ours and self._empty.get(name, 0.0) <= self.clock():
                with failures:
                    await self._tend(name, sha256)
        failures.raise_last()

    async def _tend(self, name: str, sha256: str) -> None:
        presences = {await self._tend_shard(shard, sha256) for shard in shard_names(name)}
        if presences == {QueuePresence.REMOVED}:
            await self.registry.drop_queue(name)
        elif presences <= {QueuePresence.REMOVED, QueuePresence.EMPTY}:
            self._empty[name] = self.clock() + EMPTY_FOR_S

    async def _tend_shard(self, name: str, sha256: str) -> QueuePresence:
        queue = self.calls(name)
        await queue.reclaim()
        presence = await queue.orphan(self.grace_ms)
        if presence is QueuePresence.ORPHANED:
            jobs = [job for job in self.dispatcher.jobs.values() if job.queue == name]
            card = await self.registry.card(sha256) if jobs else None
            moved = sum([await self._help(job, queue, card) for job in jobs])
            if moved:
                log.info("moved %d requests from %s, which has no workers, to a newer card", moved, name)
        return presence

    async def _help(self, job: LiveJob, queue: RedisQueue, card: ModelCard | None) -> bool:
        message = job.message
        if message is None or not job.awaits_end:
            return False
        if job.begun:
            if message.lane is LaneName.LATENCY and job.stream is None:
                job.fail(unavailable())
            return False
        target = self.fleet_cache.models.get(job.request.ask.model)
        if (
            card is None
            or target is None
            or target.queue == queue_of(job.queue)
            or not _could_go(message, card, target)
        ):
            if message.lane is LaneName.LATENCY:
                job.fail(unavailable())
            return False
        is_out = await queue.withdraw(job.id, self.grace_ms)
        return is_out and not job.settled and await self._move(job, message, target)

    async def _move(self, job: LiveJob, message: Job, target: ServedModel) -> bool:
        new = shard_for(target.queue, job.request.ask.root)
        old, open_requests, request = job.queue, self.dispatcher.open_requests, _asked(message, _waited_ms(job))
        requests, now_ms = open_requests.at(target.queue), open_requests.now_ms
        answer = assess(request, workers=target.workers, open_requests=requests, now_ms=now_ms)
        guaranteed = message.guaranteed and isinstance(answer, Admitted) and answer.guaranteed
        if not await self._put(job, msgspec.structs.replace(message, guaranteed=guaranteed), new):
            if not await self._put(job, message, old):
                job.fail(unavailable())
            return False
        open_requests.at(old).withdraw(job.id, open_requests.now_ms)
        if job.settled:  # meanwhile, and its cancellation may have come before `put`
            await self.dispatcher.queue(new).cancel(job.id)
        else:
            requests.enter(job.id, request, guaranteed=guaranteed, now_ms=open_requests.now_ms)
        return True

    async def _put(self, job: LiveJob, message: Job, queue: str) -> bool:
        job.message = message
        self.dispatcher.move(job, queue)
        while not job.settled:
            try:
                await self.dispatcher.queue(queue).put(message, waited_ms=round(_waited_ms(job)))
                break
            except QueueError:
                return False
            except STORE_ERRORS:
                await asyncio.sleep(RETRY_AFTER_S)
        return True


def _could_go(message: Job, card: ModelCard, target: ServedModel) -> bool:
    new = target.text.card
    reads_alike = (card.tokenizer_json, card.eos_token_ids) == (new.tokenizer_json, new.eos_token_ids)
    tokens = message.max_total_tokens
    holds = (
        target.is_served and tokens <= min(new.context_length, target.pool or 0) and message.n <= (target.widest or 0)
    )
    return reads_alike and holds


def _waited_ms(job: LiveJob) -> float:
    return (asyncio.get_running_loop().time() - job.queued_s) * 1e3


def _asked(message: Job, waited_ms: float) -> Request:
    return Request(
        lane=message.lane,
        tenant=message.tenant,
        prompt_tokens=len(message.prompt),
        max_tokens=message.max_tokens,
        max_tokens_stated=message.guaranteed,  # else only the first token was guaranteed, which does not depend on it
        choices=message.n,
        deadline_ms=None if message.deadline_ms is None else message.deadline_ms - waited_ms,
        ttft_ms=None if message.hard_ttft_ms is None else message.hard_ttft_ms - waited_ms,
    )
