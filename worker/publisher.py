"""Publication to the store: one call per gateway at a time, in order, retried until the store has accepted it.

Later steps are merged into the next call. A retry has the same serial number, so that the store records it once."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial, reduce

import msgspec

from fairlane.scheduler.protocol.messages import Event, TokenDelta
from fairlane.scheduler.queue.types import Publication
from fairlane.store.retry import StoreLink
from fairlane.worker.reports import ByGateway, token_runs

# Maximum number of events kept while the store is unavailable: above it, the engine pauses.
MOST_EVENTS = 32_768

# Takes the gateway, publications and a serial number, which a retry repeats; returns the ids of refused jobs.
Publish = Callable[[str, Sequence[Publication], str], Awaitable[set[str]]]


class Publisher:
    """Buffers, merges and publishes. Used only on the event loop."""

    def __init__(
        self,
        publish: Publish,
        link: StoreLink,
        *,
        on_settled: Callable[[Sequence[Publication], set[str]], None],
        on_full: Callable[[bool], None],
        most_events: int = MOST_EVENTS,
    ) -> None:
        self._publish = publish
        self._link = link
        self._on_settled = on_settled
        self._on_full = on_full
        self._most_events = most_events
        self._pending: dict[str, dict[tuple[str, int], list[Publication]]] = {}
        self._events = 0  # including those being sent
        self.is_full = False
        self._serial = 0
        self._filled = asyncio.Event()
        self._empty = asyncio.Event()
        self._empty.set()

    def put(self, by_gateway: ByGateway) -> None:
        for gateway_id, publications in by_gateway.items():
            job_ids = self._pending.setdefault(gateway_id, {})
            for publication in publications:
                job_ids.setdefault((publication.job_id, publication.epoch), []).append(publication)
                self._count(1 + len(publication.events))
        if self._pending:
            self._filled.set()
            self._empty.clear()

    async def run(self) -> None:
        while True:
            await self._filled.wait()
            self._filled.clear()
            batch, self._pending = self._pending, {}
            sent = self._events
            await asyncio.gather(*(self._send(gateway_id, job_ids) for gateway_id, job_ids in batch.items()))
            self._count(-sent)
            if not self._pending:
                self._empty.set()

    async def emptied(self) -> None:
        await self._empty.wait()

    async def _send(self, gateway_id: str, job_ids: Mapping[tuple[str, int], list[Publication]]) -> None:
        left = [reduce(merged, steps) for steps in job_ids.values()]
        while left:  # one epoch per job and call, since the reply names only jobs
            oldest: dict[str, Publication] = {}
            left = [each for each in left if oldest.setdefault(each.job_id, each) is not each]
            publications = [*oldest.values()]
            self._serial += 1
            call = partial(self._publish, gateway_id, publications, str(self._serial))
            self._on_settled(publications, await self._link.persist("publish", call))

    def _count(self, events: int) -> None:
        self._events += events
        if self.is_full != (self._events > self._most_events):
            self.is_full = not self.is_full
            self._on_full(self.is_full)


def merged(older: Publication, newer: Publication) -> Publication:
    """Merge two publications of the same job and epoch."""
    events = list(older.events)
    for event in newer.events:
        _append(events, event)
    return newer._replace(
        events=tuple(events), tokens=token_runs(events), cost=older.cost + newer.cost, ends=newer.ends or older.ends
    )


def _append(events: list[Event], event: Event) -> None:
    if isinstance(event, TokenDelta):
        for index in range(len(events) - 1, -1, -1):
            latest = events[index]
            if getattr(latest, "choice", event.choice) != event.choice:
                continue
            if isinstance(latest, TokenDelta):
                events[index] = _joined(latest, event)
                return
            break
    events.append(event)


def _joined(first: TokenDelta, second: TokenDelta) -> TokenDelta:
    return msgspec.structs.replace(
        first,
        token_ids=first.token_ids + second.token_ids,
        logprobs=first.logprobs + second.logprobs,
        finish_reason=second.finish_reason,
    )
