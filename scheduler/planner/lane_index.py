"""One lane of a worker: waiting work by tenant and due time, and each tenant's service and started work.

A step's queries take O(log n) of the waiting work. Tenants are in heaps whose entries are updated lazily when they
reach the top, since counters only grow. The started work of tenants is counted as it changes."""

import heapq
import math
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Collection, Container, Iterator
from itertools import chain, islice
from operator import itemgetter
from typing import TypeVar

from fairlane.scheduler.planner.ordering import Counters
from fairlane.scheduler.planner.sequence import Sequence
from fairlane.scheduler.protocol.lanes import Lane

WAITING_PER_TENANT = 32
# Tenants of one lane whose waiting work a step looks at; also the number of guaranteed and of promoted sequences.
TENANTS_PER_STEP = 32

# A tenant is a newcomer if another holds more than this many times as much. With a value of 2, tenants with uneven
# arrivals took rows from each other so often that `eta_ms` was wrong.
LITTLE = 4
# Prompt tokens of newcomers that go ahead of guaranteed work, per token computed for the guaranteed work. Guarantees
# hold if everything takes longer by more than that (`promises.MARGIN`).
NEWCOMER_PART = 0.25

K = TypeVar("K")
# A waiting sequence by class and a time in ms; job and choice break ties.
Filed = tuple[float, float, str, int, Sequence]


class LeastServed:
    """The tenants of a set owned by the caller, least served first."""

    def __init__(self, counters: Counters, members: Container[str]) -> None:
        self._counters, self._members = counters, members
        # Each tenant once, with a counter that may have grown since.
        self._heap: list[tuple[float, str]] = []
        self._listed: set[str] = set()

    def add(self, tenant: str) -> None:
        if tenant not in self._listed:
            self._listed.add(tenant)
            heapq.heappush(self._heap, (self._counters.value(tenant), tenant))

    def least(self) -> float:
        return self._heap[0][0] if self._refresh() else math.inf

    def first(self, count: int) -> list[str]:
        found: list[tuple[float, str]] = []
        while len(found) < count and self._refresh():
            found.append(heapq.heappop(self._heap))
        for entry in found:
            heapq.heappush(self._heap, entry)
        return [tenant for _, tenant in found]

    def _refresh(self) -> bool:
        while self._heap:
            counter, tenant = self._heap[0]
            if tenant not in self._members:
                heapq.heappop(self._heap)
                self._listed.discard(tenant)
            elif self._counters.value(tenant) > counter:
                heapq.heapreplace(self._heap, (self._counters.value(tenant), tenant))
            else:
                return True
        return False


class LaneIndex:
    """One lane: waiting sequences by tenant, and the service of each tenant."""

    def __init__(self, lane: Lane, counters: Counters) -> None:
        self.lane = lane
        self.counters = counters
        # Runnable started sequences, by tenant.
        self.begun: Counter[str] = Counter()
        # Started sequences that were stopped: their KV is not on the device, or they have no row.
        self.away: Counter[str] = Counter()
        # Started sequences without a token.
        self.unanswered: Counter[str] = Counter()
        # Number of tenants with started work, by how much they hold.
        self._holding: Counter[int] = Counter()
        # An upper bound of what one tenant holds, lowered on demand.
        self._most_held = 0
        # Tenants with started work but no token.
        self._opening: set[str] = set()
        self._guaranteed: list[Filed] = []
        # Prompt tokens computed for newcomers ahead of waiting guaranteed work, and not repaid yet.
        self._newcomer_debt = 0.0
        self._most_served = 0.0
        self._waiting: dict[str, list[Filed]] = {}
        self._by_age: list[Filed] = []
        self._waiting_tenants = LeastServed(counters, self._waiting)
        self._away_tenants = LeastServed(counters, self.away)
        self._opening_tenants = LeastServed(counters, self._opening)
        self._first_tokens: dict[str, int] = {}
        self._least_served: dict[str, None] | None = None

    def least_counter(self) -> float:
        return min(self._waiting_tenants.least(), self._away_tenants.least())

    def begin(self, tenant: str, *, answered: bool, away: bool, count: int = 1) -> None:
        """Count a started sequence; `count` -1 removes it."""
        self._tally(tenant, -1)
        adjust(self.begun, tenant, count)
        if not answered:
            adjust(self.unanswered, tenant, count)
        if away:
            self.stop(tenant, count)
        self._tally(tenant, 1)

    def stop(self, tenant: str, count: int) -> None:
        adjust(self.away, tenant, count)
        if count > 0:
            self._away_tenants.add(tenant)

    def _tally(self, tenant: str, count: int) -> None:
        held = self.held(tenant)
        if held:
            adjust(self._holding, held, count)
            self._most_held = max(self._most_held, held)
        if count > 0 and held and not self.has_token(tenant):
            self._opening.add(tenant)
            self._opening_tenants.add(tenant)
        else:
            self._opening.discard(tenant)

    def newcomers(self, little: int) -> list[tuple[float, int]]:
        """Return (counter, held) of the least served waiting tenants that hold at most `little`, and that hold
        nothing."""
        found = list[tuple[float, int]]()
        for tenant in self.least_served():
            held = self.held(tenant)
            if held <= little and (not found or not held):
                found.append((self.counters.value(tenant), held))
                if not held:
                    break
        return found

    def shortest_newcomer(self, little: int) -> int:
        held, waiting = self.held, self._waiting
        return min(
            [len(waiting[one][0][-1].job.prompt) for one in self.least_served() if held(one) <= little], default=0
        )

    def little(self) -> int:
        """Return the most that a newcomer may hold. In lanes without tight deadlines, whose Θ is a few steps, it holds
        nothing."""
        return self._little() if self.lane.burst_ms else 0

    def lesser(self) -> set[str]:
        little = self._little()
        return {tenant for tenant in self.begun if self.held(tenant) <= little} if little else set()

    def _little(self) -> int:
        while self._most_held and self._most_held not in self._holding:
            self._most_held -= 1
        return max(0, self._most_held - 1) // LITTLE

    def held(self, tenant: str) -> int:
        """Return how much started work a tenant holds: its sequences, plus LITTLE for each one without a token.

        A prompt in progress uses a step's time and not just a row."""
        return self.begun.get(tenant, 0) + LITTLE * self.unanswered.get(tenant, 0)

    def least_unanswered(self) -> float:
        return self._opening_tenants.least()

    def has_token(self, tenant: str) -> bool:
        """Return whether any started work of a tenant has a token. Until then the tenant is a newcomer, and decodes do
        not fill each step before the rest of its long prompt."""
        return self.begun.get(tenant, 0) > self.unanswered.get(tenant, 0)

    def lift(self, tenant: str) -> None:
        """Lift a tenant to the least served waiting one; must be called before its work starts to wait.

        If no tenant waits, the lane is level: all continue from the largest counter, without debt or credit."""
        if tenant not in self._waiting and tenant not in self.away:
            least = self.least_counter()
            if least < math.inf:
                self.counters.lift_to(tenant, least)
            else:
                for each in (tenant, *self.begun):
                    self.counters.lift_to(each, self._most_served)
            self.counters.forget_idle((tenant,), self.begun, self._waiting)

    def charge(self, tenant: str, tokens: float, weight: float) -> None:
        if self._least_served and tenant in self._least_served:  # counters only grow: no other tenant can be closer
            self._least_served = None
        served = self.counters.charge(tenant, tokens, weight)
        if served > self._most_served:
            self._most_served = served

    @property
    def waits(self) -> bool:
        return bool(self._waiting)

    @property
    def waiting(self) -> Collection[str]:
        return self._waiting.keys()

    def all_waiting(self) -> Iterator[Sequence]:
        return map(itemgetter(-1), self._by_age)

    def add(self, seq: Sequence) -> None:
        tenant = seq.job.tenant
        waiting = self._waiting.get(tenant)
        if waiting is None:
            waiting = self._waiting[tenant] = []
            self._waiting_tenants.add(tenant)
            self._least_served = None
        insort(waiting, _by_due(seq))
        self._first_tokens[tenant] = len(waiting[0][-1].job.prompt)
        insort(self._by_age, _by_promotion(seq))
        if seq.job.guaranteed:
            insort(self._guaranteed, _by_due(seq))

    def remove(self, seq: Sequence) -> None:
        tenant = seq.job.tenant
        waiting = self._waiting[tenant]
        del waiting[bisect_left(waiting, _by_due(seq))]
        del self._by_age[bisect_left(self._by_age, _by_promotion(seq))]
        if seq.job.guaranteed:
            del self._guaranteed[bisect_left(self._guaranteed, _by_due(seq))]
            self._newcomer_debt = self._newcomer_debt if self._guaranteed else 0.0
        if waiting:
            self._first_tokens[tenant] = len(waiting[0][-1].job.prompt)
        else:
            del self._waiting[tenant], self._first_tokens[tenant]
            self._least_served = None

    def next_of(self, tenant: str, now_ms: float) -> Sequence:
        filed = self._waiting[tenant]
        first = filed[0]
        if first[0] and first < (True, now_ms):  # overdue work comes last
            in_time = bisect_left(filed, (True, now_ms))
            first = filed[in_time] if in_time < len(filed) else first
        return first[-1]

    def next_up(self, tenant: str, now_ms: float) -> Iterator[Sequence]:
        filed = self._waiting.get(tenant)
        if not filed:
            return iter(())
        if filed[0] > (True, now_ms):  # nothing is guaranteed or overdue
            return map(itemgetter(-1), filed[:WAITING_PER_TENANT])
        promised, in_time = bisect_left(filed, (True, -math.inf)), bisect_left(filed, (True, now_ms))
        spans = (0, promised), (in_time, len(filed)), (promised, in_time)
        found = [filed[first : min(end, first + WAITING_PER_TENANT)] for first, end in spans]
        return map(itemgetter(-1), islice(chain.from_iterable(found), WAITING_PER_TENANT))

    def least_served(self) -> Collection[str]:
        if self._least_served is None:
            self._least_served = dict.fromkeys(self._waiting_tenants.first(TENANTS_PER_STEP))
        return self._least_served.keys()

    def guaranteed(self) -> list[Sequence]:
        return [filed[-1] for filed in self._guaranteed[:TENANTS_PER_STEP]]

    @property
    def admits_newcomers(self) -> bool:
        """Return whether guaranteed work waits, and newcomers may go ahead of it."""
        return bool(self._guaranteed) and self._newcomer_debt <= 0.0

    def computed(self, seq: Sequence, tokens: int) -> None:
        """Record computed prompt tokens. While guaranteed work waits, tokens of newcomers count as a loan, which that
        work's own tokens repay: it waits for at most one step of newcomers and NEWCOMER_PART of its own tokens."""
        if seq.is_promised:
            self._newcomer_debt = max(0.0, self._newcomer_debt - NEWCOMER_PART * tokens)
        elif self._guaranteed and not self.has_token(seq.job.tenant):
            self._newcomer_debt += tokens

    def promoted(self, now_ms: float) -> Iterator[Sequence]:
        for _, promoted_ms, _, _, seq in self._by_age[:TENANTS_PER_STEP]:
            if now_ms < promoted_ms:
                return
            yield seq


def adjust(counts: Counter[K], key: K, by: int) -> None:
    """Change a count and drop zeros, so that the keys are a set."""
    count = counts[key] + by
    if count:
        counts[key] = count
    else:
        counts.pop(key, None)


def _by_due(seq: Sequence) -> Filed:
    return (not seq.job.guaranteed, seq.first_due_ms, *seq.id, seq)


def _by_promotion(seq: Sequence) -> Filed:
    return (0, seq.promoted_ms, *seq.id, seq)
