"""What the store has not accepted yet: one publish call per gateway at a time, in order, retried until it is heard.

While a call is under way the steps that follow are merged into the next one. A call that failed is repeated
unchanged and under the same serial number: the store records it once.

The leases in the engine's hands, and what a turn of it means for each: publications under the lease's epoch.
"""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial, reduce

from fairlane.scheduler.planner.steps import Ended
from fairlane.scheduler.protocol.messages import Event, Finished, Lease, TokenDelta
from fairlane.scheduler.queue.types import Publication
from fairlane.store.retry import StoreLink
from fairlane.worker.engine.engine import StepReport
from fairlane.worker.updates import Change, LaneTokens, Left, Parts, Report, Turn

MOST_EVENTS = 32_768
"""Events kept for a store that is away; with more the engine stops stepping. About a minute of a small machine."""

Publish = Callable[[str, Sequence[Publication], str], Awaitable[set[str]]]
"""Gateway, publications and the call's serial number in, refused jobs out. A repeat has the same serial."""


class Publisher:
    """Buffers, merges and publishes. Used from the event loop only."""

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
        self._events = 0  # those being sent included
        self._full = False
        self._serial = 0
        self._filled = asyncio.Event()
        self._empty = asyncio.Event()
        self._empty.set()

    @property
    def is_full(self) -> bool:
        """The store has been away for too long: the engine does not step."""
        return self._full

    def put(self, parts: Parts) -> None:
        """Take one step's publications over."""
        for gateway_id, publications in parts.items():
            job_ids = self._pending.setdefault(gateway_id, {})
            for publication in publications:
                job_ids.setdefault((publication.job_id, publication.epoch), []).append(publication)
                self._count(1 + len(publication.events))
        if self._pending:
            self._filled.set()
            self._empty.clear()

    async def run(self) -> None:
        """Publish for ever."""
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
        """Return when all that was put has been published."""
        await self._empty.wait()

    async def _send(self, gateway_id: str, job_ids: Mapping[tuple[str, int], list[Publication]]) -> None:
        left = [reduce(merged, steps) for steps in job_ids.values()]
        while left:  # one epoch of each job a call: an answer names jobs, and an old epoch's is not the newer's
            oldest: dict[str, Publication] = {}
            left = [each for each in left if oldest.setdefault(each.job_id, each) is not each]
            publications = [*oldest.values()]
            self._serial += 1
            call = partial(self._publish, gateway_id, publications, str(self._serial))
            self._on_settled(publications, await self._link.persist("publish", call))

    def _count(self, events: int) -> None:
        self._events += events
        if self._full != (self._events > self._most_events):
            self._full = not self._full
            self._on_full(self._full)


def merged(older: Publication, newer: Publication) -> Publication:
    """Two publications of one job and epoch as one."""
    events = list(older.events)
    for event in newer.events:
        _append(events, event)
    return newer._replace(
        events=tuple(events),
        tokens=token_runs(events),
        cost=older.cost + newer.cost,
        ends=newer.ends or older.ends,
    )


def token_runs(events: Iterable[Event]) -> tuple[tuple[int, int, tuple[int, ...]], ...]:
    """(choice, first index, ids) of all tokens, one unbroken run per choice: what the store records."""
    runs: dict[int, tuple[int, int, tuple[int, ...]]] = {}
    for event in events:
        if isinstance(event, TokenDelta):
            choice, token_ids = event.choice, event.token_ids
            run = runs.get(choice)
            runs[choice] = (choice, event.first_index, token_ids) if run is None else (*run[:2], run[2] + token_ids)
    return (*runs.values(),)


def _append(events: list[Event], event: Event) -> None:
    """Add an event; tokens that follow on their choice's latest event join it."""
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
    return TokenDelta(
        job_id=first.job_id,
        epoch=first.epoch,
        choice=first.choice,
        first_index=first.first_index,
        token_ids=first.token_ids + second.token_ids,
        logprobs=first.logprobs + second.logprobs,
        finish_reason=second.finish_reason,
        cached_tokens=first.cached_tokens,
    )


class Serials:
    """Kept by the event loop, which hears of the engine's turns in order: while it makes publications of one, the
    engine computes the next. A job leaves with its end, or silently."""

    def __init__(self, worker_id: str) -> None:
        self._worker_id = worker_id
        self._leases: dict[str, Lease] = {}

    def report(self, turn: Turn) -> Report:
        """What the engine's next turn means."""
        parts: dict[str, list[Publication]] = defaultdict(list)
        for change in turn.changes:
            self._change(change, parts)
        tokens: dict[str, LaneTokens] = {}
        if turn.step is not None:
            tokens = self._count(turn.step)  # before jobs that ended leave
            self._say(turn.step.events, turn.step.outcome.charges, turn.step.outcome.ended, parts)
        return Report(turn.obeyed, parts, turn.capacity, turn.jobs, turn.load, turn.step, tokens, turn.audited)

    def _change(self, change: Change, parts: dict[str, list[Publication]]) -> None:
        match change:
            case Lease():
                self._leases[change.job.job_id] = change
            case Ended():
                self._say((), {}, (change,), parts)
            case Left():
                self._leases.pop(change.job_id, None)

    def _count(self, step: StepReport) -> dict[str, LaneTokens]:
        """A step's tokens by lane."""
        leases, prefill = self._leases, Counter[str]()
        for row in step.plan.rows:
            if len(row.token_ids) > 1:
                prefill[leases[row.seq.job_id].job.lane] += len(row.token_ids)
        output: Counter[str] = Counter([leases[produced.seq.job_id].job.lane for produced in step.outcome.produced])
        return {lane: LaneTokens(prefill[lane], output[lane]) for lane in prefill.keys() | output.keys()}

    def _say(
        self,
        events: Iterable[Event],
        charges: Mapping[str, float],
        ended: Iterable[Ended],
        parts: dict[str, list[Publication]],
    ) -> None:
        """Add to `parts` what these mean for each job; those that ended leave."""
        said: dict[str, list[Event]] = defaultdict(list)
        for event in events:
            said[event.job_id].append(event)
        ends = {end.job_id: end for end in ended}
        for job_id in dict.fromkeys([*said, *charges, *ends]):
            lease = self._leases.get(job_id)
            if lease is not None:
                publication = self._publication(lease, said[job_id], charges.get(job_id, 0.0), ends.get(job_id))
                parts[lease.job.gateway_id].append(publication)
        for job_id in ends:
            self._leases.pop(job_id, None)

    def _publication(self, lease: Lease, said: list[Event], cost: float, end: Ended | None) -> Publication:
        events = (*said,) if end is None else (*said, self._finished(lease, end))
        return Publication(
            job_id=lease.job.job_id,
            epoch=lease.epoch,
            events=events,
            tokens=token_runs(events),
            cost=cost,
            ends=None if end is None else end.outcome,
        )

    def _finished(self, lease: Lease, end: Ended) -> Finished:
        return Finished(
            job_id=lease.job.job_id,
            epoch=lease.epoch,
            outcome=end.outcome,
            error=end.error,
            cached_tokens=end.cached_tokens,
            preemptions=end.preemptions,
            worker_id=self._worker_id,
        )
