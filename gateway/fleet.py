"""Which models there are, who serves them and how busy that is: read twice a second, asked without I/O.

The workers and their queues as operators see them: asked of the store each time, over all models.
"""

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol, TypeVar

from fairlane.gateway.errors import fleet_unknown, not_found
from fairlane.gateway.text.tokenizer import TextModel
from fairlane.scheduler.planner.costs import slowest_ms
from fairlane.scheduler.protocol.lanes import LaneName
from fairlane.scheduler.protocol.messages import ModelCard, WorkerStatus
from fairlane.scheduler.queue.registry import CARD_TTL_MS, model_of
from fairlane.scheduler.queue.types import LaneDepth
from fairlane.store.retry import every

log = logging.getLogger(__name__)

T = TypeVar("T")
REFRESH_EVERY_S = 0.5
ASKED_AT_ONCE = 50
"""Queues of one request; the store's other callers come in between."""
STALE_AFTER_S = 5.0
"""What was read this long ago says nothing about now."""


class Entry(Protocol):
    """A model's newest card."""

    @property
    def queue(self) -> str:
        """Name of the queue that its workers take from."""

    @property
    def card_sha256(self) -> str:
        """Name of the card."""


class Registry(Protocol):
    """Where workers announce themselves; `scheduler.queue.registry.RedisRegistry` is one."""

    async def workers(self) -> list[WorkerStatus]:
        """Every worker that is alive."""

    async def models(self) -> Mapping[str, Entry]:
        """Every model of the last seven days, by name."""

    async def queues(self) -> Mapping[str, str]:
        """Every queue that may hold something, and the name of its card."""

    async def card(self, sha256: str) -> ModelCard | None:
        """A card by its name."""


Depths = Mapping[LaneName, LaneDepth]


@dataclass(frozen=True)
class ServedModel:
    """One model as a request finds it. `workers` serve its queue now; there may be none. What is asked of them for each
    request is found out once."""

    name: str
    queue: str
    text: TextModel
    workers: tuple[WorkerStatus, ...]
    depths: Depths

    @property
    def context_length(self) -> int:
        """Tokens of prompt and output together."""
        return self.text.card.context_length

    @property
    def is_served(self) -> bool:
        """A worker takes its jobs."""
        return any(not worker.draining for worker in self.workers)

    @cached_property
    def widest(self) -> int | None:
        """Choices that the widest of those workers runs at once; None where there is none."""
        return max((worker.max_sequences for worker in self.workers if not worker.draining), default=None)

    @cached_property
    def single_stream_ms(self) -> float:
        """What a further token of a stream takes that is alone on the slowest of those workers; 0.0 while none has
        measured it."""
        return slowest_ms(self.workers)

    @cached_property
    def pool(self) -> int | None:
        """Tokens that the largest KV pool of those workers holds; None where there is none."""
        return max((worker.kv_tokens for worker in self.workers if not worker.draining), default=None)

    @property
    def longest(self) -> int:
        """Tokens of prompt and output that context and KV pool hold."""
        return self.context_length if self.pool is None else min(self.context_length, self.pool)


def together(found: Sequence[Depths]) -> dict[LaneName, LaneDepth]:
    """What waits in each lane, over all of these queues."""
    of_lane = {lane: [depths[lane] for depths in found if lane in depths] for lane in LaneName}
    return {
        lane: LaneDepth(
            queued=sum(depth.queued for depth in depths),
            oldest_wait_ms=max((depth.oldest_wait_ms for depth in depths), default=0),
            queued_tokens=sum(depth.queued_tokens for depth in depths),
        )
        for lane, depths in of_lane.items()
    }


class FleetCache:
    """The last picture of the fleet. Between refreshes nothing changes, and nothing here waits for the store."""

    def __init__(
        self,
        registry: Registry,
        depths: Callable[[Collection[str]], Awaitable[Mapping[str, Depths]]],
        *,
        read: Callable[[ModelCard], TextModel] = TextModel,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`depths`: how full these queues' lanes are. `read`: raises ValueError for a card that cannot be used."""
        self._registry = registry
        self._depths = depths
        self._read = read
        self._clock = clock
        self._texts: dict[str, TextModel] = {}
        self._refused: set[str] = set()
        self._models: dict[str, ServedModel] = {}
        self._workers: list[WorkerStatus] = []
        self._refreshed_at = -STALE_AFTER_S
        self._queues: Mapping[str, str] = {}
        self._seen_s: dict[tuple[str, str], float] = {}
        """When a model was last seen with a queue, by both names."""
        self._longest_context: int | None = None

    @property
    def is_fresh(self) -> bool:
        """The store answered lately."""
        return self._clock() - self._refreshed_at < STALE_AFTER_S

    @property
    def models(self) -> Mapping[str, ServedModel]:
        """Every model that was announced in the last seven days, by name."""
        return self._models

    def longest_context(self) -> int | None:
        """Tokens of the longest context that one of them has; None where none is known."""
        return self._longest_context

    def find(self, names: Collection[str] | None = None) -> list[ServedModel]:
        """Those of these names (None: all) that are known. Raises ApiError `quota_store_unavailable` where none is and
        the fleet was not read lately: a gateway that has just started must not deny what others serve."""
        wanted = self._models if names is None else names
        found = [self._models[name] for name in wanted if name in self._models]
        if not found and not self.is_fresh:
            raise fleet_unknown()
        return found

    @property
    def workers(self) -> list[WorkerStatus]:
        """Every worker that is alive."""
        return self._workers

    @property
    def queues(self) -> set[str]:
        """Every queue that a worker serves or a model's newest card names."""
        return {model.queue for model in self._models.values()} | {worker.queue for worker in self._workers}

    @property
    def orphans(self) -> dict[str, str]:
        """Every queue that may hold something and has no worker, and the name of its card."""
        served = {worker.queue for worker in self._workers}
        return {queue: sha256 for queue, sha256 in self._queues.items() if queue not in served}

    @property
    def unlisted(self) -> dict[str, str]:
        """Queues with a worker that the store has not in its set of queues, and the names of their cards."""
        return {each.queue: each.card_sha256 for each in self._workers if each.queue not in self._queues}

    def queues_of(self, name: str) -> set[str]:
        """Return the queues that may hold jobs for a model: those that the store lists, and those of the cards that
        were seen here in the last seven days, in case a failover lost the list."""
        seen = {queue for model, queue in self._seen_s if model == name}
        return seen | {queue for queue in self._queues if model_of(queue) == name}

    async def run(self, changed: Callable[[], None]) -> None:
        """Refresh until cancelled; `changed` is called after each try."""

        async def look() -> None:
            try:
                await self.refresh()
            finally:
                changed()

        await every(REFRESH_EVERY_S, "reading the fleet", look)

    async def refresh(self) -> None:
        """Read the fleet once. Raises what the store raises, and keeps the last picture."""
        workers, entries = await self._registry.workers(), await self._registry.models()
        queues = await self._registry.queues()
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
        depths = await self._depths({queue for queue, _ in texts.values()})
        models: dict[str, ServedModel] = {}
        for name, (queue, text) in texts.items():
            models[name] = ServedModel(name, queue, text, tuple(of_queue.get(queue, ())), depths[queue])
        self._models, self._workers, self._queues, self._refreshed_at = models, workers, queues, self._clock()
        self._longest_context = max((model.context_length for model in models.values()), default=None)
        self._forget({entry.card_sha256 for entry in entries.values()} | {worker.card_sha256 for worker in workers})
        seen = [(name, entry.queue) for name, entry in entries.items()]
        self._seen_s |= dict.fromkeys(seen + [(each.model, each.queue) for each in workers], self._refreshed_at)
        forget_s = self._refreshed_at - CARD_TTL_MS / 1e3
        self._seen_s = {pair: seen_s for pair, seen_s in self._seen_s.items() if seen_s > forget_s}

    def _forget(self, known: Collection[str]) -> None:
        """Drop the tokenizers of cards that no model and no worker names any more."""
        self._texts = {sha256: text for sha256, text in self._texts.items() if sha256 in known}
        self._refused.intersection_update(known)

    async def _text(self, sha256: str) -> TextModel | None:
        """The card's tokenizer, read once, in a thread: that takes a large one a good part of a second."""
        if sha256 in self._texts or sha256 in self._refused:
            return self._texts.get(sha256)
        try:
            card = await self._registry.card(sha256)
        except ValueError as error:  # of a worker that writes cards otherwise
            self._refused.add(sha256)
            log.error("the card %s cannot be read: %s", sha256, error)
            return None
        if card is None:
            return None
        try:
            self._texts[sha256] = await asyncio.to_thread(self._read, card)
        except ValueError as error:
            self._refused.add(sha256)
            log.error("model %s cannot be served: %s", card.model, error)
            return None
        if self._texts[sha256].template_problem is not None:
            log.warning("model %s serves no chat: %s", card.model, self._texts[sha256].template_problem)
        return self._texts[sha256]


def _serving(newest: Entry, workers: Iterable[WorkerStatus]) -> tuple[str, str]:
    """Return the queue and card to use of a model: the newest, unless only workers of an earlier card are there yet.
    `workers`: the model's."""
    serving = [(worker.queue, worker.card_sha256) for worker in workers if not worker.draining]
    wanted = (newest.queue, newest.card_sha256)
    return wanted if wanted in serving or not serving else min(serving)


class WorkerRegistry(Registry, Protocol):
    """Which also tells workers what to do."""

    async def drain(self, worker_id: str) -> bool:
        """Tell it to take no more jobs; False where there is no such worker."""

    async def undrain(self, worker_id: str) -> bool:
        """Tell it to take jobs again; False where there is no such worker."""


class WatchedQueue(Protocol):
    """What is asked of one model's queue; `scheduler.queue.redis_queue.RedisQueue` is one."""

    async def depths(self) -> Depths:
        """How full each lane is."""

    async def waiting(self, tenant: str) -> int:
        """How many requests of this tenant wait, over all lanes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Door:
    """One model as a request of one tenant finds it."""

    model: str
    queue: str
    context_length: int
    workers: Sequence[WorkerStatus]
    depths: Depths
    waiting: int
    """Requests of the tenant that wait, over all lanes."""


async def _ask_all(ask: Callable[[str], Awaitable[T]], queues: Iterable[str]) -> dict[str, T]:
    """Return each queue's answer, by name, asking ASKED_AT_ONCE of them at a time."""
    names, found = sorted(queues), dict[str, T]()
    for start in range(0, len(names), ASKED_AT_ONCE):
        asked = names[start : start + ASKED_AT_ONCE]
        found |= zip(asked, await asyncio.gather(*map(ask, asked)), strict=True)
    return found


class StoredFleet:
    """The whole fleet. Every call may raise what the store raises."""

    def __init__(self, registry: WorkerRegistry, fleet_cache: FleetCache, queue: Callable[[str], WatchedQueue]) -> None:
        """`queue`: a model's queue by its name."""
        self._registry = registry
        self._fleet_cache = fleet_cache
        self._queue = queue

    async def workers(self) -> list[WorkerStatus]:
        """Every worker that is alive."""
        return await self._registry.workers()

    async def drain(self, worker_id: str) -> bool:
        """Let it take no more jobs; False where there is no such worker."""
        return await self._registry.drain(worker_id)

    async def undrain(self, worker_id: str) -> bool:
        """Let it take jobs again; False where there is no such worker."""
        return await self._registry.undrain(worker_id)

    async def depths(self, model: str | None = None) -> Mapping[LaneName, LaneDepth]:
        """What waits in each lane for a model; None: for all of them. Raises ApiError where that model is not known."""
        queues = self._fleet_cache.queues
        if model is not None:
            queues = {name for name in queues if model_of(name) == model}
            if not queues:
                raise not_found("model") if self._fleet_cache.is_fresh else fleet_unknown()
        found = await _ask_all(lambda name: self._queue(name).depths(), queues)
        return together([*found.values()])

    async def open_requests(self, tenant: str, allowed: Collection[str] | None) -> list[Door]:
        """Each model that a tenant may use (None: all), as its next request finds it. Raises as `find` does."""
        models = self._fleet_cache.find(allowed)
        queues = {model.queue for model in models}
        depths = await _ask_all(lambda name: self._queue(name).depths(), queues)
        waiting = await _ask_all(lambda name: self._queue(name).waiting(tenant), queues)
        return [
            Door(
                model=model.name,
                queue=model.queue,
                context_length=model.context_length,
                workers=model.workers,
                depths=depths[model.queue],
                waiting=waiting[model.queue],
            )
            for model in models
        ]

    async def waiting(self, tenant: str) -> int:
        """How many requests of a tenant wait where most of them do: its `queued_requests` bounds each model's queue."""
        found = await _ask_all(lambda name: self._queue(name).waiting(tenant), self._fleet_cache.queues)
        return max(found.values(), default=0)
