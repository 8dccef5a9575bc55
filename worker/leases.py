"""The leases that this worker holds, and when it asks the queue for more: on news, never by polling."""

import asyncio
from collections import deque
from collections.abc import Iterable

from fairlane.scheduler.planner.steps import Capacity
from fairlane.scheduler.protocol.messages import Cancel, Grant, Lease
from fairlane.scheduler.queue.homes import HOME_MS
from fairlane.worker.reports import Report

MOST_EARLY = 1_000
"""Messages kept; one is early only while a `take` is under way."""
NO_CAPACITY = Capacity({}, {})


class HeldLeases:
    """Jobs that the store believes to be here: from a job's `take` until the store has accepted that it left.

    The control stream may overtake the answer of a `take`, also for a job that is held under an epoch that is over.
    So its messages are kept until a take has ended, and go to the engine behind the leases that the take brought.
    """

    def __init__(self) -> None:
        self._epochs: dict[str, int] = {}
        self._early: deque[Cancel | Grant] = deque(maxlen=MOST_EARLY)

    def __len__(self) -> int:
        return len(self._epochs)

    def ids(self) -> list[str]:
        return list(self._epochs)

    def took(self, leases: Iterable[Lease]) -> list[Cancel | Grant]:
        """A take has ended with these leases; returns the early messages that may be about them."""
        epochs = {lease.job.job_id: lease.epoch for lease in leases}
        self._epochs.update(epochs)
        early = [message for message in self._early if message.job_id in epochs]
        self._early.clear()
        return early

    def known(self, leases: Iterable[Lease]) -> list[Lease]:
        """The leases whose jobs are held already, under an epoch as new or newer."""
        return [lease for lease in leases if self._epochs.get(lease.job.job_id, -1) >= lease.epoch]

    def received(self, message: Cancel | Grant) -> bool:
        """Whether it is about a job held. It is kept in any case: obeying it twice does nothing."""
        self._early.append(message)
        return message.job_id in self._epochs

    def epochs(self, job_ids: Iterable[str]) -> list[tuple[str, int]]:
        """These jobs with the epoch under which each is held; without those that are not."""
        return [(job_id, self._epochs[job_id]) for job_id in job_ids if job_id in self._epochs]

    def let_go(self, job_id: str, epoch: int) -> None:
        """The store has accepted that a job left; a job that came again under another epoch stays."""
        if self._epochs.get(job_id) == epoch:
            del self._epochs[job_id]


class Intake:
    """What the engine could start next, and whether asking the queue for it may find anything.

    Asking is worth while after a wake-up, after a take that found something, and once there is more capacity than at
    the last take that found nothing, or a place for newcomers that there was none for then. While leases are on their
    way into the engine its capacity is unknown. A full worker asks for jobs that running ones would yield to, once a
    turn, since each step begins one.
    """

    def __init__(self) -> None:
        self._capacity = NO_CAPACITY
        self._known = False
        self._news = True
        self._asked = NO_CAPACITY
        self._turned = False
        """The engine ended a turn since the queue was last asked."""
        self._closed = False
        self._called = False
        """The queue waits for this worker to ask, whatever its capacity is now."""
        self._later: asyncio.TimerHandle | None = None
        self._changed = asyncio.Event()

    def turned(self, report: Report, told: int) -> None:
        """The engine ended a turn. `told`: the commands that it has been given in all."""
        self._capacity = report.capacity
        self._known = report.obeyed >= told
        self._turned = True
        if _exceeds(self._capacity, self._asked):
            self._news = True
        self._changed.set()

    def woken(self) -> None:
        """The queue may have new work."""
        if self._later is not None:
            self._later.cancel()
            self._later = None
        self._news = True
        self._changed.set()

    def called(self) -> None:
        """The queue has a job for this worker, and woke no other. It is asked even where no room is left: so it hears
        at once that it has to wake others."""
        self._called = True
        self.woken()

    def woken_after_another(self) -> None:
        """The queue may have new work, which another worker is to ask for first: this is news here HOME_MS later."""
        if self._later is None:
            self._later = asyncio.get_running_loop().call_later(HOME_MS / 1e3, self.woken)

    def took(self, leases: int) -> None:
        """A take brought so many leases."""
        if leases:
            self._known, self._news, self._asked = False, True, NO_CAPACITY

    def close(self) -> None:
        """Take no more, until it is opened again."""
        self._closed = True
        self._changed.set()

    def open(self) -> None:
        self._closed, self._news = False, True
        self._changed.set()

    async def worth_asking(self) -> Capacity | None:
        """Return once asking may find something, with what to ask for; None while closed."""
        while not (self._closed or self._is_worth_asking):
            self._changed.clear()
            await self._changed.wait()
        if self._closed:
            return None
        self._news, self._turned, self._called, self._asked = False, False, False, self._capacity
        return self._capacity

    @property
    def _is_worth_asking(self) -> bool:
        if not (self._known and self._news) or (self._capacity.is_empty and not self._called):
            return False
        return self._called or self._turned or not self._capacity.is_full


def _exceeds(capacity: Capacity, other: Capacity) -> bool:
    """Whether a lane has more room, or asks for newcomers that it did not ask for."""
    for lane, own in capacity.yielding.items():
        before = other.yielding.get(lane)
        if own.newcomer_tokens > (before.newcomer_tokens if before else 0.0):
            return True
    return any(count > other.sequences.get(lane, 0) for lane, count in capacity.sequences.items()) or any(
        tokens > other.kv_tokens.get(lane, 0) for lane, tokens in capacity.kv_tokens.items()
    )
