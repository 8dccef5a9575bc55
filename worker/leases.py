"""The leases that this worker holds, and when it asks the queue for more: on events, never by polling."""

import asyncio
from collections import deque
from collections.abc import Iterable

from fairlane.scheduler.planner.steps import Capacity
from fairlane.scheduler.protocol.messages import Cancel, Job, Lease
from fairlane.scheduler.queue.prefix_affinity import AFFINITY_DELAY_MS
from fairlane.worker.reports import Report

# Maximum number of messages kept; a message is early only while a `take` is in progress.
MOST_EARLY = 1_000
MOST_TOO_LARGE = 1_000
NO_CAPACITY = Capacity({}, {})


class HeldLeases:
    """Jobs that the store assigns to this worker: from a job's `take` until the store has accepted its end.

    The control stream may overtake the reply of a `take`. Messages are therefore kept until a take has ended."""

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
        """Record the leases of a take, and return the early messages that may concern them."""
        epochs = {lease.job.job_id: lease.epoch for lease in leases}
        self._epochs.update(epochs)
        early = [message for message in self._early if message.job_id in epochs]
        self._early.clear()
        return early

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


class Intake:
    """The engine's free capacity, and whether asking the queue for jobs may find any.

    Asking is worthwhile after a wake-up, a take that found something, or an increase of capacity since one that did
    not. A full worker asks for jobs that running ones would yield to, once per turn, since each step starts one."""

    def __init__(self) -> None:
        self._capacity = NO_CAPACITY
        self._known = False
        self._news = True
        self._asked = NO_CAPACITY
        # The engine ended a turn since the last take.
        self._turned = False
        self._closed = False
        # The queue waits for this worker to ask, whatever its capacity.
        self._called = False
        self._later: asyncio.TimerHandle | None = None
        self._changed = asyncio.Event()

    def turned(self, report: Report, commands_sent: int) -> None:
        self._capacity = report.capacity
        self._known = report.applied >= commands_sent
        self._turned = True
        if _exceeds(self._capacity, self._asked):
            self._news = True
        self._changed.set()

    def woken(self) -> None:
        if self._later is not None:
            self._later.cancel()
            self._later = None
        self._news = True
        self._changed.set()

    def called(self) -> None:
        """Ask soon, even without free capacity: the queue has a job for this worker and woke no other."""
        self._called = True
        self.woken()

    def woken_after_another(self) -> None:
        if self._later is None:
            self._later = asyncio.get_running_loop().call_later(AFFINITY_DELAY_MS / 1e3, self.woken)

    def took(self, leases: int) -> None:
        if leases:
            self._known, self._news, self._asked = False, True, NO_CAPACITY

    def close(self) -> None:
        self._closed = True
        self._changed.set()

    def open(self) -> None:
        self._closed, self._news = False, True
        self._changed.set()

    async def worth_asking(self) -> Capacity | None:
        """Wait until asking may find something, and return the capacity to ask for; None while closed."""
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
    for lane, own in capacity.yielding.items():
        before = other.yielding.get(lane)
        if own.newcomer_tokens > (before.newcomer_tokens if before else 0.0):
            return True
    return any(count > other.sequences.get(lane, 0) for lane, count in capacity.sequences.items()) or any(
        tokens > other.kv_tokens.get(lane, 0) for lane, tokens in capacity.kv_tokens.items()
    )
