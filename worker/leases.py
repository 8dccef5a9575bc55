"""The leases that this worker holds, and when it asks the queue for more: on events, never by polling."""

import asyncio
from collections import deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from fairlane.scheduler.planner.steps import Capacity
from fairlane.scheduler.protocol.messages import Cancel, Job, Lease
from fairlane.scheduler.queue.rooms import remaining
from fairlane.store.bounds import PER_CALL
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
        self._early: deque[Cancel] = deque(maxlen=MOST_EARLY)
        # Jobs that were returned once because they exceed this worker's capacity.
        self._too_large: deque[str] = deque(maxlen=MOST_TOO_LARGE)

    def __len__(self) -> int:
        return len(self._epochs)

    def ids(self) -> list[str]:
        return list(self._epochs)

    def took(self, leases: Iterable[Lease]) -> list[Cancel]:
        """Record leases, and return the early messages that concern them."""
        epochs = {lease.job.job_id: lease.epoch for lease in leases}
        self._epochs.update(epochs)
        return [message for message in self._early if message.job_id in epochs]

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


class Asked(NamedTuple):
    """What a worker asks the queue with."""

    capacity: Capacity
    # Jobs that it was called for.
    called: list[str]


class Intake:
    """The engine's free capacity, and whether asking the queue for jobs may find any.

    The queue knows the capacity of the last question, less the jobs that it leased since. Asking is worthwhile after a
    call, after an increase beyond that, and after a fall below half of it, so that no job comes that could not start. A
    full worker asks for jobs that running ones would yield to, once per turn, since each step starts one."""

    def __init__(self, lanes: Sequence[str]) -> None:
        """`lanes`: most urgent first."""
        self._lanes = lanes
        self.capacity = NO_CAPACITY
        # The capacity includes all leases that were given to the engine.
        self._is_known = False
        self._has_news = True
        # What the queue knows.
        self._asked = NO_CAPACITY
        # The engine ended a turn since the last question.
        self._turned = False
        self._closed = False
        # Ask even without free capacity.
        self._must_ask = False
        self._called: list[str] = []
        self._changed = asyncio.Event()

    def turned(self, report: Report, commands_sent: int) -> None:
        self.capacity = report.capacity
        self._is_known = report.applied >= commands_sent
        self._turned = True
        if _exceeds(self.capacity, self._asked):
            self._has_news = True
        if self._is_known and _is_less_than_half(self.capacity, self._asked):
            self._has_news = self._must_ask = True
        self._changed.set()

    def woken(self) -> None:
        self._has_news = True
        self._changed.set()

    def called(self, job_ids: Iterable[str]) -> None:
        """Ask soon, even without free capacity: the queue has jobs for this worker and called no other."""
        self._called = [*self._called, *job_ids][-PER_CALL:]
        self._must_ask = True
        self.woken()

    def given(self, leases: Sequence[Lease]) -> None:
        self._is_known = False
        self._asked = remaining(self._asked, [lease.job for lease in leases], self._lanes)
        if len(leases) >= PER_CALL or self._asked.is_full:
            self._has_news = True

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
        if self._closed or not self.is_due:
            return None
        asked = Asked(self.capacity, self._called)
        self._has_news, self._turned, self._must_ask, self._called = False, False, False, []
        self._asked = self.capacity
        return asked

    @property
    def is_due(self) -> bool:
        if not (self._is_known and self._has_news):
            return False
        if self._must_ask:
            return True
        return not self.capacity.is_empty and (self._turned or not self.capacity.is_full)


def _exceeds(capacity: Capacity, other: Capacity) -> bool:
    for lane, own in capacity.yielding.items():
        before = other.yielding.get(lane)
        if own.newcomer_tokens > (before.newcomer_tokens if before else 0.0):
            return True
    return any(count > other.sequences.get(lane, 0) for lane, count in capacity.sequences.items()) or any(
        tokens > other.kv_tokens.get(lane, 0) for lane, tokens in capacity.kv_tokens.items()
    )


def _is_less_than_half(capacity: Capacity, other: Capacity) -> bool:
    for lane, sequences in other.sequences.items():
        tokens = other.kv_tokens.get(lane, 0)
        if sequences > 0 and tokens > 0:
            left = capacity.kv_tokens.get(lane, 0) if capacity.sequences.get(lane, 0) > 0 else 0
            if 2 * left < tokens and tokens - left > other.most_tokens * SMALL_PART:
                return True
    return False
