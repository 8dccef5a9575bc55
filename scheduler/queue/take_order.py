"""The order in which one `turn` hands out jobs: (below the share floor, lane, returned, outside Θ, class, urgency,
counter, due, job_id).

Class and urgency are those of `scheduler.planner.ordering`, as far as the queue knows them: it knows prompts, and from
the worker the time per prompt token. A guaranteed job is never outside Θ: its guarantee holds whatever its tenant has
used since.

For each job taken, these are compared per lane: the first jobs of the TENANTS_PER_TAKE tenants with the lowest
counters, the OLDEST_PER_TAKE guaranteed jobs that are due first, and the OLDEST_PER_TAKE oldest jobs that have waited
long. The cost of a take is thus independent of the number of waiting jobs. The least served tenant is always compared,
and tenants outside its window come after it, so the bound of `scheduler.planner.ordering` holds for any such limit.
With more backlogged tenants than the limit, the more served ones wait however urgent their work is, and room that fits
none of the compared jobs stays free.

Workers may be unequal: a job that could never finish in the asking worker is skipped, and the next of the same list
replaces it, so that no worker idles next to work that it could run. LOOKS_PER_TAKE bounds how many are examined."""

import heapq
import math
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, takewhile

from fairlane.scheduler.planner.ordering import Counters, prospects
from fairlane.scheduler.planner.steps import Capacity, Yielding
from fairlane.scheduler.protocol.lanes import Lane
from fairlane.scheduler.protocol.messages import Job, Outcome
from fairlane.scheduler.queue.rooms import Need, Room
from fairlane.scheduler.queue.share_floor import ShareFloor
from fairlane.scheduler.queue.types import (
    FLOOR_LIMIT,
    LOOKS_PER_TAKE,
    NEVER_MS,
    OLDEST_PER_TAKE,
    SUSPECT_LOSSES,
    TENANTS_PER_TAKE,
    JobState,
    charged_when_taken,
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
    # When it was last queued: its arrival, or its return from a worker.
    queued_ms: int
    # Output tokens of all choices, as last reported.
    generated: int = 0
    state: JobState = JobState.QUEUED
    outcome: Outcome | None = None
    epoch: int = 0
    worker_id: str = ""
    taken_ms: int = 0
    cancelled: bool = False
    returned: bool = False
    prefixes: bytes = b""
    preferred: str = ""
    # The worker that it was leased to or that was called for it when it was put; empty: neither.
    called: str = ""
    # Times that another worker was called for it, and when the last one was.
    passes: int = 0
    roused_ms: int = 0
    # It was leased at once when it was put.
    handed: bool = False
    losses: int = 0
    # Workers' time reserved for its guarantee, until its first token.
    claim_us: int = 0
    bucket_ms: int = 0
    # Weighted tokens charged when it was taken and not yet computed.
    credit: float = 0.0
    # Identify that charge in each lane's share floor (share_floor.py).
    marks: tuple[int, ...] = ()

    @property
    def due_ms(self) -> int:
        return self.arrived_ms + due_after_ms(self.job)

    @property
    def need(self) -> Need:
        tokens = len(self.job.prompt) + self.generated + self.job.n
        return Need(self.job.n, tokens, self.job.max_total_tokens, self.job.gateway_id)

    @property
    def provisional_cost(self) -> float:
        return charged_when_taken(self.job, resumes=self.generated > 0)

    def expires_ms(self, max_wait_ms: float) -> float:
        """Return the time at which it expires if it still waits: its hard deadline or, without one, the end of the
        lane's longest wait. Once it has run, only its gateway knows whether the first token came in time."""
        has_run, hard_ms = self.generated > 0 or self.returned, hard_end_ms(self.job)
        hard_ms = hard_ms if has_run else min(hard_ms, hard_first_ms(self.job))
        return self.arrived_ms + hard_ms if hard_ms < NEVER_MS else self.queued_ms + max_wait_ms


# (milliseconds, job_id): orders a list like a Redis sorted set, ties by id.
Place = tuple[float, str]


class Places:
    """The waiting jobs of one lane, and the service of each tenant. A tenant is backlogged while it has a job here."""

    def __init__(self, lane: Lane, window: float) -> None:
        self.lane = lane
        self.counters = Counters(window)
        self.floor = ShareFloor(lane.share_floor)
        self._queues: dict[str, list[Place]] = {}
        # When each tenant with waiting jobs began to have some all the time.
        self.backlogged_ms: dict[str, int] = {}
        self._waiting: list[Place] = []
        self._returned: list[Place] = []
        self._guaranteed: list[Place] = []
        # By tenant: weighted tokens of its guaranteed waiting jobs.
        self._guaranteed_cost: Counter[str] = Counter()
        self.queued_tokens = 0
        self._followers: Counter[str] = Counter()

    def enter(self, entry: QueuedJob) -> None:
        tenant, job_id = entry.job.tenant, entry.job.job_id
        if not self._queues:
            self.counters.level_out()
            self.floor.begin_wait()
        if tenant not in self._queues:
            self.counters.lift(tenant, self._queues)
            self.backlogged_ms[tenant] = entry.queued_ms
        insort(self._queues.setdefault(tenant, []), _place(entry))
        insort(self._waiting, (entry.queued_ms, job_id))
        self.queued_tokens += len(entry.job.prompt)
        self._followers[tenant] += entry.job.follows
        if entry.returned:
            insort(self._returned, _place(entry))
        elif entry.job.guaranteed:
            insort(self._guaranteed, _place(entry))
            self._guaranteed_cost[tenant] += _promised_cost(entry.job)

    def leave(self, entry: QueuedJob) -> None:
        tenant, job_id = entry.job.tenant, entry.job.job_id
        _remove(self._queues[tenant], _place(entry))
        if not self._queues[tenant]:
            del self._queues[tenant], self.backlogged_ms[tenant]
        _remove(self._waiting, (entry.queued_ms, job_id))
        self.queued_tokens -= len(entry.job.prompt)
        self._followers[tenant] -= entry.job.follows
        if entry.returned:
            _remove(self._returned, _place(entry))
        elif entry.job.guaranteed:
            _remove(self._guaranteed, _place(entry))
            self._guaranteed_cost[tenant] -= _promised_cost(entry.job)

    @property
    def depth(self) -> int:
        return len(self._waiting)

    def oldest_wait_ms(self, now_ms: int) -> int:
        return now_ms - int(self._waiting[0][0]) if self._waiting else 0

    def requests_of(self, tenant: str) -> int:
        return len(self._queues.get(tenant, ())) - self._followers[tenant]

    def position(self, entry: QueuedJob) -> int:
        return 1 + bisect_left(self._queues[entry.job.tenant], _place(entry))

    def first_new(self, tenant: str, count: int) -> list[str]:
        queue = self._queues[tenant]
        first = bisect_left(queue, (0, ""))
        return [job_id for _, job_id in queue[first : first + count]]

    def least_served(self) -> list[str]:
        return heapq.nsmallest(TENANTS_PER_TAKE, self._queues, key=lambda tenant: (self.counters.value(tenant), tenant))

    def returned(self) -> Iterator[str]:
        return _first(self._returned)

    def guaranteed(self) -> Iterator[str]:
        return _first(self._guaranteed)

    def promoted(self, now_ms: int) -> Iterator[str]:
        """Return the oldest jobs that have waited half the lane's maximum: they are ordered one lane higher."""
        old_ms = now_ms - self.lane.long_wait_ms
        return _first(takewhile(lambda place: place[0] <= old_ms, self._waiting))

    def least_counter(self) -> float:
        return self.counters.floor(self._queues)

    def lead(self, tenant: str, weight: float) -> float:
        """Return the weighted tokens by which a tenant is ahead of the least served other tenant that waits here.

        Its guaranteed waiting jobs count. Returns -inf if no other tenant waits."""
        least = min((self.counters.value(other) for other in self._queues if other != tenant), default=math.inf)
        counter = self.counters.value(tenant)
        if tenant not in self._queues:
            counter = max(counter, least)
        return counter + self._guaranteed_cost[tenant] / weight - least if least < math.inf else -math.inf

    def counter_or_level(self, tenant: str) -> float:
        return max(self.counters.level, self.counters.value(tenant))

    def window(self, prefill_ms: float) -> float:
        return self.lane.window(self.counters.window, prefill_ms)

    def is_below_floor(self, entry: QueuedJob) -> bool:
        """Return whether the share floor is behind by this job's cost: it then precedes the order."""
        return self.lane.share_floor > 0 and self.floor.debt >= min(entry.provisional_cost, FLOOR_LIMIT)


def _place(entry: QueuedJob) -> Place:
    return place_ms(entry.due_ms, guaranteed=entry.job.guaranteed, returned=entry.returned), entry.job.job_id


def _first(places: Iterable[Place]) -> Iterator[str]:
    return (job_id for _, job_id in islice(places, LOOKS_PER_TAKE))


def _remove(places: list[Place], place: Place) -> None:
    del places[bisect_left(places, place)]


def _promised_cost(job: Job) -> int:
    return int(charged_when_taken(job, resumes=False))


# The rank of jobs owed to a share floor: above all lanes.
FLOOR = -1
NOTHING = Yielding(begun=(), waiting=(), jobs=0, sequences=0, kv_tokens=0)
Key = tuple[bool, bool, int, float, float, int, str]


class YieldOffer:
    """Work of one lane, running in a worker, that would yield to waiting jobs of less served tenants.

    Work yields to three kinds of jobs:

    1. guaranteed ones;
    2. jobs of a tenant with little or no work there, if it is ahead of a tenant that runs there by at most Θ;
    3. jobs of a running tenant that is behind another one by more than Θ, if no other such tenant already waits there.

    A tenant that holds all of a worker thus cannot block others, not even with waiting jobs of its own, and a tenant
    that is behind gets jobs wherever it could catch up."""

    def __init__(self, places: Places, yielding: Yielding, window: float) -> None:
        self._places, self._window = places, window
        self._jobs, self.sequences, self._kv_tokens = yielding.jobs, yielding.sequences, yielding.kv_tokens
        self._shorter_than = yielding.shorter_than or math.inf
        self._waiting, self._begun = set(yielding.waiting), frozenset(yielding.begun)
        self._most: float | None = None
        # A running tenant that is behind by more than Θ, or that was just given a job, already waits there.
        self._one_waits = False

    @property
    def is_open(self) -> bool:
        return self.sequences > 0

    def suits(self, entry: QueuedJob, tokens: int) -> bool:
        tenant = entry.job.tenant
        if entry.job.n > self.sequences or tokens > self._kv_tokens:
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
        tenant = entry.job.tenant
        self._jobs -= tenant not in self._begun and not entry.job.guaranteed
        self._one_waits = self._one_waits or tenant in self._begun
        self._waiting.add(tenant)
        self.sequences -= entry.job.n
        self._kv_tokens -= tokens

    def _most_served(self) -> float:
        if self._most is None:
            counters = {tenant: self._places.counter_or_level(tenant) for tenant in self._begun}
            self._most = most = max(counters.values())
            late = {tenant for tenant in self._begun if most - counters[tenant] > self._window}
            self._one_waits = self._one_waits or not late.isdisjoint(self._waiting)
        return self._most


class Order:
    """The candidates of one `turn`, job by job.

    After each `pick` the caller takes the job from its place and charges it."""

    def __init__(
        self,
        lanes: Sequence[Places],
        entries: Mapping[str, QueuedJob],
        capacity: Capacity,
        now_ms: int,
        *,
        suspect: bool,
        unreached: Collection[str] = (),
    ) -> None:
        """`suspect`: the worker has a job that may have killed workers. `unreached`: gateways that it cannot reach."""
        self._lanes, self._entries, self._suspect = lanes, entries, suspect
        # What is left of the worker's room.
        self.room = Room.of(capacity, [places.lane.name for places in lanes], unreached)
        self._now_ms, self._prefill_ms = now_ms, capacity.prefill_ms
        self._levels = {places.lane.name: level for level, places in enumerate(lanes)}
        self._windows = [places.window(capacity.prefill_ms) for places in lanes]
        self._offers = [
            YieldOffer(places, capacity.yielding.get(places.lane.name, NOTHING), window)
            for places, window in zip(lanes, self._windows, strict=True)
        ]
        self._least: list[float] = []

    @property
    def yielding(self) -> list[int]:
        return [offer.sequences for offer in self._offers]

    def pick(self) -> QueuedJob | None:
        """Return the first candidate that fits, or the first that other work yields to; None if there is none.

        A job that does not fit is skipped until it is due. From then on no job behind it is taken from its lane, so
        that room gathers for it and small jobs do not starve it. A job owed to its lane's share floor also blocks the
        lanes above, if it needs at most that share and lacks only KV. A worker offers each lane at least the rows of
        its share floor: a lane without a free row already holds them, and blocking the lanes above would not help
        it."""
        self._least = [places.least_counter() for places in self._lanes]
        for rank, candidates in self._tiers():
            for entry in sorted(candidates, key=self._key):
                level, is_floor = self._levels[entry.job.lane], rank == FLOOR
                if not (is_floor or self.room.is_open(level)):
                    continue
                if self.room.fits(level, entry.need):
                    self._occupy(level, entry)
                    return entry
                if is_floor and self.room.sequences[level] > 0:
                    self.room.close(0, level)
                elif not is_floor and entry.due_ms <= self._now_ms:
                    self.room.close(rank, level)
        return self._pick_yielding()

    def _pick_yielding(self) -> QueuedJob | None:
        for level, offer in enumerate(self._offers):
            if not offer.is_open:
                continue
            for entry in sorted(self._returned(level) + self._heads(level), key=self._key):
                tokens = self.room.tokens(entry.need)
                if offer.suits(entry, tokens):
                    offer.give(entry, tokens)
                    self._occupy(level, entry)
                    return entry
        return None

    def _tiers(self) -> Iterator[tuple[int, list[QueuedJob]]]:
        """Yield candidates with the rank of a lane, returned jobs first.

        First come the jobs owed to each share floor; those within that share rank above all lanes. Then come each
        lane's own jobs and those promoted to it."""
        for level, places in enumerate(self._lanes):
            if places.floor.debt > 0.0:
                for entries in (self._returned(level), self._heads(level)):
                    behind = list(filter(places.is_below_floor, entries))
                    small = [one for one in behind if self._is_within_floor(places.lane.share_floor, one)]
                    yield FLOOR, small
                    yield level, [one for one in behind if one not in small]
        for level in range(len(self._lanes)):
            if self.room.is_open(level):
                yield level, self._returned(level)
                yield level, self._heads(level) + self._promoted(level) + self._promoted(level + 1)

    def _returned(self, level: int) -> list[QueuedJob]:
        return self._first(level, self._lanes[level].returned(), OLDEST_PER_TAKE)

    def _heads(self, level: int) -> list[QueuedJob]:
        places = self._lanes[level]
        found, others = self._first(level, places.guaranteed(), OLDEST_PER_TAKE), list[str]()
        for tenant in places.least_served():
            for head in places.first_new(tenant, 1):
                if self._could_run(level, self._entries[head]):
                    found.append(self._entries[head])
                else:
                    others.append(tenant)
        for tenant in others:
            found += self._first(level, places.first_new(tenant, LOOKS_PER_TAKE // len(others)), 1)
        return found

    def _promoted(self, level: int) -> list[QueuedJob]:
        """Return the jobs that have waited long enough to go first in their lane and to be promoted to the one
        above."""
        if level >= len(self._lanes) or not self.room.is_open(level):
            return []
        return self._first(level, self._lanes[level].promoted(self._now_ms), OLDEST_PER_TAKE)

    def _first(self, level: int, job_ids: Iterable[str], count: int) -> list[QueuedJob]:
        entries = map(self._entries.__getitem__, job_ids)
        return list(islice((entry for entry in entries if self._could_run(level, entry)), count))

    def _could_run(self, level: int, entry: QueuedJob) -> bool:
        """Return whether it has not expired and could run in this worker.

        A job that may have killed workers is refused while another one is here, so that a job that kills workers fails
        alone."""
        is_in_time = self._now_ms < entry.expires_ms(self._lanes[level].lane.max_wait_ms)
        is_suspect = self._suspect and entry.losses >= SUSPECT_LOSSES
        return is_in_time and self.room.could_hold(entry.need) and not is_suspect

    def _is_within_floor(self, share: float, entry: QueuedJob) -> bool:
        return entry.job.n == 1 and self.room.tokens(entry.need) <= share * self.room.most_tokens

    def _occupy(self, level: int, entry: QueuedJob) -> None:
        self.room.occupy(level, entry.need)
        self._suspect = self._suspect or entry.losses >= SUSPECT_LOSSES

    def _key(self, entry: QueuedJob) -> Key:
        job, level = entry.job, self._levels[entry.job.lane]
        counter = self._lanes[level].counters.value(job.tenant)
        lead = counter - self._least[level]
        service_class, urgency = self._prospects(entry, lead, self._lanes[level].lane.long_wait_ms)
        outside = lead > self._windows[level] and not job.guaranteed
        return not entry.returned, outside, service_class, urgency, counter, entry.due_ms, job.job_id

    def _prospects(self, entry: QueuedJob, lead: float, long_wait_ms: float) -> tuple[int, float]:
        guaranteed = entry.job.guaranteed
        service_ms = 0.0 if entry.returned else len(entry.job.prompt) * self._prefill_ms
        lead_ms = 0.0 if guaranteed or entry.returned else lead * self._prefill_ms
        slack_ms, waited_ms = entry.due_ms - self._now_ms - service_ms, self._now_ms - entry.queued_ms
        relegated, urgency = prospects(slack_ms, service_ms, lead_ms, waited_ms, long_wait_ms, guaranteed=guaranteed)
        return 0 if guaranteed else 1 + relegated, urgency
