"""The order in which one `take` hands out jobs: (owed, lane, returned, outside Θ, class, urgency, counter, due,
job_id).

A job's class and urgency are those of `scheduler.planner.ordering`, as far as the queue can tell: it knows prompts,
and from the worker how long a token of one takes to compute there. What is guaranteed is never outside Θ: a promise
holds whatever its tenant has had since.

Compared for each job taken are the heads of the TENANTS_PER_TAKE tenants of a lane whose counters are lowest at that
moment, and whosever they are, the ELDERS_PER_TAKE guaranteed jobs that are due first, and as many of the eldest that
have waited long; so that a take costs the same however many wait. The least served tenant is always among them, and who
is outside its window comes after it: the bound of `scheduler.planner.ordering` holds for any such number. What the
limit costs: of more tenants that are backlogged, those served more wait for their turn however urgent their work is,
and room that fits none of the heads compared stays free.

Workers may be unequal: what could never end in the one that asks is no candidate there, and the next of the same list
stands for it, that no worker idles beside work that it could run. LOOKS_PER_TAKE bounds how many are looked at.
"""

import heapq
import math
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice, takewhile

from fairlane.scheduler.planner.ordering import Counters, prospects
from fairlane.scheduler.planner.steps import Capacity, Yielding
from fairlane.scheduler.protocol.lanes import Lane
from fairlane.scheduler.protocol.messages import Job, Outcome
from fairlane.scheduler.queue.share_floor import ShareFloor
from fairlane.scheduler.queue.types import (
    ELDERS_PER_TAKE,
    LOOKS_PER_TAKE,
    NEVER_MS,
    OWED_LIMIT,
    QUANTUM_COST,
    SUSPECT_LOSSES,
    TENANTS_PER_TAKE,
    JobState,
    due_after_ms,
    hard_end_ms,
    hard_first_ms,
    place_ms,
)


@dataclass(slots=True, kw_only=True)
class QueuedJob:
    """A job's record in the in-memory queue. Times are milliseconds of the queue's one clock."""

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
    prefixes: bytes = b""
    """Digests of its prompt's beginnings."""
    home: str = ""
    """The worker that was to ask for it first when it was put; empty: none."""
    called: str = ""
    """The worker that was called for it when it was put; empty: every worker was woken."""
    losses: int = 0
    claim_us: int = 0
    """What is booked of the workers' time for its promise, while it has no token."""
    bucket_ms: int = 0
    """Where it is booked."""
    credit: float = 0.0
    """Weighted tokens charged when it was taken and not yet computed."""
    marks: tuple[int, ...] = ()
    """By which each lane's share floor knows that charge (share_floor.py)."""

    @property
    def due_ms(self) -> int:
        return self.arrived_ms + due_after_ms(self.job)

    @property
    def produced(self) -> int:
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
"""(milliseconds, job_id): orders a list as a Redis sorted set does, ties by id."""


class Places:
    """The waiting jobs of one lane, and what each tenant has had. A tenant is backlogged while it has a job here."""

    def __init__(self, lane: Lane, window: float) -> None:
        self.lane = lane
        self.counters = Counters(window)
        self.floor = ShareFloor(lane.share_floor)
        self._queues: dict[str, list[Place]] = {}
        self._waiting: list[Place] = []
        self._returned: list[Place] = []
        self._guaranteed: list[Place] = []
        self._vouched: Counter[str] = Counter()
        """By tenant: weighted tokens that it was guaranteed and waits for."""
        self.queued_tokens = 0
        """Of the prompts that wait."""
        self._followers: Counter[str] = Counter()
        """By tenant: waiting jobs that are not the first of their request."""

    def enter(self, entry: QueuedJob) -> None:
        """Seat a job among its tenant's own: a returned one before all that never ran, what is guaranteed before what
        is not, then the earliest due first."""
        tenant, job_id = entry.job.tenant, entry.job.job_id
        if not self._queues:
            self.counters.level_out()
            self.floor.begin_wait()
        if tenant not in self._queues:
            self.counters.lift(tenant, self._queues)
        insort(self._queues.setdefault(tenant, []), _place(entry))
        insort(self._waiting, (entry.queued_ms, job_id))
        self.queued_tokens += len(entry.job.prompt)
        self._followers[tenant] += entry.job.follows
        if entry.returned:
            insort(self._returned, _place(entry))
        elif entry.job.guaranteed:
            insort(self._guaranteed, _place(entry))
            self._vouched[tenant] += _promised_cost(entry.job)

    def leave(self, entry: QueuedJob) -> None:
        """Give up a job's seat, because it was taken or has ended."""
        tenant, job_id = entry.job.tenant, entry.job.job_id
        _remove(self._queues[tenant], _place(entry))
        if not self._queues[tenant]:
            del self._queues[tenant]
        _remove(self._waiting, (entry.queued_ms, job_id))
        self.queued_tokens -= len(entry.job.prompt)
        self._followers[tenant] -= entry.job.follows
        if entry.returned:
            _remove(self._returned, _place(entry))
        elif entry.job.guaranteed:
            _remove(self._guaranteed, _place(entry))
            self._vouched[tenant] -= _promised_cost(entry.job)

    @property
    def depth(self) -> int:
        return len(self._waiting)

    def oldest_wait_ms(self, now_ms: int) -> int:
        """Since when the longest waiting job waits; 0 in an empty lane."""
        return now_ms - int(self._waiting[0][0]) if self._waiting else 0

    def requests_of(self, tenant: str) -> int:
        """Requests of this tenant that wait: those whose first job does."""
        return len(self._queues.get(tenant, ())) - self._followers[tenant]

    def position(self, entry: QueuedJob) -> int:
        """1 + the tenant's own jobs ahead of this waiting one."""
        return 1 + bisect_left(self._queues[entry.job.tenant], _place(entry))

    def first_new(self, tenant: str, count: int) -> list[str]:
        """The first of the tenant's jobs that never ran, at most so many."""
        queue = self._queues[tenant]
        first = bisect_left(queue, (0, ""))
        return [job_id for _, job_id in queue[first : first + count]]

    def least_served(self) -> list[str]:
        """The backlogged tenants with the lowest counters, at most TENANTS_PER_TAKE."""
        return heapq.nsmallest(TENANTS_PER_TAKE, self._queues, key=lambda tenant: (self.counters.value(tenant), tenant))

    def returned(self) -> Iterator[str]:
        return _first(self._returned)

    def all_returned(self) -> list[str]:
        """All jobs that came back from a worker, by when they are due."""
        return [job_id for _, job_id in self._returned]

    def guaranteed(self) -> Iterator[str]:
        """The first due of the guaranteed jobs that never ran, whosever they are."""
        return _first(self._guaranteed)

    def promoted(self, now_ms: int) -> Iterator[str]:
        """The eldest of the jobs that have waited half the lane's maximum: they are ordered one lane higher."""
        old_ms = now_ms - self.lane.long_wait_ms
        return _first(takewhile(lambda place: place[0] <= old_ms, self._waiting))

    def least_counter(self) -> float:
        return self.counters.floor(self._queues)

    def lead(self, tenant: str, weight: float) -> float:
        """Weighted tokens by which a tenant is ahead of the least served other that waits here; what it was promised
        and waits for counts. Below all where no other waits."""
        least = min((self.counters.value(other) for other in self._queues if other != tenant), default=math.inf)
        counter = self.counters.value(tenant)
        if tenant not in self._queues:
            counter = max(counter, least)
        return counter + self._vouched[tenant] / weight - least if least < math.inf else -math.inf

    def counter_or_level(self, tenant: str) -> float:
        """A tenant's counter, or the level where that is higher."""
        return max(self.counters.level, self.counters.value(tenant))

    def window(self, prefill_ms: float) -> float:
        """Θ for a worker that computes a prompt's token in `prefill_ms`."""
        return self.lane.window(self.counters.window, prefill_ms)

    def is_owed(self, entry: QueuedJob) -> bool:
        """The share floor is behind by what this job costs: it goes before the order."""
        return self.lane.share_floor > 0 and self.floor.debt >= min(entry.provisional_cost, OWED_LIMIT)


def _place(entry: QueuedJob) -> Place:
    return place_ms(entry.due_ms, guaranteed=entry.job.guaranteed, returned=entry.returned), entry.job.job_id


def _first(places: Iterable[Place]) -> Iterator[str]:
    """As many as are looked at."""
    return (job_id for _, job_id in islice(places, LOOKS_PER_TAKE))


def _remove(places: list[Place], place: Place) -> None:
    del places[bisect_left(places, place)]


def _promised_cost(job: Job) -> int:
    """Weighted tokens that taking it for the first time is charged, whatever it goes on from."""
    return len(job.prompt) + job.n * int(QUANTUM_COST)


FLOOR = -1
"""The rank of what a lane's share floor is behind for: above all lanes."""
NOTHING = Yielding(begun=(), waiting=(), jobs=0, sequences=0, kv_tokens=0)
Key = tuple[bool, bool, int, float, float, int, str]


class WorkerRoom:
    """What a worker can still start, by lane. What one lane takes is gone for it and for all lanes below it.

    A job that could not end here is no candidate: each choice alone may need all that it can grow to. To start it needs
    what its next step holds; one that has grown beyond the pool, its choices in turns, needs all of that.
    """

    def __init__(self, lanes: Sequence[Places], capacity: Capacity, *, suspect: bool) -> None:
        names = [places.lane.name for places in lanes]
        self._sequences = [capacity.sequences.get(name, 0) for name in names]
        self._kv_tokens = [capacity.kv_tokens.get(name, 0) for name in names]
        self._most_sequences, self._most_tokens = capacity.most_sequences, capacity.most_tokens
        self._suspect = suspect

    def is_open(self, level: int) -> bool:
        """Anything could be started in this lane without its own work yielding."""
        return self._sequences[level] > 0 and self._kv_tokens[level] > 0

    def has_row(self, level: int) -> bool:
        """A row is free for this lane, whether or not KV is."""
        return self._sequences[level] > 0

    def could_hold(self, entry: QueuedJob) -> bool:
        """Fits this worker once enough of what runs there has ended: all its choices in one step, and each alone as
        long as it can grow. Not where it may have killed its workers, and one such job is here already: the poisoned
        one shall fail alone."""
        fits = entry.job.n <= self._most_sequences and entry.job.max_total_tokens <= self._most_tokens
        return fits and not (self._suspect and entry.losses >= SUSPECT_LOSSES)

    def fits(self, level: int, entry: QueuedJob) -> bool:
        """Room in lane `level` for all its choices, now and until they end."""
        return entry.job.n <= self._sequences[level] and self.tokens(entry) <= self._kv_tokens[level]

    def occupy(self, level: int, entry: QueuedJob) -> None:
        for below in range(level, len(self._sequences)):
            self._sequences[below] -= entry.job.n
            self._kv_tokens[below] -= self.tokens(entry)
        self._suspect = self._suspect or entry.losses >= SUSPECT_LOSSES

    def close(self, first: int, last: int) -> None:
        for level in range(first, last + 1):
            self._sequences[level] = 0

    def is_within_floor(self, share: float, entry: QueuedJob) -> bool:
        """It starts with no more than this share of the worker, nor several choices."""
        return entry.job.n == 1 and self.tokens(entry) <= share * self._most_tokens

    def tokens(self, entry: QueuedJob) -> int:
        """KV tokens that it needs to start."""
        return min(entry.tokens, self._most_tokens)


class Owed:
    """What the work of one lane that a worker runs would yield to those who wait and were served less.

    To what is guaranteed its deadline. To a tenant of which nothing or little is there, as long as it is ahead of one
    that has begun by no more than Θ; and to one that is behind such a tenant by more than Θ, while nobody else who has
    begun there and is as far behind waits there already. So who holds all of a worker does not keep others from being
    asked for, with jobs of its own that wait there neither, and whoever is behind is asked for wherever it could catch
    up.
    """

    def __init__(self, places: Places, yielding: Yielding, window: float) -> None:
        self._places, self._window = places, window
        self._jobs, self._sequences, self._kv_tokens = yielding.jobs, yielding.sequences, yielding.kv_tokens
        self._shorter_than = yielding.shorter_than or math.inf
        self._waiting, self._begun = set(yielding.waiting), frozenset(yielding.begun)
        self._most: float | None = None
        self._one_waits = False
        """One that has begun and is behind by more than Θ, or has been given something now, waits there."""

    @property
    def is_open(self) -> bool:
        """Somebody could be owed something."""
        return self._sequences > 0

    def is_to(self, entry: QueuedJob, tokens: int) -> bool:
        """This job is of a tenant that is owed, and what would be yielded suffices for it."""
        tenant = entry.job.tenant
        if entry.job.n > self._sequences or tokens > self._kv_tokens:
            return False
        if entry.job.guaranteed:
            return True
        if tenant in self._waiting or not self._begun:
            return False
        lead = self._most_served() - self._places.counter_or_level(tenant)
        if tenant in self._begun:
            return not self._one_waits and lead > self._window
        return self._jobs > 0 and len(entry.job.prompt) < self._shorter_than and lead >= -self._window

    def give(self, entry: QueuedJob, tokens: int) -> None:
        """It is taken, and waits there for others to yield."""
        tenant = entry.job.tenant
        self._jobs -= tenant not in self._begun and not entry.job.guaranteed
        self._one_waits = self._one_waits or tenant in self._begun
        self._waiting.add(tenant)
        self._sequences -= entry.job.n
        self._kv_tokens -= tokens

    def _most_served(self) -> float:
        """The largest counter of those who have begun, as it is when first asked for; others are behind that."""
        if self._most is None:
            counters = {tenant: self._places.counter_or_level(tenant) for tenant in self._begun}
            self._most = most = max(counters.values())
            late = {tenant for tenant in self._begun if most - counters[tenant] > self._window}
            self._one_waits = self._one_waits or not late.isdisjoint(self._waiting)
        return self._most


class Order:
    """What one `take` chooses from, job by job, for a worker that computes a prompt's token in `prefill_ms`.

    Seats are the caller's: after `pick` it takes the job from its place and charges it before it picks again.
    """

    def __init__(
        self,
        lanes: Sequence[Places],
        entries: Mapping[str, QueuedJob],
        capacity: Capacity,
        now_ms: int,
        *,
        suspect: bool,
    ) -> None:
        self._lanes, self._entries, self._room = lanes, entries, WorkerRoom(lanes, capacity, suspect=suspect)
        self._now_ms, self._prefill_ms = now_ms, capacity.prefill_ms
        self._levels = {places.lane.name: level for level, places in enumerate(lanes)}
        self._windows = [places.window(capacity.prefill_ms) for places in lanes]
        self._owed = [
            Owed(places, capacity.yielding.get(places.lane.name, NOTHING), window)
            for places, window in zip(lanes, self._windows, strict=True)
        ]
        self._least: list[float] = []

    def pick(self) -> QueuedJob | None:
        """The first candidate that fits, its room taken; then the first that others yield to. None: nothing more.

        One that does not fit is passed over until it is due. From then on nothing behind it is taken from its lane, so
        that room gathers for it and small jobs do not starve it. What its lane's share floor is behind for gathers room
        from all lanes above too, where it needs no more than that share and lacks KV alone. A worker offers each lane
        the rows of its share floor at least: a lane without a free row holds them already, and closing the lanes above
        would only keep their jobs waiting for its own to end.
        """
        self._least = [places.least_counter() for places in self._lanes]
        for rank, candidates in self._tiers():
            for entry in sorted(candidates, key=self._key):
                level, is_floor = self._levels[entry.job.lane], rank == FLOOR
                if not (is_floor or self._room.is_open(level)):
                    continue
                if self._room.fits(level, entry):
                    self._room.occupy(level, entry)
                    return entry
                if is_floor and self._room.has_row(level):
                    self._room.close(0, level)
                elif not is_floor and entry.due_ms <= self._now_ms:
                    self._room.close(rank, level)
        return self._pick_owed()

    def _pick_owed(self) -> QueuedJob | None:
        """The first, lane by lane, of those for whom work of their own lane yields."""
        for level, owed in enumerate(self._owed):
            if not owed.is_open:
                continue
            for entry in sorted(self._returned(level) + self._heads(level), key=self._key):
                tokens = self._room.tokens(entry)
                if owed.is_to(entry, tokens):
                    owed.give(entry, tokens)
                    self._room.occupy(level, entry)
                    return entry
        return None

    def _tiers(self) -> Iterator[tuple[int, list[QueuedJob]]]:
        """With the rank of a lane: what its share floor is behind enough for, of which what needs no more than that
        share has a rank above all; then its own and what is promoted to it.

        In both what came back from a worker comes first.
        """
        for level, places in enumerate(self._lanes):
            if places.floor.debt > 0.0:
                for entries in (self._returned(level), self._heads(level)):
                    owed = list(filter(places.is_owed, entries))
                    small = [one for one in owed if self._room.is_within_floor(places.lane.share_floor, one)]
                    yield FLOOR, small
                    yield level, [one for one in owed if one not in small]
        for level in range(len(self._lanes)):
            if self._room.is_open(level):
                yield level, self._returned(level)
                yield level, self._heads(level) + self._elders(level) + self._elders(level + 1)

    def _returned(self, level: int) -> list[QueuedJob]:
        return self._first(level, self._lanes[level].returned(), ELDERS_PER_TAKE)

    def _heads(self, level: int) -> list[QueuedJob]:
        """Of each tenant the first that could run here, and the first of what is guaranteed."""
        places = self._lanes[level]
        found, others = self._first(level, places.guaranteed(), ELDERS_PER_TAKE), list[str]()
        for tenant in places.least_served():
            for head in places.first_new(tenant, 1):
                if self._could_run(level, self._entries[head]):
                    found.append(self._entries[head])
                else:
                    others.append(tenant)
        for tenant in others:
            found += self._first(level, places.first_new(tenant, LOOKS_PER_TAKE // len(others)), 1)
        return found

    def _elders(self, level: int) -> list[QueuedJob]:
        """What has waited so long in a lane that it goes first there, and is promoted to the one above."""
        if level >= len(self._lanes) or not self._room.is_open(level):
            return []
        return self._first(level, self._lanes[level].promoted(self._now_ms), ELDERS_PER_TAKE)

    def _first(self, level: int, job_ids: Iterable[str], count: int) -> list[QueuedJob]:
        """The first of these, at most so many, that could run here."""
        entries = map(self._entries.__getitem__, job_ids)
        return list(islice((entry for entry in entries if self._could_run(level, entry)), count))

    def _could_run(self, level: int, entry: QueuedJob) -> bool:
        """It is in time, and nothing keeps this worker from ever ending it."""
        is_in_time = self._now_ms < entry.expires_ms(self._lanes[level].lane.max_wait_ms)
        return is_in_time and self._room.could_hold(entry)

    def _key(self, entry: QueuedJob) -> Key:
        job, level = entry.job, self._levels[entry.job.lane]
        counter = self._lanes[level].counters.value(job.tenant)
        lead = counter - self._least[level]
        service_class, urgency = self._prospects(entry, lead, self._lanes[level].lane.long_wait_ms)
        outside = lead > self._windows[level] and not job.guaranteed
        return not entry.returned, outside, service_class, urgency, counter, entry.due_ms, job.job_id

    def _prospects(self, entry: QueuedJob, lead: float, long_wait_ms: float) -> tuple[int, float]:
        """Class and urgency. What came back from a worker has begun, and is as urgent as it is late."""
        guaranteed = entry.job.guaranteed
        service_ms = 0.0 if entry.returned else len(entry.job.prompt) * self._prefill_ms
        lead_ms = 0.0 if guaranteed or entry.returned else lead * self._prefill_ms
        slack_ms, waited_ms = entry.due_ms - self._now_ms - service_ms, self._now_ms - entry.queued_ms
        relegated, urgency = prospects(slack_ms, service_ms, lead_ms, waited_ms, long_wait_ms, guaranteed=guaranteed)
        return 0 if guaranteed else 1 + relegated, urgency
