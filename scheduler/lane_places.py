"""The places of one lane of the in-memory queue: who waits, in which order, and what each tenant has had."""

import heapq
import math
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice, takewhile

from scheduler.fairness import Counters
from scheduler.lanes import Lane
from scheduler.messages import Job
from scheduler.outcomes import Outcome
from scheduler.queue_types import (
    LOOKS_PER_TAKE,
    NEVER_MS,
    OWED_LIMIT,
    QUANTUM_COST,
    TENANTS_PER_TAKE,
    JobState,
    due_after_ms,
    hard_end_ms,
    hard_first_ms,
    place_ms,
)


@dataclass(slots=True, kw_only=True)
class Entry:
    """A job and all that happened to it. Times are milliseconds of the queue's one clock."""

    job: Job
    arrived_ms: int
    queued_ms: int
    """When it was last put in the queue: its arrival, or its return from a worker."""
    granted_until: int
    generated: list[list[int]] = field(default_factory=list)
    state: JobState = JobState.QUEUED
    outcome: Outcome | None = None
    epoch: int = 0
    worker_id: str = ""
    taken_ms: int = 0
    cancelled: bool = False
    returned: bool = False
    losses: int = 0
    claim_us: int = 0
    """What is booked of the workers' time for its promise, while it has no token."""
    bucket_ms: int = 0
    """Where it is booked."""
    credit: float = 0.0
    """Weighted tokens charged when it was taken and not yet computed."""

    @property
    def due_ms(self) -> int:
        """When its first token is due."""
        return self.arrived_ms + due_after_ms(self.job)

    @property
    def produced(self) -> int:
        """Published tokens of all choices."""
        return sum(map(len, self.generated))

    @property
    def tokens(self) -> int:
        """KV tokens that its next step holds: what its worker has to have room for."""
        return len(self.job.prompt) + self.produced + self.job.n

    @property
    def provisional_cost(self) -> float:
        """Weighted tokens that taking it is charged: nobody pays again for what was computed before."""
        prompt = 0 if self.produced else len(self.job.prompt)
        return prompt + self.job.n * QUANTUM_COST

    def expires_ms(self, max_wait_ms: float) -> float:
        """When it ends if it still waits: at its hard deadline; where it states none, after the lane's longest wait."""
        hard_ms = hard_end_ms(self.job) if self.produced else min(hard_end_ms(self.job), hard_first_ms(self.job))
        return self.arrived_ms + hard_ms if hard_ms < NEVER_MS else self.queued_ms + max_wait_ms


Place = tuple[float, str]
"""(milliseconds, flight_id): orders a list as a Redis sorted set does, ties by id."""


class Places:
    """Who waits in one lane. A tenant is backlogged while it has a job here."""

    def __init__(self, lane: Lane, window: float) -> None:
        self.lane = lane
        self.counters = Counters(window)
        self.owed = 0.0
        """Weighted tokens by which the lane is behind its share floor (negative: ahead). Nobody's wait pays for what
        the lane had beyond it before: where nobody waited, the others had what they asked for."""
        self.level = 0.0
        """Where tenants stood when last nobody waited: who has asked for less since then is in no credit for it."""
        self._queues: dict[str, list[Place]] = {}
        self._waiting: list[Place] = []
        self._returned: list[Place] = []
        self._guaranteed: list[Place] = []
        self._vouched: Counter[str] = Counter()
        """By tenant: weighted tokens that it was guaranteed and waits for."""
        self._followers: Counter[str] = Counter()
        """By tenant: waiting jobs that are not the first of their request."""

    def enter(self, entry: Entry) -> None:
        """Seat a job among its tenant's own: a returned one before all that never ran, what is guaranteed before what
        is not, then the earliest due first."""
        tenant, flight = entry.job.tenant, entry.job.flight_id
        if not self._queues:
            self.level = self.counters.floor(())
            self.owed = max(0.0, self.owed)
        if tenant not in self._queues:
            self.counters.lift(tenant, self._queues)
        insort(self._queues.setdefault(tenant, []), _place(entry))
        insort(self._waiting, (entry.queued_ms, flight))
        self._followers[tenant] += entry.job.follows
        if entry.returned:
            insort(self._returned, _place(entry))
        elif entry.job.guaranteed:
            insort(self._guaranteed, _place(entry))
            self._vouched[tenant] += _promised_cost(entry.job)

    def leave(self, entry: Entry) -> None:
        """Give up a job's seat, because it was taken or has ended."""
        tenant, flight = entry.job.tenant, entry.job.flight_id
        _remove(self._queues[tenant], _place(entry))
        if not self._queues[tenant]:
            del self._queues[tenant]
        _remove(self._waiting, (entry.queued_ms, flight))
        self._followers[tenant] -= entry.job.follows
        if entry.returned:
            _remove(self._returned, _place(entry))
        elif entry.job.guaranteed:
            _remove(self._guaranteed, _place(entry))
            self._vouched[tenant] -= _promised_cost(entry.job)

    @property
    def depth(self) -> int:
        """Jobs that wait."""
        return len(self._waiting)

    def oldest_wait_ms(self, now_ms: int) -> int:
        """Since when the longest waiting job waits; 0 in an empty lane."""
        return now_ms - int(self._waiting[0][0]) if self._waiting else 0

    def requests_of(self, tenant: str) -> int:
        """Requests of this tenant that wait: those whose first job does."""
        return len(self._queues.get(tenant, ())) - self._followers[tenant]

    def position(self, entry: Entry) -> int:
        """1 + the tenant's own jobs ahead of this waiting one."""
        return 1 + bisect_left(self._queues[entry.job.tenant], _place(entry))

    def fresh(self, tenant: str, count: int) -> list[str]:
        """The first of the tenant's flights that never ran, at most so many."""
        queue = self._queues[tenant]
        first = bisect_left(queue, (0, ""))
        return [flight for _, flight in queue[first : first + count]]

    def least_served(self) -> list[str]:
        """The backlogged tenants with the lowest counters, at most TENANTS_PER_TAKE."""
        return heapq.nsmallest(TENANTS_PER_TAKE, self._queues, key=lambda tenant: (self.counters.value(tenant), tenant))

    def returned(self) -> Iterator[str]:
        """The first of the flights that came back from a worker."""
        return _first(self._returned)

    def all_returned(self) -> list[str]:
        """All flights that came back from a worker, by when they are due."""
        return [flight for _, flight in self._returned]

    def guaranteed(self) -> Iterator[str]:
        """The first due of the guaranteed flights that never ran, whosever they are."""
        return _first(self._guaranteed)

    def promoted(self, now_ms: int) -> Iterator[str]:
        """The eldest of the flights that have waited half the lane's maximum: they are ordered one lane higher."""
        old_ms = now_ms - self.lane.long_wait_ms
        return _first(takewhile(lambda place: place[0] <= old_ms, self._waiting))

    def least_counter(self) -> float:
        """The smallest counter of a tenant that waits here."""
        return self.counters.floor(self._queues)

    def lead(self, tenant: str, weight: float) -> float:
        """Weighted tokens by which a tenant is ahead of the least served other that waits here; what it was promised
        and waits for counts. Below all where no other waits."""
        least = min((self.counters.value(other) for other in self._queues if other != tenant), default=math.inf)
        counter = self.counters.value(tenant)
        if tenant not in self._queues:
            counter = max(counter, least)
        return counter + self._vouched[tenant] / weight - least if least < math.inf else -math.inf

    def standing(self, tenant: str) -> float:
        """A tenant's counter, or the level where that is higher."""
        return max(self.level, self.counters.value(tenant))

    def window(self, prefill_ms: float) -> float:
        """Θ for a worker that computes a prompt's token in `prefill_ms`."""
        return self.lane.window(self.counters.window, prefill_ms)

    def is_owed(self, entry: Entry) -> bool:
        """The share floor is behind by what this job costs: it goes before the order."""
        return self.lane.share_floor > 0 and self.owed >= min(entry.provisional_cost, OWED_LIMIT)

    def serve(self, tokens: float, own: float) -> None:
        """Account for `tokens` of service to all lanes, `own` of them to this one."""
        due = self.lane.share_floor * tokens if self.depth else 0.0
        self.owed = max(-OWED_LIMIT, min(OWED_LIMIT, self.owed + due - own))


def _place(entry: Entry) -> Place:
    return place_ms(entry.due_ms, guaranteed=entry.job.guaranteed, returned=entry.returned), entry.job.flight_id


def _first(places: Iterable[Place]) -> Iterator[str]:
    """As many as are looked at."""
    return (flight for _, flight in islice(places, LOOKS_PER_TAKE))


def _remove(places: list[Place], place: Place) -> None:
    del places[bisect_left(places, place)]


def _promised_cost(job: Job) -> int:
    """Weighted tokens that taking it for the first time is charged, whatever it goes on from."""
    return len(job.prompt) + job.n * int(QUANTUM_COST)
