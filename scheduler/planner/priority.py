"""The total order of everything that a worker could run: running, resumable and waiting work together.

A decode keeps its row for a turn: until its tenant is ahead of those without a row by the service of a turn. Otherwise
equally served tenants would swap rows in every step, which stops streams. Turns do not affect Θ."""

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

# Lane rank of work that cannot run because it is at its grant: below every lane.
IDLE = 1_000
# Started tenants per available row of a lane at which newcomers lose their advantage: with more streams taking turns,
# each would run at less than half its pace, and their KV would keep moving to the host and back.
CROWD = 2
# Minimum tokens of a turn, and its maximum as a fraction of Θ.
MIN_TURN, MAX_TURN = 8.0, 0.5
# Base urgency of a newcomer's request with a distant deadline. The request's length, as a power of LITTLE, is added, so
# that shorter requests come first.
FAR = 1e15
AHEAD = -1


class Phase(IntEnum):
    """Progress of work. Started work comes before other work, the nearest to its next token first."""

    DECODE = 0
    PREFILL = 1
    RESUME = 2
    WAITING = 3


PHASES = {  # started work only
    State.DECODE: Phase.DECODE,
    State.PAUSED: Phase.DECODE,
    State.PREFILL: Phase.PREFILL,
    State.SWAPPED: Phase.RESUME,
    State.DROPPED: Phase.RESUME,
    State.WAITING: Phase.RESUME,
}
# Lane rank, outside the window, class: takes precedence over started work.
Group = tuple[int, bool, int]


class Rank(NamedTuple):
    """The sort key of a sequence; lower is more urgent.

    Two running sequences swap places only after service was charged, so preemption cannot cycle."""

    lane: int
    # Never for guaranteed work: a guarantee holds however much its tenant was served.
    outside_window: bool
    # 0 guaranteed, while a guarantee lies ahead; 1 best effort; 2 relegated: waiting work that can no longer be in
    # time. AHEAD: the first work of a tenant without a token, as far as guarantees leave time (`LaneIndex.computed`);
    # it takes blocks and rows as best effort does.
    service_class: int
    phase: Phase
    # Waiting work: the time to its deadline, weighted by its length. Prompts in progress: remaining tokens, so that one
    # finishes before the next. Otherwise 0.
    urgency: float
    # Its tenant's weighted tokens; less a turn for a decode with a row.
    counter: float
    # Due time of its first token, or the time at which it was stopped, so that one tenant's streams take turns.
    due_ms: float
    job_id: str
    choice: int

    @property
    def group(self) -> Group:
        return self[:3]

    @property
    def level(self) -> Group:
        """The group up to which others' growth counts for it: work that goes ahead is best effort after its first
        token."""
        return self.lane, self.outside_window, 1 if self.service_class == AHEAD else self.service_class


class Ranked(NamedTuple):
    """One sequence with its sort key."""

    rank: Rank
    seq: Sequence


class LaneOrder:
    """The tenants of one lane at one moment. What a tenant holds is cached: the order must not change within a step."""

    def __init__(self, lane: LaneIndex, window: float, turn: float, *, crowded: bool) -> None:
        """`turn`: weighted tokens of a turn; `crowded`: newcomers have no advantage."""
        self.window, self.long_wait_ms = window, lane.lane.long_wait_ms
        self.turn = min(turn, MAX_TURN * window)
        self.served = lane.counters.values
        self.least = lane.least_counter()
        self.ends = self.least + window
        self.far = self.ends + window
        self.little = lane.little()
        self.admits_newcomers = lane.admits_newcomers
        newcomers = [] if crowded else lane.newcomers(self.little)
        # Counter from which a tenant with a token is outside because of prompts in progress.
        self._opens = lane.least_unanswered() - window
        # Counter of the least served tenant that holds nothing.
        self.newcomer = min([counter for counter, held in newcomers if not held], default=math.inf)
        # Counter from which a tenant that holds anything is outside because of that one.
        self._begins = self.newcomer - window
        # (counter, held): from this counter on a tenant that holds more is outside because of one that holds little.
        self._small = [(counter - window, LITTLE * held) for counter, held in newcomers if held]
        self._index = lane
        self._known: dict[str, tuple[int, bool]] = {}

    def decodes_outside(self, tenant: str, counter: float) -> bool:
        """Return whether a tenant's decodes are outside: a faster `is_outside`, since they have tokens."""
        if counter > self.ends or counter >= self._opens or counter >= self._begins:
            return True
        return bool(self._small) and self._exceeds(counter, self.progress(tenant)[0])

    def is_outside(self, seq: Sequence, counter: float) -> bool:
        """Return whether started work is outside the window.

        Its tenant is more than Θ above the least served waiting one. Or another tenant is at most Θ behind, and either
        waits and holds less than 1 / LITTLE as much, or has no token while this one has. A prompt in progress continues
        unless a newcomer's is shorter than its remainder: otherwise all prompts would start and none would finish."""
        if counter > self.ends:
            return True
        held, has_token = self.progress(seq.job.tenant)
        if has_token and counter >= self._opens:
            return True
        return self._exceeds(counter, held) and (has_token or seq.pending > self._shortest)

    def begins_outside(self, counter: float, held: int, has_token: bool) -> bool:
        return (has_token and held > self.little and counter >= self._opens) or self._exceeds(counter, held)

    def progress(self, tenant: str) -> tuple[int, bool]:
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
    """The order at one moment, for a step of at most `rows` rows."""

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
            turn = DECODE_WEIGHT * max(MIN_TURN, lane.tpot_on(costs.single_stream_ms) / token_ms)
            crowded = len(one.begun) >= CROWD * lane_rows(lane, lanes, begun, rows)
            self._lanes[name] = LaneOrder(one, max(1.0, window), turn, crowded=crowded)
        # Without and with promotion.
        self._lane_ranks = (
            {name: lane.rank for name, lane in lanes.items()},
            {name: max(0, lane.rank - 1) for name, lane in lanes.items()},
        )

    def stand(self, seq: Sequence, ahead: float = 0.0) -> Ranked:
        """Return a sequence's rank, with `ahead` added to its tenant's counter for earlier work of this step."""
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
            service_class = AHEAD  # the least served tenant without started work goes first
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
        """Return the `count` most urgent decodes of one group and lane, unordered, without computing all their
        ranks."""
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
        """Return decodes by group and lane, and the number that yield to one request per step, by lane rank: those
        outside the window whose tenants are at most 2 Θ above the least served waiting one."""
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
        name, tenant, promised, promoted = kind
        lane = self._lanes[name]
        outside = not promised and lane.decodes_outside(tenant, lane.served.get(tenant, 0.0))
        return self._lane_ranks[promoted][name], outside, 0 if promised else 1

    def first_group(self, lane: LaneIndex) -> Group:
        promotes = next(lane.promoted(self.now_ms), None) is not None
        return self._lane_ranks[promotes][lane.lane.name], False, int(not lane.guaranteed())

    def is_far_ahead(self, name: LaneName, tenant: str) -> bool:
        lane = self._lanes[name]
        return lane.served.get(tenant, 0.0) > lane.far


def _turn_ms(seq: Sequence) -> float:
    return seq.first_due_ms if seq.stalled_since_ms is None else seq.stalled_since_ms


def lane_rows(lane: Lane, lanes: Mapping[LaneName, Lane], begun: Survey, rows: int) -> int:
    """Return how many rows a lane can have: those that lanes above do not claim, and at least its share floor."""
    above = sum([begun.claims[name] for name, other in lanes.items() if other.rank < lane.rank])
    return max(rows - above, math.ceil(lane.share_floor * (rows - 1)))
