"""The leases that this worker holds, and when it asks the queue for more: on events, never by polling."""

import asyncio
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from fairlane.scheduler.planner.steps import Capacity
from fairlane.scheduler.protocol.messages import Cancel, Job, Lease
from fairlane.scheduler.queue.rooms import remaining
from fairlane.scheduler.queue.types import Turn
from fairlane.store.bounds import JOBS_PER_CALL
from fairlane.worker.reports import Report

# Maximum number of messages kept; a message is early only while a `turn` is in progress.
MOST_EARLY = 1_000
MOST_TOO_LARGE = 1_000
# Of the pool: a fall by less is not worth a call.
SMALL_PART = 1 / 16
NO_CAPACITY = Capacity({}, {})


class HeldLeases:
    """Jobs that the store assigns to this worker: from a job's lease until the store has accepted its end.

    The control stream may overtake the reply of a `turn`, so messages are kept."""

    def __init__(self) -> None:
        self._epochs: dict[str, int] = {}
        # Of jobs that are not in the first shard.
        self._shards: dict[str, int] = {}
        self._early: deque[Cancel] = deque(maxlen=MOST_EARLY)
        # Jobs that were returned once because they exceed this worker's capacity.
        self._too_large: deque[str] = deque(maxlen=MOST_TOO_LARGE)

    def __len__(self) -> int:
        return len(self._epochs)

    def ids(self) -> list[str]:
        return list(self._epochs)

    def took(self, leases: Iterable[Lease], shard: int = 0) -> list[Cancel]:
        """Record leases of a shard, and return the early messages that concern them."""
        epochs = {lease.job.job_id: lease.epoch for lease in leases}
        self._epochs.update(epochs)
        if shard:
            self._shards |= dict.fromkeys(epochs, shard)
        return [message for message in self._early if message.job_id in epochs]

    def shard_of(self, job_id: str) -> int:
        return self._shards.get(job_id, 0)

    def known(self, leases: Iterable[Lease]) -> list[Lease]:
        return [lease for lease in leases if self._epochs.get(lease.job.job_id, -1) >= lease.epoch]

    def too_large(self, leases: Iterable[Lease], capacity: Capacity) -> list[Job]:
        large = [lease.job for lease in leases if not capacity.holds(lease.job.n, lease.job.max_total_tokens)]
        fresh = [job for job in large if job.job_id not in self._too_large]
        self._too_large.extend(job.job_id for job in fresh)
        return fresh

    def received(self, message: Cancel) -> bool:
        """True if the message concerns a held job. It is kept in any case, since applying it twice has no effect."""
        self._early.append(message)
        return message.job_id in self._epochs

    def epochs(self, job_ids: Iterable[str]) -> list[tuple[str, int]]:
        return [(job_id, self._epochs[job_id]) for job_id in job_ids if job_id in self._epochs]

    def holds(self, job_id: str, epoch: int) -> bool:
        return self._epochs.get(job_id) == epoch

    def remove(self, job_id: str, epoch: int) -> None:
        if self.holds(job_id, epoch):
            del self._epochs[job_id]
            self._shards.pop(job_id, None)


class Asked(NamedTuple):
    """What a worker asks the queue with."""

    capacity: Capacity
    # Jobs that it was called for.
    called: list[str]


class Intake:
    """The engine's free capacity, and whether asking the queue for jobs may find any.

    The queue knows the capacity of the last question, less the jobs that it leased since. Asking is worthwhile after a
    call, after a fall below half of that, so that no job comes that could not start, and after an increase if jobs
    wait or to twice as much; a smaller increase is mentioned with the next report. A full worker asks for jobs that
    running ones would yield to, once per turn, since each step starts one."""

    def __init__(self, lanes: Sequence[str]) -> None:
        self._lanes = lanes
        self.capacity = NO_CAPACITY
        # The capacity includes all leases that were given to the engine.
        self._is_known = False
        self._has_news = True
        # The queue knows of less than there is.
        self._has_grown = False
        # Jobs waited after the last answer.
        self._jobs_wait = False
        # What the queue knows.
        self.asked = NO_CAPACITY
        # The engine ended a turn since the last question.
        self._turned = False
        self._closed = False
        # Ask even without free capacity.
        self._must_ask = False
        # The last answer stopped at its bound.
        self._is_cut = False
        self._called: list[str] = []
        self._changed = asyncio.Event()

    def turned(self, report: Report, commands_sent: int) -> None:
        self._is_known = report.applied >= commands_sent
        self._turned = True
        self.offer(report.capacity)

    def offer(self, capacity: Capacity) -> None:
        self.capacity = capacity
        if self._is_known:
            self._compare()
        self._changed.set()

    def _compare(self) -> None:
        if exceeds(self.capacity, self.asked):
            self._has_grown = True
            self._has_news |= self._jobs_wait or _has_doubled(self.capacity, self.asked)
        if _is_less_than_half(self.capacity, self.asked):
            self._has_news = self._must_ask = True

    def hold(self) -> None:
        """Do not ask before the engine has reported its capacity again: another shard leased into it."""
        self._is_known = False

    def unread(self, asked: Capacity) -> None:
        """Ask again: the queue offers no room before the leases of what it was asked for before are read."""
        self.asked = asked
        self.called(())

    def woken(self) -> None:
        self._has_news = True
        self._changed.set()

    def called(self, job_ids: Iterable[str]) -> None:
        """Ask soon, even without free capacity: the queue has jobs for this worker and called no other."""
        self._called = [*self._called, *job_ids][-JOBS_PER_CALL:]
        self._must_ask = True
        self.woken()

    def given(self, leases: Sequence[Lease]) -> None:
        self._is_known = False
        self.asked = remaining(self.asked, [lease.job for lease in leases], self._lanes)
        # The queue has also subtracted the output of jobs that ran before, which is not known here.
        if self.asked.is_full or any(lease.started for lease in leases):
            self._has_news = True

    def answered(self, turn: Turn) -> None:
        """If the answer was cut, ask at once for the rest, with the capacity that it left. If jobs wait, ask for the
        capacity that was gained meanwhile."""
        self._is_cut, self._jobs_wait = turn.has_more, turn.jobs_wait
        if self._is_known:
            self._compare()
        self._changed.set()

    def close(self) -> None:
        self._closed = True
        self._changed.set()

    def open(self) -> None:
        self._closed, self._has_news = False, True
        self._changed.set()

    async def due(self) -> bool:
        """Wait until asking may find something. Return False while closed."""
        while not (self._closed or self.is_due):
            self._changed.clear()
            await self._changed.wait()
        return not self._closed

    def ask(self) -> Asked | None:
        """Return what to ask the queue with; None if it has nothing new."""
        if self._closed or not (self.is_due or (self._is_known and self._has_grown)):
            return None
        if self._is_known:
            self._has_news, self._has_grown, self._turned, self._must_ask = False, False, False, False
            self.asked = self.capacity
        else:
            self.asked = replace(self.asked, yielding={})
        asked = Asked(self.asked, self._called)
        self._is_cut, self._called = False, []
        return asked

    @property
    def is_due(self) -> bool:
        if self._is_cut:
            return True
        if not (self._is_known and self._has_news):
            return False
        if self._must_ask:
            return True
        return not self.capacity.is_empty and (self._turned or not self.capacity.is_full)


def exceeds(capacity: Capacity, other: Capacity) -> bool:
    """Return whether some job may fit into a capacity that does not fit into the other one."""
    return _yields_more(capacity, other) or any(
        own.sequences > theirs.sequences or own.kv_tokens > theirs.kv_tokens for own, theirs in _rooms(capacity, other)
    )


def _has_doubled(capacity: Capacity, other: Capacity) -> bool:
    return _yields_more(capacity, other) or any(
        own.sequences >= 2 * theirs.sequences or own.kv_tokens >= 2 * theirs.kv_tokens
        for own, theirs in _rooms(capacity, other)
    )


def _yields_more(capacity: Capacity, other: Capacity) -> bool:
    for lane, own in capacity.yielding.items():
        before = other.yielding.get(lane)
        if own.newcomer_tokens > (before.newcomer_tokens if before else 0.0):
            return True
    return False


class _Room(NamedTuple):
    sequences: int
    kv_tokens: int


def _rooms(capacity: Capacity, other: Capacity) -> Iterator[tuple[_Room, _Room]]:
    """Return the room of each lane in which a job could start, and what `other` has there."""
    for lane, sequences in capacity.sequences.items():
        own = _Room(sequences, capacity.kv_tokens.get(lane, 0))
        if all(own):
            yield own, _Room(other.sequences.get(lane, 0), other.kv_tokens.get(lane, 0))


def _is_less_than_half(capacity: Capacity, other: Capacity) -> bool:
    for lane, sequences in other.sequences.items():
        tokens = other.kv_tokens.get(lane, 0)
        if sequences > 0 and tokens > 0:
            left = capacity.kv_tokens.get(lane, 0) if capacity.sequences.get(lane, 0) > 0 else 0
            if 2 * left < tokens and tokens - left > other.most_tokens * SMALL_PART:
                return True
    return False
