"""One lane of a worker: what waits in it, by tenant and due time, and what each of its tenants was served and holds.

Every question that a step asks is answered in O(log n) of what waits: tenants stand in heaps whose entries are brought
up to date as they come first, since counters only grow, and what tenants hold is counted as it changes.
"""

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
"""Of a tenant's waiting work, what a step could look at."""
LEAST_SERVED = 32
"""Tenants of one lane whose waiting work a step looks at; as many of the guaranteed and of the promoted sequences."""

LITTLE = 4
"""A tenant counts as a newcomer where another holds more than so many times as much: with 2, tenants that arrived
unevenly took rows from each other so often that `eta_ms` was off."""
NEWCOMER_PART = 0.25
"""Prompt tokens of newcomers that go before promised work, for each that this computes meanwhile: promises hold if all
takes longer by more than that (`promises.MARGIN`)."""

K = TypeVar("K")
Filed = tuple[float, float, str, int, Sequence]
"""A waiting sequence by class and a time in ms; job and choice break ties."""


class LeastServed:
    """The tenants of a set, which the caller keeps, from the least served up."""

    def __init__(self, counters: Counters, members: Container[str]) -> None:
        self._counters, self._members = counters, members
        self._heap: list[tuple[float, str]] = []
        """Each tenant once, with a counter that may have grown since."""
        self._listed: set[str] = set()

    def add(self, tenant: str) -> None:
        """To call when a tenant becomes a member."""
        if tenant not in self._listed:
            self._listed.add(tenant)
            heapq.heappush(self._heap, (self._counters.value(tenant), tenant))

    def least(self) -> float:
        """The counter of the least served member; infinity without one."""
        return self._heap[0][0] if self._refresh() else math.inf

    def first(self, count: int) -> list[str]:
        """At most so many members, the least served first."""
        found: list[tuple[float, str]] = []
        while len(found) < count and self._refresh():
            found.append(heapq.heappop(self._heap))
        for entry in found:
            heapq.heappush(self._heap, entry)
        return [tenant for _, tenant in found]

    def _refresh(self) -> bool:
        """Bring the first entry up to date. False: there is no member."""
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
    """One lane: waiting sequences by tenant, and the service that each tenant has had."""

    def __init__(self, lane: Lane, counters: Counters) -> None:
        self.lane = lane
        self.counters = counters
        self.begun: Counter[str] = Counter()
        """Runnable sequences that have begun, by tenant."""
        self.away: Counter[str] = Counter()
        """Of these, those that were stopped: their KV is not on the device, or they have no row."""
        self.unanswered: Counter[str] = Counter()
        """Of these, those that have no token yet."""
        self._holding: Counter[int] = Counter()
        """Tenants of which something has begun, by how much they hold."""
        self._most_held = 0
        """The most that one of them holds, or more: lowered when it is asked for."""
        self._opening: set[str] = set()
        """Tenants of which something has begun and nothing has a token."""
        self._guaranteed: list[Filed] = []
        self._newcomer_debt = 0.0
        """Prompt tokens that newcomers had before promised work that waits, and that are not paid back yet."""
        self._most_served = 0.0
        """The largest counter."""
        self._waiting: dict[str, list[Filed]] = {}
        self._elders: list[Filed] = []
        self._waiting_tenants = LeastServed(counters, self._waiting)
        self._away_tenants = LeastServed(counters, self.away)
        self._opening_tenants = LeastServed(counters, self._opening)
        self._first_tokens: dict[str, int] = {}
        """Prompt tokens of each tenant's first waiting request."""
        self._least_served: dict[str, None] | None = None
        """The answer of `least_served`, until anything changes that it rests on."""

    # What tenants have had, and hold.

    def least_counter(self) -> float:
        """The counter of the least served tenant of which work waits or was stopped; infinity without one."""
        return min(self._waiting_tenants.least(), self._away_tenants.least())

    def begin(self, tenant: str, *, answered: bool, away: bool, count: int = 1) -> None:
        """Count a sequence that has begun, or with `count` -1 uncount it."""
        self._tally(tenant, -1)
        adjust(self.begun, tenant, count)
        if not answered:
            adjust(self.unanswered, tenant, count)
        if away:
            self.stop(tenant, count)
        self._tally(tenant, 1)

    def stop(self, tenant: str, count: int) -> None:
        """Count a sequence that was stopped, or with `count` -1 one that goes on."""
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
        """Of the tenants that wait, with the counter of each, and what it holds: the least served that holds so little,
        and the least served that holds nothing."""
        found = list[tuple[float, int]]()
        for tenant in self.least_served():
            held = self.held(tenant)
            if held <= little and (not found or not held):
                found.append((self.counters.value(tenant), held))
                if not held:
                    break
        return found

    def shortest_newcomer(self, little: int) -> int:
        """The fewest tokens of the next request of a newcomer, of the least served."""
        held, waiting = self.held, self._waiting
        return min(
            [len(waiting[one][0][-1].job.prompt) for one in self.least_served() if held(one) <= little], default=0
        )

    def little(self) -> int:
        """The most that a tenant may hold and be a newcomer: less than 1 / LITTLE of what another holds where deadlines
        press and Θ is wide for their sake; elsewhere, where Θ is a few steps and soon over, nothing."""
        return self._little() if self.lane.burst_ms else 0

    def lesser(self) -> set[str]:
        """Tenants of which something has begun, but less than 1 / LITTLE as much as of another."""
        little = self._little()
        return {tenant for tenant in self.begun if self.held(tenant) <= little} if little else set()

    def _little(self) -> int:
        while self._most_held and self._most_held not in self._holding:
            self._most_held -= 1
        return max(0, self._most_held - 1) // LITTLE

    def held(self, tenant: str) -> int:
        """How much of a tenant has begun: its sequences, those without a token yet for LITTLE more, since their prompts
        take all of a step's time and not a row of it."""
        return self.begun.get(tenant, 0) + LITTLE * self.unanswered.get(tenant, 0)

    def least_unanswered(self) -> float:
        """The least counter of a tenant of which something has begun, and nothing has a token yet; infinity without
        one."""
        return self._opening_tenants.least()

    def has_token(self, tenant: str) -> bool:
        """Whether anything of a tenant that has begun has come as far as its first token. Until then it is a newcomer,
        however many steps its prompt takes: else decodes would fill each step before the rest of it."""
        return self.begun.get(tenant, 0) > self.unanswered.get(tenant, 0)

    def lift(self, tenant: str) -> None:
        """To call before a tenant's work begins to wait: it starts where the least served that waits stands. Where
        nobody waits all have had what they asked for: the lane is level again, and nobody is in debt, nor in credit
        for having asked for less than others."""
        if tenant not in self._waiting and tenant not in self.away:
            least = self.least_counter()
            if least < math.inf:
                self.counters.lift_to(tenant, least)
            else:
                for each in (tenant, *self.begun):
                    self.counters.lift_to(each, self._most_served)
            self.counters.forget_idle((tenant,), self.begun, self._waiting)

    def charge(self, tenant: str, tokens: float, weight: float) -> None:
        if self._least_served and tenant in self._least_served:  # counters grow: others come no nearer
            self._least_served = None
        served = self.counters.charge(tenant, tokens, weight)
        if served > self._most_served:
            self._most_served = served

    # What waits.

    @property
    def waits(self) -> bool:
        return bool(self._waiting)

    @property
    def waiting(self) -> Collection[str]:
        """Tenants of which work waits."""
        return self._waiting.keys()

    def all_waiting(self) -> Iterator[Sequence]:
        """Every sequence of the lane that has not begun."""
        return map(itemgetter(-1), self._elders)

    def add(self, seq: Sequence) -> None:
        tenant = seq.job.tenant
        waiting = self._waiting.get(tenant)
        if waiting is None:
            waiting = self._waiting[tenant] = []
            self._waiting_tenants.add(tenant)
            self._least_served = None
        insort(waiting, _by_due(seq))
        self._first_tokens[tenant] = len(waiting[0][-1].job.prompt)
        insort(self._elders, _by_promotion(seq))
        if seq.job.guaranteed:
            insort(self._guaranteed, _by_due(seq))

    def remove(self, seq: Sequence) -> None:
        tenant = seq.job.tenant
        waiting = self._waiting[tenant]
        del waiting[bisect_left(waiting, _by_due(seq))]
        del self._elders[bisect_left(self._elders, _by_promotion(seq))]
        if seq.job.guaranteed:
            del self._guaranteed[bisect_left(self._guaranteed, _by_due(seq))]
            self._newcomer_debt = self._newcomer_debt if self._guaranteed else 0.0
        if waiting:
            self._first_tokens[tenant] = len(waiting[0][-1].job.prompt)
        else:
            del self._waiting[tenant], self._first_tokens[tenant]
            self._least_served = None

    def next_of(self, tenant: str, now_ms: float) -> Sequence:
        """The first of a tenant's waiting work."""
        filed = self._waiting[tenant]
        first = filed[0]
        if first[0] and first < (True, now_ms):  # overdue: what is in time goes before it
            in_time = bisect_left(filed, (True, now_ms))
            first = filed[in_time] if in_time < len(filed) else first
        return first[-1]

    def next_up(self, tenant: str, now_ms: float) -> Iterator[Sequence]:
        """The first of a tenant's waiting work as it is now, by class and due time; what is overdue comes last."""
        filed = self._waiting.get(tenant)
        if not filed:
            return iter(())
        if filed[0] > (True, now_ms):  # nothing is promised, nothing overdue
            return map(itemgetter(-1), filed[:WAITING_PER_TENANT])
        promised, in_time = bisect_left(filed, (True, -math.inf)), bisect_left(filed, (True, now_ms))
        spans = (0, promised), (in_time, len(filed)), (promised, in_time)
        found = [filed[first : min(end, first + WAITING_PER_TENANT)] for first, end in spans]
        return map(itemgetter(-1), islice(chain.from_iterable(found), WAITING_PER_TENANT))

    def least_served(self) -> Collection[str]:
        """Tenants of which work waits, the least served first."""
        if self._least_served is None:
            self._least_served = dict.fromkeys(self._waiting_tenants.first(LEAST_SERVED))
        return self._least_served.keys()

    def guaranteed(self) -> list[Sequence]:
        """The first due of the guaranteed waiting work, of all tenants together."""
        return [filed[-1] for filed in self._guaranteed[:LEAST_SERVED]]

    @property
    def admits_newcomers(self) -> bool:
        """Promised work waits, and newcomers may go before it: what they had so far is paid back."""
        return bool(self._guaranteed) and self._newcomer_debt <= 0.0

    def computed(self, seq: Sequence, tokens: int) -> None:
        """So much of a prompt was computed: a newcomer's is lent while promised work waits, that work's pays it
        back. Nothing is lent ahead, so what promised work waits for is one step of newcomers at most, and
        NEWCOMER_PART of its own."""
        if seq.is_promised:
            self._newcomer_debt = max(0.0, self._newcomer_debt - NEWCOMER_PART * tokens)
        elif self._guaranteed and not self.has_token(seq.job.tenant):
            self._newcomer_debt += tokens

    def promoted(self, now_ms: float) -> Iterator[Sequence]:
        """Waiting work that counts for the lane above, what has done so for longest first."""
        for _, promoted_ms, _, _, seq in self._elders[:LEAST_SERVED]:
            if now_ms < promoted_ms:
                return
            yield seq


def adjust(counts: Counter[K], key: K, by: int) -> None:
    """Keep no zeros: what is counted is also a set."""
    count = counts[key] + by
    if count:
        counts[key] = count
    else:
        counts.pop(key, None)


def _by_due(seq: Sequence) -> Filed:
    return (not seq.job.guaranteed, seq.first_due_ms, *seq.id, seq)


def _by_promotion(seq: Sequence) -> Filed:
    return (0, seq.promoted_ms, *seq.id, seq)
