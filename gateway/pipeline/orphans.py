"""Queues whose workers went: what waits there goes to the model's new card, waits for its own, or ends.

Any gateway tends any such queue: the store has the set of them. What can be put elsewhere is moved by the gateway whose
request it is, since the jobs of a dead one are cancelled long before. The rules:

    started, latency        ends `unavailable` (the queue does that)
    without a token         to the newest card of the same name that workers serve, if its tokenizer is the same: at its
                            age, with its deadlines and its budget; its guarantee is given anew, else it is best effort
    the same, no such card  latency: ends `unavailable`; throughput: waits, and is looked at again
    started, throughput     waits for a worker of its own card, until its deadline or its lane's longest wait
"""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from fairlane.gateway.errors import unavailable
from fairlane.gateway.fleet import FleetCache, ServedModel
from fairlane.gateway.pipeline.admission import AllOpenRequests
from fairlane.gateway.pipeline.delivery import Dispatcher
from fairlane.gateway.request.live_request import LiveJob
from fairlane.scheduler.admission.decide import Admitted, assess
from fairlane.scheduler.admission.open_requests import Request
from fairlane.scheduler.protocol.lanes import LaneName
from fairlane.scheduler.protocol.messages import Job, ModelCard
from fairlane.scheduler.queue.types import QueueError, QueuePresence
from fairlane.store.errors import STORE_ERRORS, StoreFailures
from fairlane.store.retry import every

log = logging.getLogger(__name__)

TEND_EVERY_S, ROUNDS_PER_LEASE = 1.0, 4
"""The shorter of the two: who looks less often than each half lease cannot tell whether workers could have renewed."""
EMPTY_FOR_S = 60.0
"""A queue without jobs and workers is looked at again after so long."""
RETRY_AFTER_S = 0.1


class OrphanQueue(Protocol):
    """What is done with an orphan; `scheduler.queue.redis_queue.RedisQueue` is one. Any call may raise
    STORE_ERRORS.
    """

    async def reclaim(self) -> int:
        """Take jobs back from dead workers."""

    async def orphan(self, grace_ms: int) -> QueuePresence:
        """What has become of it; ends what cannot wait."""

    async def withdraw(self, job_id: str, grace_ms: int) -> bool:
        """Take out a job that has no token. Return whether the queue does not hold it."""


class CardRegistry(Protocol):
    """Where queues are known; `scheduler.queue.registry.RedisRegistry` is one."""

    async def card(self, sha256: str) -> ModelCard | None:
        """A card by its name."""

    async def note_queue(self, queue: str, sha256: str) -> None:
        """This queue may hold something."""

    async def drop_queue(self, queue: str) -> None:
        """Nothing is left of this queue."""


@dataclass(slots=True)
class Orphans:
    """One loop over the queues that no worker serves. Nothing here is on a request's way."""

    registry: CardRegistry
    fleet_cache: FleetCache
    dispatcher: Dispatcher
    open_requests: AllOpenRequests
    calls: Callable[[str], OrphanQueue]
    """A queue by its name, without a line to it."""
    lease_s: float
    """Of a worker."""
    grace_s: float
    is_elected: Callable[[], bool] = lambda: True
    """Whether this gateway tends queues of which it has no job."""
    clock: Callable[[], float] = time.monotonic
    _empty: dict[str, float] = field(default_factory=dict, init=False)
    """Until when these are not looked at."""

    async def run(self) -> None:
        """Until cancelled."""
        period_s = min(TEND_EVERY_S, self.lease_s / ROUNDS_PER_LEASE)
        await every(period_s, "tending queues without workers", self.tend)

    async def tend(self) -> None:
        """One round. Raises STORE_ERRORS."""
        orphans, failures = self.fleet_cache.orphans, StoreFailures()
        unlisted = self.fleet_cache.unlisted if self.is_elected() else {}
        for name, sha256 in unlisted.items():  # workers of an older release; a store that failed over
            with failures:
                await self.registry.note_queue(name, sha256)
        own = {job.queue for job in self.dispatcher.jobs.values()}
        self._empty = {name: until_s for name, until_s in self._empty.items() if name in orphans}
        for name, sha256 in sorted(orphans.items()):
            is_ours = self.is_elected() or name in own
            if is_ours and self._empty.get(name, 0.0) <= self.clock():
                with failures:
                    await self._tend(name, sha256)
        failures.raise_last()

    async def _tend(self, name: str, sha256: str) -> None:
        queue = self.calls(name)
        await queue.reclaim()
        match await queue.orphan(self._grace_ms):
            case QueuePresence.REMOVED:
                await self.registry.drop_queue(name)
            case QueuePresence.EMPTY:
                self._empty[name] = self.clock() + EMPTY_FOR_S
            case QueuePresence.ORPHANED:
                jobs = [job for job in self.dispatcher.jobs.values() if job.queue == name]
                card = await self.registry.card(sha256) if jobs else None
                moved = sum([await self._help(job, queue, card) for job in jobs])
                if moved:
                    log.info("%d requests went on from %s, which nobody serves, to a newer card", moved, name)

    async def _help(self, job: LiveJob, queue: OrphanQueue, card: ModelCard | None) -> bool:
        """Whether it was moved."""
        message, waits = job.message, job.finished is None and not job.settled
        if message is None or not waits or job.begun:
            return False
        target = self.fleet_cache.models.get(job.request.ask.model)
        if card is None or target is None or target.queue == job.queue or not _could_go(message, card, target):
            if message.lane is LaneName.LATENCY:
                job.fail(unavailable())
            return False
        is_out = await queue.withdraw(job.id, self._grace_ms)
        return is_out and not job.settled and await self._move(job, message, target)

    async def _move(self, job: LiveJob, message: Job, target: ServedModel) -> bool:
        """Put a withdrawn job into another queue, or back where that is full; whether it went."""
        old, door, request = job.queue, self.open_requests.at(target.queue), _asked(message, _waited_ms(job))
        guaranteed = message.guaranteed and self._is_promised(request, target)
        if not await self._put(job, msgspec.structs.replace(message, guaranteed=guaranteed), target.queue):
            if not await self._put(job, message, old):
                job.fail(unavailable())
            return False
        self.open_requests.at(old).withdraw(job.id, self.open_requests.now_ms)
        if job.settled:  # meanwhile, and maybe before it was there to be cancelled
            await self.dispatcher.queue(target.queue).cancel(job.id)
        else:
            door.enter(job.id, request, guaranteed=guaranteed, now_ms=self.open_requests.now_ms)
        return True

    async def _put(self, job: LiveJob, message: Job, queue: str) -> bool:
        """However long the store takes, unless the request ends meanwhile. False where its lane is full there."""
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

    def _is_promised(self, request: Request, target: ServedModel) -> bool:
        """The workers of its new card keep its deadline, by what their door has let in."""
        door, now_ms = self.open_requests.at(target.queue), self.open_requests.now_ms
        answer = assess(request, workers=target.workers, open_requests=door, now_ms=now_ms)
        return isinstance(answer, Admitted) and answer.guaranteed

    @property
    def _grace_ms(self) -> int:
        return round(self.grace_s * 1e3)


def _could_go(message: Job, card: ModelCard, target: ServedModel) -> bool:
    """Another card's workers understand this job, and one of them could hold it."""
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
    """What a door is asked for a job that has waited so long elsewhere."""
    return Request(
        lane=message.lane,
        tenant=message.tenant,
        prompt_tokens=len(message.prompt),
        max_tokens=message.max_tokens,
        max_tokens_stated=message.guaranteed,  # or only the first token was promised, which does not depend on it
        choices=message.n,
        deadline_ms=None if message.deadline_ms is None else message.deadline_ms - waited_ms,
        ttft_ms=None if message.hard_ttft_ms is None else message.hard_ttft_ms - waited_ms,
    )
