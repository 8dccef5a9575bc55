"""The one order of everything that a worker could run: running, resumable and waiting work together."""

from enum import IntEnum
from typing import NamedTuple

from scheduler.budget import Kind
from scheduler.costs import CostModel
from scheduler.roster import PROMOTION_AGE, LaneRoster, Roster
from scheduler.sequence import Sequence, State

IDLE = 1_000
"""Lane rank of work that cannot run: at its grant, it ranks below every lane."""


class Phase(IntEnum):
    """Work that has begun comes before work that has not, the nearest to its next token first."""

    DECODE = 0
    PREFILL = 1
    RESUME = 2
    FRESH = 3


PHASES = {  # of work that is not fresh
    State.DECODE: Phase.DECODE,
    State.PAUSED: Phase.DECODE,
    State.PREFILL: Phase.PREFILL,
    State.SWAPPED: Phase.RESUME,
    State.DROPPED: Phase.RESUME,
    State.WAITING: Phase.RESUME,
}


PLENTY = 50.0
"""Relative slack beyond which a deadline is too far off to order work by."""
Group = tuple[int, bool, bool]
"""What sets work above other work whatever either of them has begun: lane rank, outside the window, best effort."""


class Rank(NamedTuple):
    """Lower is more urgent. Of work that has begun nothing here changes with time alone: two running sequences trade
    places only after service was charged, so preemption among them cannot go in circles."""

    lane: int
    outside_window: bool
    best_effort: bool
    phase: Phase
    urgency: float
    """Of fresh work its relative slack, of begun work none."""
    counter: float
    due_ms: float
    """When its first token is or was due."""
    flight_id: str
    choice: int

    @property
    def group(self) -> Group:
        """Where it stands but for what it has begun."""
        return self[:3]


class Standing(NamedTuple):
    """One sequence's place in the order."""

    rank: Rank
    seq: Sequence


class Ranking:
    """The order at one moment."""

    def __init__(self, roster: Roster, costs: CostModel, now_ms: float) -> None:
        self._lanes = roster.lanes
        self._token_ms, self._pair_ms = costs.prefill_ms()
        self.now_ms = now_ms
        self._eligible_up_to = {name: lane.eligible_up_to() for name, lane in roster.lanes.items()}

    def stand(self, seq: Sequence) -> Standing:
        """Where a sequence stands."""
        job, counter = seq.job, self._lanes[seq.job.lane].counters.value(seq.job.tenant)
        fresh = seq.is_fresh
        rank = Rank(
            self.lane_rank(seq),
            counter > self._eligible_up_to[job.lane],
            not job.guaranteed,
            Phase.FRESH if fresh else PHASES[seq.state],
            self._relative_slack(seq) if fresh else 0.0,
            counter,
            seq.envelope.first_due_ms,
            job.flight_id,
            seq.id.choice,
        )
        return Standing(rank, seq)

    def group(self, kind: Kind) -> Group:
        """Where work of this kind stands."""
        name, tenant, guaranteed, promoted = kind
        lane = self._lanes[name]
        outside = lane.counters.value(tenant) > self._eligible_up_to[name]
        return max(0, lane.lane.rank - promoted), outside, not guaranteed

    def first_group(self, lane: LaneRoster) -> Group:
        """The first group that a lane's fresh work could be in."""
        promotes = next(lane.promoted(self.now_ms), None) is not None
        return max(0, lane.lane.rank - promotes), False, not lane.guaranteed

    def excess(self, standing: Standing) -> float:
        """How far its tenant is outside the window, in windows."""
        name = standing.seq.job.lane
        return (standing.rank.counter - self._eligible_up_to[name]) / self._lanes[name].counters.window

    def lane_rank(self, seq: Sequence) -> int:
        """Its lane's rank, one higher once it has waited long; IDLE where it cannot run."""
        if not seq.is_runnable:
            return IDLE
        lane = self._lanes[seq.job.lane].lane
        promoted = self.now_ms - seq.arrived_ms > PROMOTION_AGE * lane.max_wait_ms
        return max(0, lane.rank - promoted)

    def _relative_slack(self, seq: Sequence) -> float:
        """Time to spare before the first token is due, in units of the time it takes to compute (LARS); of what has
        plenty the same for all, so that among those the tenants' counters decide."""
        tokens = seq.length
        service_ms = max(1.0, tokens * (self._token_ms + self._pair_ms * tokens))
        return min(PLENTY, (seq.envelope.first_due_ms - self.now_ms - service_ms) / service_ms)
