"""The one order of everything that a worker could run: running, resumable and waiting work together."""

import math
from enum import IntEnum
from typing import NamedTuple

from fairlane.scheduler.planner.costs import CostModel
from fairlane.scheduler.planner.ordering import prospects
from fairlane.scheduler.planner.sequence import Kind, Sequence, State
from fairlane.scheduler.planner.sequence_index import LITTLE, LaneIndex, SequenceIndex
from fairlane.scheduler.planner.step_budget import Survey
from fairlane.scheduler.planner.steps import SeqId
from fairlane.scheduler.protocol.lanes import LaneName

IDLE = 1_000
"""Lane rank of work that cannot run: at its grant, it ranks below every lane."""
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
    sequences trade places only after service was charged; so preemption among them cannot go in circles."""

    lane: int
    outside_window: bool
    """Never of what is guaranteed: a promise holds whatever its tenant has had since. Its service counts."""
    service_class: int
    """0 guaranteed, as long as it has a promise ahead; 1 best effort; 2 relegated: waiting work that can no longer be
    in time gives way to what can. AHEAD: the first of a tenant that has no token yet, as far as promises have the time
    (`LaneIndex.computed`); it takes blocks and rows as best effort does."""
    phase: Phase
    urgency: float
    """Of waiting work how near its deadline is, the shorter the nearer; of begun work none."""
    counter: float
    """Weighted tokens that its tenant has had."""
    due_ms: float
    """When its first token is or was due."""
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


class Ranking:
    """The order at one moment."""

    def __init__(self, index: SequenceIndex, begun: Survey, costs: CostModel, now_ms: float) -> None:
        self.index = index
        self.begun = begun
        self.now_ms = now_ms
        self._lanes = index.lanes
        self._token_ms, self._pair_ms = costs.prefill_ms()
        self._step_ms = costs.step_weights()[0]
        idle = {seq.job.lane for seq in index.idle.values()}
        lanes = {name: lane for name, lane in index.lanes.items() if lane.waits or lane.begun or name in idle}
        self._least = {name: lane.least_counter() for name, lane in lanes.items()}
        self._window = {
            name: max(1.0, lane.lane.window(lane.counters.window, self._token_ms if costs.has_learnt else 0.0))
            for name, lane in lanes.items()
        }
        self._ends = {name: self._least[name] + self._window[name] for name in lanes}
        """Counters up to which a tenant is inside the window."""
        self._lane_ranks = (
            {name: lane.lane.rank for name, lane in index.lanes.items()},
            {name: max(0, lane.lane.rank - 1) for name, lane in index.lanes.items()},
        )
        """Of what has not waited long, and of what has."""
        self._known: dict[tuple[LaneName, str], tuple[int, bool]] = {}
        self._little = {name: lane.little() for name, lane in lanes.items()}
        self._newcomers = {name: lane.newcomers(self._little[name]) for name, lane in lanes.items()}
        self._unanswered = {name: lane.least_unanswered() for name, lane in lanes.items()}
        self._admits_newcomers = {name for name, lane in lanes.items() if lane.admits_newcomers}

    def stand(self, seq: Sequence, ahead: float = 0.0) -> Ranked:
        """Where a sequence stands, after its tenant was charged as much as is `ahead` of it in this very step."""
        job = seq.job
        name, tenant = job.lane, job.tenant
        counter = self._lanes[name].counters.value(tenant) + ahead
        if seq.is_new:
            phase = Phase.WAITING
            service_class, urgency = self._prospects(seq, counter - self._least[name])
        else:
            phase, service_class, urgency = PHASES[seq.state], int(not seq.is_promised), 0.0
        if service_class > 0 and ahead == 0.0 and self._goes_ahead(seq):
            service_class = AHEAD
        rank = Rank(
            self.lane_rank(seq),
            not seq.is_promised and self._is_outside(name, tenant, counter, begins=seq.is_new),
            service_class,
            phase,
            urgency,
            counter,
            seq.first_due_ms,
            job.job_id,
            seq.id.choice,
        )
        return Ranked(rank, seq)

    def first_decodes(self, decodes: list[Sequence], count: int) -> list[Sequence]:
        """The most urgent of decodes of one group and lane: as their ranks say, without making them."""
        counters = self._lanes[decodes[0].job.lane].counters

        def place(seq: Sequence) -> tuple[float, float, SeqId]:
            return counters.value(seq.job.tenant), seq.first_due_ms, seq.id

        return sorted(decodes, key=place)[:count]

    def group(self, kind: Kind) -> Group:
        """Where work of this kind stands."""
        name, tenant, promised, promoted = kind
        counter = self._lanes[name].counters.value(tenant)
        outside = not promised and self._is_outside(name, tenant, counter)
        return self._lane_ranks[promoted][name], outside, 0 if promised else 1

    def first_group(self, lane: LaneIndex) -> Group:
        """The first group that a lane's waiting work could be in."""
        promotes = next(lane.promoted(self.now_ms), None) is not None
        return self._lane_ranks[promotes][lane.lane.name], False, int(not lane.guaranteed())

    def is_far_ahead(self, name: LaneName, tenant: str) -> bool:
        """It had more than 2 Θ above the least served that waits."""
        return self._lanes[name].counters.value(tenant) > self._ends[name] + self._window[name]

    def lane_rank(self, seq: Sequence) -> int:
        """Its lane's rank, one higher once it has waited long; IDLE where it cannot run."""
        if not seq.is_runnable:
            return IDLE
        lane = self._lanes[seq.job.lane].lane
        return self._lane_ranks[self.now_ms >= seq.promoted_ms][lane.name]

    def _is_outside(self, name: LaneName, tenant: str, counter: float, *, begins: bool = False) -> bool:
        """Had more than Θ above the least served that waits; or, beside a tenant that is ahead by no more than Θ: more
        than LITTLE times as much of it has begun, and the other waits; or it has tokens, and the other has none yet,
        unless what it begins is of a tenant that holds little."""
        if counter > self._ends[name]:
            return True
        held, has_token = self._progress(name, tenant)
        reach = counter + self._window[name]
        if has_token and reach >= self._unanswered[name] and not (begins and held <= self._little[name]):
            return True
        return any(reach >= newcomer and held > LITTLE * little for newcomer, little in self._newcomers[name])

    def _goes_ahead(self, seq: Sequence) -> bool:
        """Before promised work that waits: what may bring a tenant its first token, of the tenants of which nothing has
        begun the least served."""
        name, tenant = seq.job.lane, seq.job.tenant
        if name not in self._admits_newcomers:
            return False
        begun, has_token = self._progress(name, tenant)
        if has_token or not seq.is_new:
            return not (has_token or seq.output)
        least = min([counter for counter, little in self._newcomers[name] if not little], default=-math.inf)
        return not begun and self._lanes[name].counters.value(tenant) <= least

    def _progress(self, name: LaneName, tenant: str) -> tuple[int, bool]:
        """What a tenant held, and whether any of it had a token, when first asked in the step. Kept: an order that
        moved amid a step would be none."""
        known = self._known.get((name, tenant))
        if known is None:
            lane = self._lanes[name]
            known = self._known[name, tenant] = lane.held(tenant), lane.has_token(tenant)
        return known

    def _prospects(self, seq: Sequence, lead: float) -> tuple[int, float]:
        """Class and urgency of waiting work. Who was guaranteed its deadline is never relegated, nor held back."""
        tokens, guaranteed = seq.length, seq.job.guaranteed
        service_ms = 2.0 * self._step_ms + tokens * (self._token_ms + self._pair_ms * tokens)
        slack_ms = seq.first_due_ms - self.now_ms - service_ms
        lead_ms = 0.0 if guaranteed else max(0.0, lead * self._token_ms)
        waited_ms, long_wait_ms = self.now_ms - seq.arrived_ms, self._lanes[seq.job.lane].lane.long_wait_ms
        relegated, urgency = prospects(slack_ms, service_ms, lead_ms, waited_ms, long_wait_ms, guaranteed=guaranteed)
        return (0 if guaranteed else 2 if relegated else 1), urgency
