"""The one order of everything that a worker could run: running, resumable and waiting work together.

Whose decode has a row keeps it for a turn: until its tenant is ahead of those without one by what a turn serves. A
change of rows stops one stream and resumes another, which both gateways and readers notice; by counters alone tenants
that are served alike would change rows in every step. A turn is as long as the lane's target between two tokens, so two
streams that share a row wait about that long for each other. Θ and what follows from it are not affected: turns order
only what is inside the window, or what is outside.
"""

import heapq
import math
from collections import Counter
from collections.abc import Mapping
from enum import IntEnum
from functools import cached_property
from typing import NamedTuple

from fairlane.scheduler.planner.costs import CostModel
from fairlane.scheduler.planner.lane_index import LITTLE, LaneIndex
from fairlane.scheduler.planner.ordering import DECODE_WEIGHT, prospects
from fairlane.scheduler.planner.sequence import Kind, Sequence, State
from fairlane.scheduler.planner.sequence_index import SequenceIndex
from fairlane.scheduler.planner.step_budget import Survey
from fairlane.scheduler.protocol.lanes import Lane, LaneName

IDLE = 1_000
"""Lane rank of work that cannot run: at its grant, it ranks below every lane."""
CROWD = 2
"""Tenants of a lane that have begun, for each of the rows it can have, from which on nobody is a newcomer: more streams
that take turns would each have less than half its pace, and their KV would go to the host and back."""
LEAST_TURN, MOST_TURN = 8.0, 0.5
"""A turn serves at least so many tokens, and at most this part of Θ."""
FAR = 1e15
"""Urgency of a newcomer's request whose deadline is far off, and above that by how long it is: in powers of LITTLE, the
shorter come first."""
AHEAD = -1
"""The class of a newcomer that goes before what is guaranteed."""


class Phase(IntEnum):
    """Work that has begun comes before work that has not, the nearest to its next token first."""

    DECODE = 0
    PREFILL = 1
    RESUME = 2
    WAITING = 3


PHASES = {  # of work that has begun
    State.DECODE: Phase.DECODE,
    State.PAUSED: Phase.DECODE,
    State.PREFILL: Phase.PREFILL,
    State.SWAPPED: Phase.RESUME,
    State.DROPPED: Phase.RESUME,
    State.WAITING: Phase.RESUME,
}
Group = tuple[int, bool, int]
"""What sets work above other work whatever either of them has begun: lane rank, outside the window, class."""


class Rank(NamedTuple):
    """Lower is more urgent. Of work that has begun nothing here changes with time alone, nor within a step: two running
    sequences trade places only after service was charged, so preemption among them cannot go in circles."""

    lane: int
    outside_window: bool
    """Never of what is guaranteed: a promise holds whatever its tenant has had since. Its service counts."""
    service_class: int
    """0 guaranteed, as long as it has a promise ahead; 1 best effort; 2 relegated: waiting work that can no longer be
    in time gives way to what can. AHEAD: the first of a tenant that has no token yet, as far as promises have the time
    (`LaneIndex.computed`); it takes blocks and rows as best effort does."""
    phase: Phase
    urgency: float
    """Of waiting work how near its deadline is, the shorter the nearer; of prompts in progress the tokens that are
    left, so that one is done before the next; of all else nothing."""
    counter: float
    """Weighted tokens that its tenant has had; a turn less for a decode that has its row."""
    due_ms: float
    """When its first token is or was due; of what was stopped the time of that, so that one tenant's streams take
    turns."""
    job_id: str
    choice: int

    @property
    def group(self) -> Group:
        """Where it stands but for what it has begun."""
        return self[:3]

    @property
    def level(self) -> Group:
        """Up to which group others' growth counts for it: who goes ahead is best effort once it has its token."""
        return self.lane, self.outside_window, 1 if self.service_class == AHEAD else self.service_class


class Ranked(NamedTuple):
    """One sequence's place in the order."""

    rank: Rank
    seq: Sequence


class LaneOrder:
    """Where the tenants of one lane stand at one moment. What a tenant holds is as it was when first asked for: an
    order that moved within a step would be none."""

    def __init__(self, lane: LaneIndex, window: float, turn: float, *, crowded: bool) -> None:
        """`turn`: weighted tokens of a turn; `crowded`: nobody is a newcomer."""
        self.window, self.long_wait_ms = window, lane.lane.long_wait_ms
        self.turn = min(turn, MOST_TURN * window)
        self.served = lane.counters.values
        self.least = lane.least_counter()
        self.ends = self.least + window
        """Counters up to which a tenant is inside the window."""
        self.far = self.ends + window
        """The same of twice the window."""
        self.little = lane.little()
        self.admits_newcomers = lane.admits_newcomers
        newcomers = [] if crowded else lane.newcomers(self.little)
        self._opens = lane.least_unanswered() - window
        """Counters from which on a tenant with a token is outside for the sake of prompts in progress."""
        self.newcomer = min([counter for counter, held in newcomers if not held], default=math.inf)
        """The counter of the least served that holds nothing."""
        self._begins = self.newcomer - window
        """Counters from which on a tenant that holds anything is outside for the sake of that one."""
        self._small = [(counter - window, LITTLE * held) for counter, held in newcomers if held]
        """The same of one that holds so much, beside who holds more."""
        self._index = lane
        self._known: dict[str, tuple[int, bool]] = {}

    def decodes_outside(self, tenant: str, counter: float) -> bool:
        """Whether a tenant's decodes are outside: as `is_outside`, in less time, since they have tokens."""
        if counter > self.ends or counter >= self._opens or counter >= self._begins:
            return True
        return bool(self._small) and self._exceeds(counter, self.progress(tenant)[0])

    def is_outside(self, seq: Sequence, counter: float) -> bool:
        """Of begun work: its tenant had more than Θ above the least served that waits; or, beside a tenant that is
        ahead by no more than Θ: holds more than LITTLE times as much, and the other waits; or has tokens, and the
        other has none yet.

        A prompt that has begun goes on before those of tenants that have no token either, unless one is shorter than
        what is left of it: else all would begin, one in each step, and none come to its end."""
        if counter > self.ends:
            return True
        held, has_token = self.progress(seq.job.tenant)
        if has_token and counter >= self._opens:
            return True
        return self._exceeds(counter, held) and (has_token or seq.pending > self._shortest)

    def begins_outside(self, counter: float, held: int, has_token: bool) -> bool:
        """The same of what a tenant begins that holds something already: who holds little may begin beside others'
        prompts in progress."""
        return (has_token and held > self.little and counter >= self._opens) or self._exceeds(counter, held)

    def progress(self, tenant: str) -> tuple[int, bool]:
        """What a tenant holds, and whether any of it has a token."""
        known = self._known.get(tenant)
        if known is None:
            index = self._index
            known = (index.held(tenant), index.has_token(tenant)) if tenant in index.begun else (0, False)
            self._known[tenant] = known
        return known

    def _exceeds(self, counter: float, held: int) -> bool:
        return counter >= self._begins or any(counter >= reach and held > most for reach, most in self._small)

    @cached_property
    def _shortest(self) -> int:
        return self._index.shortest_newcomer(self.little)


class Ranking:
    """The order at one moment, in a step of at most so many rows."""

    def __init__(self, index: SequenceIndex, begun: Survey, costs: CostModel, now_ms: float, rows: int) -> None:
        self.index = index
        self.begun = begun
        self.now_ms = now_ms
        self._token_ms, self._pair_ms = costs.prefill_ms()
        self._step_ms, row_ms, *_ = costs.step_weights()
        token_ms = max(1e-3, self._step_ms + row_ms * min(rows, sum(begun.claims.values())))
        lanes = {name: one.lane for name, one in index.lanes.items()}
        self._lanes: dict[LaneName, LaneOrder] = {}
        for name, one in index.lanes.items():
            lane = one.lane
            window = lane.window(one.counters.window, self._token_ms if costs.has_learnt else 0.0)
            turn = DECODE_WEIGHT * max(LEAST_TURN, lane.tpot_on(costs.single_stream_ms) / token_ms)
            crowded = len(one.begun) >= CROWD * lane_rows(lane, lanes, begun, rows)
            self._lanes[name] = LaneOrder(one, max(1.0, window), turn, crowded=crowded)
        self._lane_ranks = (
            {name: lane.rank for name, lane in lanes.items()},
            {name: max(0, lane.rank - 1) for name, lane in lanes.items()},
        )
        """Of what has not waited long, and of what has."""

    def stand(self, seq: Sequence, ahead: float = 0.0) -> Ranked:
        """Where a sequence stands, after its tenant was charged as much as is `ahead` of it in this very step."""
        if seq.is_new:
            return self._stand_waiting(seq, ahead)
        job, promised = seq.job, seq.is_promised
        lane = self._lanes[job.lane]
        counter = place = lane.served.get(job.tenant, 0.0) + ahead
        phase, service_class, urgency = PHASES[seq.state], int(not promised), 0.0
        if phase is Phase.PREFILL and not promised:
            urgency = float(seq.pending)
        elif phase is Phase.DECODE and seq.stalled_since_ms is None:
            place = counter - lane.turn / job.weight
        if lane.admits_newcomers and not promised and ahead == 0.0:
            service_class = 1 if lane.progress(job.tenant)[1] or seq.output else AHEAD
        rank = Rank(
            self._lane_ranks[self.now_ms >= seq.promoted_ms][job.lane] if seq.is_runnable else IDLE,
            not promised and lane.is_outside(seq, counter),
            service_class,
            phase,
            urgency,
            place,
            _turn_ms(seq),
            job.job_id,
            seq.id.choice,
        )
        return Ranked(rank, seq)

    def _stand_waiting(self, seq: Sequence, ahead: float) -> Ranked:
        job = seq.job
        name, tenant, guaranteed, tokens = job.lane, job.tenant, job.guaranteed, len(job.prompt)
        lane = self._lanes[name]
        counter = lane.served.get(tenant, 0.0) + ahead
        held, has_token = lane.progress(tenant)
        service_ms = 2.0 * self._step_ms + tokens * (self._token_ms + self._pair_ms * tokens)
        relegated, urgency = prospects(
            seq.first_due_ms - self.now_ms - service_ms,
            service_ms,
            0.0 if guaranteed or counter <= lane.least else (counter - lane.least) * self._token_ms,
            self.now_ms - seq.arrived_ms,
            lane.long_wait_ms,
            guaranteed=guaranteed,
        )
        service_class = 0 if guaranteed else 2 if relegated else 1
        if service_class == 1 and urgency == math.inf and not held and ahead == 0.0:
            urgency = FAR + tokens.bit_length() // 2
        if lane.admits_newcomers and not (guaranteed or held) and ahead == 0.0 and counter <= lane.newcomer < math.inf:
            service_class = AHEAD  # before promised work: the least served of the tenants of which nothing has begun
        outside = not guaranteed and (
            counter > lane.ends or (held > 0 and lane.begins_outside(counter, held, has_token))
        )
        rank = Rank(
            self._lane_ranks[self.now_ms >= seq.promoted_ms][name],
            outside,
            service_class,
            Phase.WAITING,
            urgency,
            counter,
            seq.first_due_ms,
            job.job_id,
            seq.id.choice,
        )
        return Ranked(rank, seq)

    def first_decodes(self, decodes: list[Sequence], count: int) -> list[Sequence]:
        """The most urgent of decodes of one group and lane, in no order: as their ranks say, without making them. Few
        of them are left over, as a rule."""
        lane = self._lanes[decodes[0].job.lane]
        served, turn = lane.served, lane.turn
        places = [
            served.get(seq.job.tenant, 0.0) - (turn / seq.job.weight if seq.stalled_since_ms is None else 0.0)
            for seq in decodes
        ]
        last = heapq.nlargest(len(decodes) - count, places)[-1]
        first = [seq for seq, place in zip(decodes, places, strict=True) if place < last]
        level = [seq for seq, place in zip(decodes, places, strict=True) if place == last]
        level.sort(key=lambda seq: (_turn_ms(seq), seq.id))
        return first + level[: count - len(first)]

    def groups(self) -> tuple[dict[Group, dict[LaneName, list[Sequence]]], Counter[int]]:
        """Decodes by where they stand, and by lane: a promoted one stands with those of the lane above. And by lane
        rank those outside the window whose tenants had no more than 2 Θ above the least served that waits."""
        found: dict[tuple[LaneName, bool, bool, bool], list[Sequence]] = {}
        near: Counter[int] = Counter()
        lanes, ranks = self._lanes, self._lane_ranks
        for (name, tenant, promised, promoted), decodes in self.begun.decodes.items():
            lane = lanes[name]
            counter = lane.served.get(tenant, 0.0)
            outside = not promised and lane.decodes_outside(tenant, counter)
            place = name, outside, promised, promoted
            if place in found:
                found[place] += decodes
            else:
                found[place] = [*decodes]
            if outside and counter <= lane.far:
                near[ranks[promoted][name]] += len(decodes)
        groups: dict[Group, dict[LaneName, list[Sequence]]] = {}
        for (name, outside, promised, promoted), alike in found.items():
            group = ranks[promoted][name], outside, 0 if promised else 1
            groups.setdefault(group, {}).setdefault(name, []).extend(alike)
        return groups, near

    def group(self, kind: Kind) -> Group:
        """Where decodes of this kind stand."""
        name, tenant, promised, promoted = kind
        lane = self._lanes[name]
        outside = not promised and lane.decodes_outside(tenant, lane.served.get(tenant, 0.0))
        return self._lane_ranks[promoted][name], outside, 0 if promised else 1

    def first_group(self, lane: LaneIndex) -> Group:
        """The first group that a lane's waiting work could be in."""
        promotes = next(lane.promoted(self.now_ms), None) is not None
        return self._lane_ranks[promotes][lane.lane.name], False, int(not lane.guaranteed())

    def is_far_ahead(self, name: LaneName, tenant: str) -> bool:
        """It had more than 2 Θ above the least served that waits."""
        lane = self._lanes[name]
        return lane.served.get(tenant, 0.0) > lane.far


def _turn_ms(seq: Sequence) -> float:
    return seq.first_due_ms if seq.stalled_since_ms is None else seq.stalled_since_ms


def lane_rows(lane: Lane, lanes: Mapping[LaneName, Lane], begun: Survey, rows: int) -> int:
    """Of so many rows those that a lane can have: what the lanes above do not claim, and its share floor at least."""
    above = sum([begun.claims[name] for name, other in lanes.items() if other.rank < lane.rank])
    return max(rows - above, math.ceil(lane.share_floor * (rows - 1)))
