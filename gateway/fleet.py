"""The fleet: models, their workers and their load."""

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeVar

from fairlane.gateway.errors import fleet_unknown, not_found
from fairlane.gateway.model_text.tokenizer import TextModel
from fairlane.scheduler.planner.costs import slowest_ms
from fairlane.scheduler.protocol.lanes import LaneName
from fairlane.scheduler.protocol.messages import ModelCard, WorkerStatus
from fairlane.scheduler.queue.redis_queue import RedisQueue
from fairlane.scheduler.queue.registry import CARD_TTL_MS, ModelEntry, RedisRegistry, model_of
from fairlane.scheduler.queue.shards import shard_names
from fairlane.scheduler.queue.types import LaneDepth
from fairlane.store.retry import every

log = logging.getLogger(__name__)

T = TypeVar("T")
REFRESH_EVERY_S = 0.5
# Queues read in one burst, so that other callers of the store are served in between.
ASKED_AT_ONCE = 50
STALE_AFTER_S = 5.0
# After a longer gap between two reads, heartbeats of living workers may have expired while the store was away.
AWAY_S = 3 * REFRESH_EVERY_S
Depths = Mapping[LaneName, LaneDepth]


@dataclass(frozen=True)
class ServedModel:
    """One model at the time of a request, with the workers that serve its queue."""

    name: str
    queue: str
    text: TextModel
    workers: tuple[WorkerStatus, ...]
    depths: Depths

    @property
    def context_length(self) -> int:
        return self.text.card.context_length

    @property
    def is_served(self) -> bool:
        return any(not worker.draining for worker in self.workers)

    @cached_property
    def widest(self) -> int | None:
        """Largest number of choices that one of the workers runs at once; None without workers."""
        return max((worker.max_sequences for worker in self.workers if not worker.draining), default=None)

    @cached_property
    def single_stream_ms(self) -> float:
        """Time per token of a stream that runs alone on the slowest worker; 0.0 before the first measurement."""
        return slowest_ms(self.workers)

    @cached_property
    def pool(self) -> int | None:
        """Tokens in the largest KV pool of the workers; None without workers."""
        return _pool(self.workers)

    @property
    def longest(self) -> int:
        """The tokens that a worker holds of one choice."""
        return self.context_length if self.pool is None else min(self.context_length, self.pool)


def _pool(workers: Iterable[WorkerStatus]) -> int | None:
    return max((worker.kv_tokens for worker in workers if not worker.draining), default=None)


def together(found: Sequence[Depths]) -> dict[LaneName, LaneDepth]:
    """Add up the lanes' depths over several queues."""
    of_lane = {lane: [depths[lane] for depths in found if lane in depths] for lane in LaneName}
    return {
        lane: LaneDepth(
            queued=sum(depth.queued for depth in depths),
            oldest_wait_ms=max((depth.oldest_wait_ms for depth in depths), default=0),
            queued_tokens=sum(depth.queued_tokens for depth in depths),
        )
        for lane, depths in of_lane.items()
    }


def queued(lane: LaneName, depth: LaneDepth, workers: Iterable[WorkerStatus]) -> int:
    """Return how many of a lane's jobs wait: in the queue, or taken by a worker that has not begun them."""
    # Preempted sequences have begun, although a worker counts them as waiting too.
    taken = sum(max(0, worker.waiting.get(lane, 0) - worker.preempted.get(lane, 0)) for worker in workers)
    return depth.queued + taken


@dataclass(eq=False)
class FleetCache:
    """The latest snapshot of the fleet. It changes only with a refresh, and reading it needs no I/O.

    `depths` reads the depths of the queues. `lease_s`: how long a heartbeat counts. `read` raises ValueError for a card
    that cannot be used.

    When the store was away, the workers known before count for one more lease: their heartbeats may have expired, and
    the next ones are still to come."""

    registry: RedisRegistry
    depths: Callable[[Collection[str]], Awaitable[Mapping[str, Depths]]]
    lease_s: float
    read: Callable[[ModelCard], TextModel] = TextModel
    clock: Callable[[], float] = time.monotonic
    _texts: dict[str, TextModel] = field(default_factory=dict, init=False)
    _refused: set[str] = field(default_factory=set, init=False)
    models: Mapping[str, ServedModel] = field(default_factory=dict, init=False)
    workers: list[WorkerStatus] = field(default_factory=list, init=False)
    longest_context: int | None = field(default=None, init=False)
    takes_media: bool = field(default=False, init=False)
    _refreshed_at: float = field(default=-STALE_AFTER_S, init=False)
    # Until then, workers of the last read count without a heartbeat.
    _expected_until_s: float = field(default=-STALE_AFTER_S, init=False)
    _queues: Mapping[str, str] = field(default_factory=dict, init=False)
    _seen_s: dict[tuple[str, str], float] = field(default_factory=dict, init=False)

    @property
    def is_fresh(self) -> bool:
        return self.clock() - self._refreshed_at < STALE_AFTER_S

    def find(self, names: Collection[str] | None = None) -> list[ServedModel]:
        """Return the known models among `names` (None: all).

        Raises ApiError `quota_store_unavailable` if none is known and the fleet was not read recently: a gateway that
        has just started must not deny models that others serve."""
        wanted = self.models if names is None else names
        found = [self.models[name] for name in wanted if name in self.models]
        if not found and not self.is_fresh:
            raise fleet_unknown()
        return found

    @property
    def queues(self) -> set[str]:
        return {model.queue for model in self.models.values()} | {worker.queue for worker in self.workers}

    @property
    def shards(self) -> set[str]:
        return {shard for queue in self.queues for shard in shard_names(queue)}

    @property
    def orphans(self) -> dict[str, str]:
        """Every queue that may hold jobs but has no worker, with the sha256 of its card."""
        served = {worker.queue for worker in self.workers}
        return {queue: sha256 for queue, sha256 in self._queues.items() if queue not in served}

    @property
    def unlisted(self) -> dict[str, str]:
        """Queues with a worker that are missing from the store's set of queues, with the sha256 of their cards."""
        return {each.queue: each.card_sha256 for each in self.workers if each.queue not in self._queues}

    def queues_of(self, name: str) -> set[str]:
        """Return the queues that may hold jobs for a model: listed in the store, or seen here in the last week."""
        seen = {queue for model, queue in self._seen_s if model == name}
        return seen | {queue for queue in self._queues if model_of(queue) == name}

    async def run(self, changed: Callable[[], None]) -> None:
        """Refresh until cancelled. `changed` is called after each attempt, successful or not."""

        async def look() -> None:
            try:
                await self.refresh()
            finally:
                changed()

        await every(REFRESH_EVERY_S, "reading the fleet", look)

    async def refresh(self) -> None:
        found, entries = await self.registry.workers(), await self.registry.models()
        queues = await self.registry.queues()
        workers = self._with_expected(found)
        of_model: dict[str, list[WorkerStatus]] = defaultdict(list)
        of_queue: dict[str, list[WorkerStatus]] = defaultdict(list)
        for worker in workers:
            of_model[worker.model].append(worker)
            of_queue[worker.queue].append(worker)
        texts: dict[str, tuple[str, TextModel]] = {}
        for name, newest in sorted(entries.items()):
            queue, sha256 = _serving(newest, of_model.get(name, ()))
            text = await self._text(sha256)
            if text is not None:
                texts[name] = queue, text
        depths = await self.depths({queue for queue, _ in texts.values()})
        self.models = {
            name: ServedModel(name, queue, text, tuple(of_queue.get(queue, ())), depths[queue])
            for name, (queue, text) in texts.items()
        }
        self.workers, self._queues, self._refreshed_at = workers, queues, self.clock()
        self.longest_context = max((model.context_length for model in self.models.values()), default=None)
        self.takes_media = any(model.text.card.media_forms for model in self.models.values())
        known = {entry.card_sha256 for entry in entries.values()} | {worker.card_sha256 for worker in workers}
        self._texts = {sha256: text for sha256, text in self._texts.items() if sha256 in known}
        self._refused &= known
        seen = [(name, entry.queue) for name, entry in entries.items()]
        self._seen_s |= dict.fromkeys(seen + [(each.model, each.queue) for each in found], self._refreshed_at)
        forget_s = self._refreshed_at - CARD_TTL_MS / 1e3
        self._seen_s = {pair: seen_s for pair, seen_s in self._seen_s.items() if seen_s > forget_s}

    def _with_expected(self, found: list[WorkerStatus]) -> list[WorkerStatus]:
        now_s, heard = self.clock(), {worker.worker_id for worker in found}
        if self.workers and now_s - self._refreshed_at > AWAY_S:
            self._expected_until_s = now_s + self.lease_s
        if now_s >= self._expected_until_s:
            return found
        return [*found, *(worker for worker in self.workers if worker.worker_id not in heard)]

    async def _text(self, sha256: str) -> TextModel | None:
        """Return the card's tokenizer. It is loaded once, in a thread, because a large one takes most of a second."""
        if sha256 in self._texts or sha256 in self._refused:
            return self._texts.get(sha256)
        try:
            card = await self.registry.card(sha256)
        except ValueError as error:  # written by an incompatible worker
            self._refused.add(sha256)
            log.error("the card %s cannot be read: %s", sha256, error)
            return None
        if card is None:
            return None
        try:
            self._texts[sha256] = await asyncio.to_thread(self.read, card)
        except ValueError as error:
            self._refused.add(sha256)
            log.error("model %s cannot be served: %s", card.model, error)
            return None
        if self._texts[sha256].template_problem is not None:
            log.warning("model %s serves no chat: %s", card.model, self._texts[sha256].template_problem)
        return self._texts[sha256]


def _serving(newest: ModelEntry, workers: Iterable[WorkerStatus]) -> tuple[str, str]:
    serving = [(worker.queue, worker.card_sha256) for worker in workers if not worker.draining]
    wanted = (newest.queue, newest.card_sha256)
    return wanted if wanted in serving or not serving else min(serving)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelQueueView:
    """The state of one model, for a request of one tenant."""

    model: str
    queue: str
    context_length: int
    workers: Sequence[WorkerStatus]
    depths: Depths
    # Waiting requests of the tenant, over all lanes.
    waiting: int

    @property
    def longest(self) -> int:
        """The tokens that a worker holds of one choice."""
        pool = _pool(self.workers)
        return self.context_length if pool is None else min(self.context_length, pool)


async def _ask_all(ask: Callable[[str], Awaitable[T]], queues: Iterable[str]) -> dict[str, list[T]]:
    """Return the answers of each queue's shards."""
    shards = [(queue, shard) for queue in sorted(queues) for shard in shard_names(queue)]
    found: dict[str, list[T]] = defaultdict(list)
    for start in range(0, len(shards), ASKED_AT_ONCE):
        asked = shards[start : start + ASKED_AT_ONCE]
        answers = await asyncio.gather(*[ask(shard) for _, shard in asked])
        for (queue, _), answer in zip(asked, answers, strict=True):
            found[queue].append(answer)
    return found


@dataclass(eq=False)
class StoredFleet:
    """The whole fleet, read from the store by every call, for operators. Every call may raise store errors."""

    registry: RedisRegistry
    fleet_cache: FleetCache
    queue: Callable[[str], RedisQueue]

    async def workers(self) -> list[WorkerStatus]:
        return await self.registry.workers()

    async def drain(self, worker_id: str) -> bool:
        return await self.registry.drain(worker_id)

    async def undrain(self, worker_id: str) -> bool:
        return await self.registry.undrain(worker_id)

    async def depths(self, model: str | None = None) -> Mapping[LaneName, LaneDepth]:
        """Return the depth of each lane for one model (None: all). Raises ApiError for an unknown model."""
        queues = self.fleet_cache.queues
        if model is not None:
            queues = {name for name in queues if model_of(name) == model}
            if not queues:
                raise not_found("model") if self.fleet_cache.is_fresh else fleet_unknown()
        found = await _ask_all(lambda name: self.queue(name).depths(), queues)
        return together([depths for of_queue in found.values() for depths in of_queue])

    async def open_requests(self, tenant: str, allowed: Collection[str] | None) -> list[ModelQueueView]:
        models = self.fleet_cache.find(allowed)
        queues = {model.queue for model in models}
        depths = await _ask_all(lambda name: self.queue(name).depths(), queues)
        waiting = await _ask_all(lambda name: self.queue(name).waiting(tenant), queues)
        return [
            ModelQueueView(
                model=model.name,
                queue=model.queue,
                context_length=model.context_length,
                workers=model.workers,
                depths=together(depths[model.queue]),
                waiting=sum(waiting[model.queue]),
            )
            for model in models
        ]

    async def waiting(self, tenant: str) -> int:
        """Return the tenant's waiting requests in its fullest queue: `queued_requests` limits each queue separately."""
        found = await _ask_all(lambda name: self.queue(name).waiting(tenant), self.fleet_cache.queues)
        return max(map(sum, found.values()), default=0)
