"""The one ranked list of everything that a worker could run: running, resumable and waiting work together."""

from collections.abc import Iterable, Mapping
from enum import IntEnum
from typing import NamedTuple

from scheduler.costs import CostModel
from scheduler.fairness import Counters
from scheduler.lanes import Lane, LaneName
from scheduler.messages import Job
from scheduler.sequence import Sequence, State

IDLE = 1_000
"""Lane rank of work that cannot run: at its grant, it ranks below every lane."""
PROMOTION_AGE = 0.5
"""Part of its lane's longest wait after which work is promoted one lane."""


class Phase(IntEnum):
    """Work that has begun comes before work that has not, the nearest to its next token first."""

    DECODE = 0
    PREFILL = 1
    RESUME = 2
    FRESH = 3


PHASES: Mapping[State, Phase] = {  # of work that is not fresh
    State.DECODE: Phase.DECODE,
    State.PAUSED: Phase.DECODE,
    State.PREFILL: Phase.PREFILL,
    State.SWAPPED: Phase.RESUME,
    State.DROPPED: Phase.RESUME,
    State.WAITING: Phase.RESUME,
}


class Rank(NamedTuple):
    """Lower is more urgent. Of work that has begun nothing here changes with time alone: two running sequences trade
    places only after service was charged, so preemption among them cannot go in circles."""

    lane: int
    outside_window: bool
    best_effort: bool
    phase: Phase
    urgency: float
    """Of fresh work its relative slack, of begun work when its first token was due."""
    counter: float
    flight_id: str
    choice: int


class Standing(NamedTuple):
    """One sequence's place in the order."""

    rank: Rank
    seq: Sequence


class Ranking:
    """Orders sequences, and keeps the service counters of each (lane, tenant) that the order needs."""

    def __init__(self, lanes: Mapping[LaneName, Lane], *, window: float, costs: CostModel) -> None:
        self._lanes = lanes
        self._costs = costs
        self._counters = {name: Counters(window) for name in lanes}

    def join(self, job: Job, backlogged: set[str]) -> None:
        """A job arrives; `backlogged` are the tenants with work in its lane already. A newcomer's counter is lifted."""
        if job.tenant not in backlogged:
            self._counters[job.lane].lift(job.tenant, backlogged)

    def charge(self, job: Job, tokens: float) -> None:
        """Count service against the job's tenant in its lane."""
        self._counters[job.lane].charge(job.tenant, tokens, job.weight)

    def order(self, sequences: list[Sequence], now_ms: float) -> list[Standing]:
        """Everything that is not over, most urgent first."""
        outside = self._outside_window(sequences)
        ranked = [
            Standing(self._rank(seq, (seq.job.lane, seq.job.tenant) in outside, now_ms), seq) for seq in sequences
        ]
        ranked.sort(key=lambda standing: standing.rank)
        return ranked

    def _outside_window(self, sequences: Iterable[Sequence]) -> set[tuple[LaneName, str]]:
        backlogged: dict[LaneName, set[str]] = {name: set() for name in self._lanes}
        for seq in sequences:
            if seq.is_runnable:
                backlogged[seq.job.lane].add(seq.job.tenant)
        return {
            (lane, tenant)
            for lane, tenants in backlogged.items()
            for tenant in tenants
            if not self._counters[lane].eligible(tenant, tenants)
        }

    def _rank(self, seq: Sequence, outside_window: bool, now_ms: float) -> Rank:
        job = seq.job
        return Rank(
            lane=self._lane_rank(seq, now_ms),
            outside_window=outside_window,
            best_effort=not job.guaranteed,
            phase=Phase.FRESH if seq.is_fresh else PHASES[seq.state],
            urgency=self._relative_slack(seq, now_ms) if seq.is_fresh else seq.envelope.first_due_ms,
            counter=self._counters[job.lane].value(job.tenant),
            flight_id=job.flight_id,
            choice=seq.id.choice,
        )

    def _lane_rank(self, seq: Sequence, now_ms: float) -> int:
        if not seq.is_runnable:
            return IDLE
        lane = self._lanes[seq.job.lane]
        promoted = now_ms - seq.arrived_ms > PROMOTION_AGE * lane.max_wait_ms
        return max(0, lane.rank - promoted)

    def _relative_slack(self, seq: Sequence, now_ms: float) -> float:
        """Time to spare before the first token is due, in units of the time it takes to compute (LARS)."""
        service_ms = max(1.0, self._costs.recompute_ms(seq.length))
        return (seq.envelope.first_due_ms - now_ms - service_ms) / service_ms
