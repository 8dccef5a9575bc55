"""Every sequence of a worker, filed by what it could do next, so that no step looks at all that waits.

Begun work is held one by one: the KV pools bound it. What decodes is kept by lane, tenant and class, from step to step,
since a step changes a few of hundreds. Waiting work is filed by lane, tenant and due time; a step looks at the first of
the tenants served least, and at the eldest of what has waited long enough to be promoted.
"""

import heapq
import math
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from itertools import chain, islice
from operator import itemgetter

from fairlane.scheduler.planner.ordering import Counters
from fairlane.scheduler.planner.sequence import Kind, Sequence, State
from fairlane.scheduler.planner.steps import SeqId
from fairlane.scheduler.protocol.lanes import Lane, LaneName
from fairlane.scheduler.protocol.messages import Job


class Decodes:
    """What a worker decodes, by kind: hundreds of sequences, of which a step changes a few."""

    def __init__(self, lanes: Mapping[LaneName, Lane]) -> None:
        self.counts: Counter[LaneName] = Counter()
        self._lanes = lanes
        self._kinds: dict[SeqId, Kind] = {}
        self._by_kind: dict[Kind, tuple[Sequence, ...]] = {}
        self._next_ms = dict.fromkeys(lanes, math.inf)
        """When the first of those that are not promoted will be, or earlier."""

    def add(self, seq: Sequence) -> None:
        """Add a sequence that begins to decode."""
        lane = seq.job.lane
        self.counts[lane] += 1
        self._next_ms[lane] = min(self._next_ms[lane], seq.promoted_ms)
        self._put(seq, seq.kind)

    def remove(self, seq: Sequence) -> None:
        """Remove a sequence that decodes no longer; one that did not is fine."""
        kind = self._kinds.pop(seq.id, None)
        if kind is not None:
            self.counts[kind[0]] -= 1
            self._take(seq, kind)

    def by_kind(self, now_ms: float) -> dict[Kind, tuple[Sequence, ...]]:
        """A snapshot of all decodes, with promotions up to now."""
        for name, next_ms in self._next_ms.items():
            if next_ms <= now_ms:
                self._promote(name, now_ms)
        return self._by_kind.copy()

    def promotes(self, now_ms: float) -> bool:
        """Some may stand higher now than when `by_kind` was last asked."""
        return any(next_ms <= now_ms for next_ms in self._next_ms.values())

    def alike(self) -> Iterator[tuple[LaneName, tuple[Sequence, ...]]]:
        """All decodes, grouped by kind, with the lane of each group."""
        return ((kind[0], alike) for kind, alike in self._by_kind.items())

    def _promote(self, name: LaneName, now_ms: float) -> None:
        """Those of a lane whose time has come stand one lane higher."""
        alike = [kind for kind in self._by_kind if kind[0] is name and not kind[3]]
        staying = []
        for seq in [seq for kind in alike for seq in self._by_kind[kind]]:
            if seq.promoted_ms <= now_ms:
                self._take(seq, seq.kind)
                self._put(seq, (*seq.kind[:3], True))
            else:
                staying.append(seq.promoted_ms)
        self._next_ms[name] = min(staying, default=math.inf)

    def _put(self, seq: Sequence, kind: Kind) -> None:
        self._kinds[seq.id] = kind
        self._by_kind[kind] = (*self._by_kind.get(kind, ()), seq)

    def _take(self, seq: Sequence, kind: Kind) -> None:
        others = tuple([one for one in self._by_kind[kind] if one is not seq])
        if others:
            self._by_kind[kind] = others
        else:
            del self._by_kind[kind]


WAITING_PER_TENANT = 32
"""Of a tenant's waiting work, what a step could look at."""
LEAST_SERVED = 32
"""Tenants of one lane whose waiting work a step looks at; as many of the guaranteed and of the promoted sequences."""

LITTLE = 4
"""A tenant counts as a newcomer where of another more than so many times as much has begun: with 2, tenants that
arrived unevenly took rows from each other so often that `eta_ms` was off."""
NEWCOMER_PART = 0.25
"""Prompt tokens of newcomers that go before promised work, for each that this computes meanwhile: promises hold if all
takes longer by more than that (`promises.MARGIN`)."""

Filed = tuple[float, float, str, int, Sequence]
"""A waiting sequence by class and a time in ms; job and choice break ties."""


class LaneIndex:
    """One lane: waiting sequences by tenant, and the service that each tenant has had."""

    def __init__(self, lane: Lane, counters: Counters) -> None:
        self.lane = lane
        self.counters = counters
        self.begun: Counter[str] = Counter()
        """Runnable sequences that have begun, by tenant."""
        self.away: Counter[str] = Counter()
        """Of these, those whose KV is not on the device."""
        self.unanswered: Counter[str] = Counter()
        """Of these, those that have no token yet."""
        self._guaranteed: list[Filed] = []
        self._newcomer_debt = 0.0
        """Prompt tokens that newcomers had before promised work that waits, and that are not paid back yet."""
        self._most_served = 0.0
        """The largest counter."""
        self._waiting: dict[str, list[Filed]] = {}
        self._elders: list[Filed] = []
        self._least: list[tuple[float, str]] = []
        """A heap of tenants of which work waits, by a counter that may have grown since."""
        self._least_served: list[str] | None = None
        """What `least_served` said, until anything changes that it rests on."""
        self._listed: set[str] = set()

    def least_counter(self) -> float:
        """The counter of the least served tenant that waits; without one, infinity."""
        return min(self._waiting_counters(), default=math.inf)

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

    def little(self) -> int:
        """What a tenant may hold and be a newcomer: less than 1 / LITTLE of what another does where deadlines press and
        Θ is wide for their sake; elsewhere, where Θ is a few steps and soon over, nothing."""
        return self._little() if self.lane.burst_ms else 0

    def lesser(self) -> set[str]:
        """Tenants of which something has begun, but less than 1 / LITTLE as much as of another."""
        little = self._little()
        return {tenant for tenant in self.begun if self.held(tenant) <= little}

    def _little(self) -> int:
        return (max(map(self.held, self.begun), default=1) - 1) // LITTLE

    def held(self, tenant: str) -> int:
        """How much of a tenant has begun: its sequences, those without a token yet for LITTLE more, since their prompts
        have all the steps' time and not a row of each."""
        return self.begun[tenant] + LITTLE * self.unanswered[tenant]

    def least_unanswered(self) -> float:
        """The least counter of a tenant of which something has begun, and nothing has a token yet; without one,
        infinity."""
        return min([self.counters.value(one) for one in self.unanswered if not self.has_token(one)], default=math.inf)

    def has_token(self, tenant: str) -> bool:
        """Anything of a tenant that has begun has come as far as its first token. Until then it is a newcomer, however
        many steps its prompt takes: else decodes would fill each step before the rest of it."""
        return self.begun[tenant] > self.unanswered[tenant]

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

    def lift(self, tenant: str) -> None:
        """To call before a tenant's work begins to wait: it starts where the least served that waits stands. Where
        nobody waits all have had what they asked for: the lane is level again, and nobody is in debt, nor in credit
        for having asked for less than others."""
        if tenant not in self._waiting and tenant not in self.away:
            waiting = self._waiting_counters()
            if waiting:
                self.counters.lift_to(tenant, min(waiting))
                return
            for each in (tenant, *self.begun):
                self.counters.lift_to(each, self._most_served)

    def charge(self, tenant: str, tokens: float, weight: float) -> None:
        self._least_served = None
        served = self.counters.charge(tenant, tokens, weight)
        if served > self._most_served:
            self._most_served = served

    def add(self, seq: Sequence) -> None:
        tenant = seq.job.tenant
        insort(self._waiting.setdefault(tenant, []), _by_due(seq))
        insort(self._elders, _by_promotion(seq))
        if seq.job.guaranteed:
            insort(self._guaranteed, _by_due(seq))
        self._least_served = None
        if tenant not in self._listed:
            self._listed.add(tenant)
            heapq.heappush(self._least, (self.counters.value(tenant), tenant))

    def remove(self, seq: Sequence) -> None:
        tenant = seq.job.tenant
        waiting = self._waiting[tenant]
        del waiting[bisect_left(waiting, _by_due(seq))]
        del self._elders[bisect_left(self._elders, _by_promotion(seq))]
        if seq.job.guaranteed:
            del self._guaranteed[bisect_left(self._guaranteed, _by_due(seq))]
            self._newcomer_debt = self._newcomer_debt if self._guaranteed else 0.0
        if not waiting:
            del self._waiting[tenant]
            self._least_served = None

    def next_up(self, tenant: str, now_ms: float) -> Iterator[Sequence]:
        """The first of a tenant's waiting work as it is now, by class and due time; what is overdue comes last."""
        filed = self._waiting[tenant]
        if filed[0] > (True, now_ms):  # nothing is promised, nothing overdue
            return map(itemgetter(-1), filed[:WAITING_PER_TENANT])
        promised, in_time = bisect_left(filed, (True, -math.inf)), bisect_left(filed, (True, now_ms))
        spans = (0, promised), (in_time, len(filed)), (promised, in_time)
        found = [filed[first : min(end, first + WAITING_PER_TENANT)] for first, end in spans]
        return map(itemgetter(-1), islice(chain.from_iterable(found), WAITING_PER_TENANT))

    def least_served(self) -> list[str]:
        """Tenants of which work waits, the least served first."""
        if self._least_served is not None:
            return self._least_served
        found: list[tuple[float, str]] = []
        while len(found) < LEAST_SERVED and self._refresh_heap():
            found.append(heapq.heappop(self._least))
        for entry in found:
            heapq.heappush(self._least, entry)
        self._least_served = [tenant for _, tenant in found]
        return self._least_served

    def guaranteed(self) -> list[Sequence]:
        """The first due of the guaranteed waiting work, whosever it is."""
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

    def _waiting_counters(self) -> list[float]:
        """Counters of tenants that wait, the smallest among them."""
        waiting = [self._least[0][0]] if self._refresh_heap() else []
        return waiting + [self.counters.value(tenant) for tenant in self.away]

    def _refresh_heap(self) -> bool:
        """Bring the heap's first entry up to date. False: nobody waits."""
        while self._least:
            value, tenant = self._least[0]
            if tenant not in self._waiting:
                heapq.heappop(self._least)
                self._listed.discard(tenant)
            elif self.counters.value(tenant) > value:
                heapq.heapreplace(self._least, (self.counters.value(tenant), tenant))
            else:
                return True
        return False


class SequenceIndex:
    """Every sequence that is not over."""

    def __init__(self, lanes: Mapping[LaneName, Lane], *, window: float) -> None:
        self.lanes = {name: LaneIndex(lane, Counters(window)) for name, lane in lanes.items()}
        self.begun: dict[SeqId, Sequence] = {}
        """Runnable work that has begun: resident, or preempted and able to come back."""
        self.others: dict[SeqId, Sequence] = {}
        """Of that, what does not decode: prefills in progress, and what is to be resumed."""
        self.decodes = Decodes(lanes)
        self.idle: dict[SeqId, Sequence] = {}
        """At its grant, or waiting for a sibling's prefix. It may hold blocks."""
        self.changes = 0
        """Grows whenever a sequence is filed or forgotten, or stops or goes on where it is."""
        self.most_tokens = 0
        """KV tokens that all that has begun can grow to."""
        self._waiting: set[SeqId] = set()
        self._away: set[SeqId] = set()
        self._unanswered: set[SeqId] = set()

    def file(self, seq: Sequence) -> None:
        """Put a sequence where it belongs now: after every change of its state or grant."""
        lane = self.lanes[seq.job.lane]
        self.remove(seq)
        if not seq.is_runnable or seq.awaits_prefix:
            self.idle[seq.id] = seq
            return
        if seq.is_new or not seq.is_resident:
            lane.lift(seq.job.tenant)
        if seq.is_new:
            self._waiting.add(seq.id)
            lane.add(seq)
        else:
            self.begun[seq.id] = seq
            if seq.state is State.DECODE:
                self.decodes.add(seq)
            else:
                self.others[seq.id] = seq
            self.most_tokens += seq.job.max_total_tokens
            lane.begun[seq.job.tenant] += 1
            if not seq.output:
                self._unanswered.add(seq.id)
                lane.unanswered[seq.job.tenant] += 1
            if not seq.is_resident:
                self._away.add(seq.id)
                lane.away[seq.job.tenant] += 1

    @property
    def only_decode(self) -> bool:
        """All that is here decodes, if anything is."""
        return not (self.others or self.idle or self._waiting)

    def only_decodes(self) -> LaneName | None:
        """The lane of all that is here if that decodes; None where anything else is here, or several lanes."""
        if not self.only_decode:
            return None
        lanes = [name for name, count in self.decodes.counts.items() if count]
        return lanes[0] if len(lanes) == 1 else None

    def not_decoding(self) -> Iterator[Sequence]:
        """All the others that are not over."""
        waiting = [lane.all_waiting() for lane in self.lanes.values() if lane.waits]
        return chain(self.others.values(), self.idle.values(), *waiting)

    def charge(self, job: Job, tokens: float) -> None:
        self.lanes[job.lane].charge(job.tenant, tokens, job.weight)

    def remove(self, seq: Sequence) -> None:
        """Forget a sequence; one that is unknown is fine."""
        self.changes += 1
        lane, tenant = self.lanes[seq.job.lane], seq.job.tenant
        if self.begun.pop(seq.id, None) is not None:
            self.others.pop(seq.id, None)
            self.decodes.remove(seq)
            self.most_tokens -= seq.job.max_total_tokens
            _take(lane.begun, tenant)
            if seq.id in self._unanswered:
                self._unanswered.remove(seq.id)
                _take(lane.unanswered, tenant)
            if seq.id in self._away:
                self._away.remove(seq.id)
                _take(lane.away, tenant)
        elif seq.id in self._waiting:
            self._waiting.remove(seq.id)
            lane.remove(seq)
        else:
            self.idle.pop(seq.id, None)


def _take(counts: Counter[str], tenant: str) -> None:
    counts[tenant] -= 1
    if not counts[tenant]:
        del counts[tenant]


def _by_due(seq: Sequence) -> Filed:
    return (not seq.job.guaranteed, seq.first_due_ms, *seq.id, seq)


def _by_promotion(seq: Sequence) -> Filed:
    return (0, seq.promoted_ms, *seq.id, seq)
