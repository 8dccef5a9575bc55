"""How a step evens out the tenants of a lane: how much may be taken from those outside the window, rows and blocks.

One request a step takes from others of its lane, since more would overshoot and swing back; more the further one of
them is beyond 2 Θ, and at 3 Θ all. Counted over the whole step; what stands outside is looked up for each walk.
"""

from collections import Counter

from fairlane.scheduler.planner.preemption import Victim
from fairlane.scheduler.planner.priority import Phase, Ranking, Ranked
from fairlane.scheduler.planner.sequence import Kind, Sequence
from fairlane.scheduler.planner.sequence_index import SequenceIndex
from fairlane.scheduler.planner.step_builder import StepBuilder
from fairlane.scheduler.protocol.lanes import LaneName

ASIDE_PART = 8
"""Decodes without a row, as a part of the rows, from which on fairness alone begins no more work."""


class Rebalance:
    """One step's share of it."""

    def __init__(self, roster: SequenceIndex, ranking: Ranking, draft: StepBuilder, decoding: int) -> None:
        self._roster = roster
        self._ranking = ranking
        self._draft = draft
        self._decoding = decoding
        self._taken = 0
        """Requests that took blocks or rows from others of their lane."""
        self.begin_walk()

    def begin_walk(self) -> None:
        """Forget who stands outside."""
        self._closed: set[tuple[int, LaneName]] = set()
        """Where fresh work was refused the rows of others: lane rank and lane. What follows is no more urgent."""
        self._outsiders: Counter[int] = Counter()
        """Decodes of tenants outside the window, by lane rank."""
        self._excess: dict[int, float] = {}
        """How far the farthest of them is outside, in windows."""

    def note_outside(self, rank: int, kind: Kind, decodes: int) -> None:
        """So many decodes of a tenant outside the window stand at this lane rank."""
        excess = self._ranking.excess(*kind[:2])
        self._outsiders[rank] += decodes
        self._excess[rank] = max(self._excess.get(rank, excess), excess)

    def is_closed_to(self, standing: Ranked) -> bool:
        """Fresh work like this, and more urgent, was refused in this walk."""
        return (standing.rank.lane, standing.seq.job.lane) in self._closed and not standing.rank.outside_window

    def refuses_row(self, standing: Ranked) -> bool:
        """Fresh work takes the rows of tenants outside the window as it takes their blocks; and, but for the first of a
        tenant, not while many are set aside already, who hold KV that nobody uses."""
        if not self._takes_row(standing):
            return False
        rank = standing.rank.lane
        excess = self._excess.get(rank, 0.0)
        aside = self._decoding - self._draft.rows
        is_crowded = excess <= 1.0 and aside > self._draft.rows // ASIDE_PART
        if not self._may_take(excess) or (is_crowded and not self.is_newcomer(standing.seq)):
            self._closed.add((rank, standing.seq.job.lane))
            return True
        return False

    def is_newcomer(self, seq: Sequence) -> bool:
        """Nothing of its tenant has begun."""
        return seq.is_fresh and seq.job.tenant not in self._roster.lanes[seq.job.lane].begun

    def may_ask(self, standing: Ranked, holder: Ranked) -> bool:
        """Blocks go from tenant to tenant of a lane as sparingly as rows do."""
        if (
            standing.seq.is_resident
            or standing.rank.standing == 0
            or standing.rank.lane != holder.rank.lane
            or not holder.rank.outside_window
        ):
            return True
        return self._may_take(self._ranking.excess(holder.seq.job.lane, holder.seq.job.tenant))

    def count(self, standing: Ranked, victims: list[Victim]) -> None:
        """It is about to run, and these yield to it."""
        lane = standing.seq.job.lane
        takes_blocks = not standing.seq.is_resident and any(victim.seq.job.lane is lane for victim in victims)
        self._taken += takes_blocks or self._takes_row(standing)

    def _takes_row(self, standing: Ranked) -> bool:
        """It is fresh, best effort and inside the window, and only rows of those outside are left."""
        rank, lane = standing.rank, standing.seq.job.lane
        if rank.phase is not Phase.FRESH or rank.outside_window or rank.standing == 0:
            return False
        return self._draft.rows_left(lane) <= self._outsiders[rank.lane]

    def _may_take(self, excess: float) -> bool:
        return self._taken <= len(self._roster.begun) * max(0.0, excess - 1.0)
