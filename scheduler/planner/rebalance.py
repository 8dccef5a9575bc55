"""How a step evens out the tenants of a lane: how much may be taken from those outside the window, rows and blocks.

One request a step takes from others of its lane, since more would overshoot and swing back; more the further one of
them is beyond 2 Θ, and at 3 Θ all. Counted over the whole step; what stands outside is looked up for each walk.
"""

from collections import Counter

from fairlane.scheduler.planner.preemption import Victim
from fairlane.scheduler.planner.priority import Phase, Ranked, Ranking
from fairlane.scheduler.planner.sequence import Kind, Sequence
from fairlane.scheduler.planner.step_builder import StepBuilder
from fairlane.scheduler.protocol.lanes import LaneName

ASIDE_PART = 8
"""Decodes without a row, as a part of the rows, from which on fairness alone begins no more work."""


class Rebalance:
    """One step's rebalancing: what requests took rows or blocks from tenants outside the window."""

    def __init__(self, ranking: Ranking, builder: StepBuilder) -> None:
        self._ranking, self._index, self._builder = ranking, ranking.index, builder
        self._decoding = sum(map(len, ranking.begun.decodes.values()))
        self._taken = 0
        """Requests that took blocks or rows from others of their lane."""
        self.begin_walk()

    def begin_walk(self) -> None:
        """Forget who stands outside."""
        self._closed: set[tuple[int, LaneName]] = set()
        """Where waiting work was refused the rows of others: lane rank and lane. What follows is no more urgent."""
        self._outsiders: Counter[int] = Counter()
        """Decodes of tenants outside the window, by lane rank."""
        self._excess: dict[int, float] = {}
        """How far the farthest of them is outside, in windows."""

    def note_outside(self, rank: int, kind: Kind, decodes: int) -> None:
        """So many decodes of a tenant outside the window stand at this lane rank."""
        excess = self._ranking.excess(*kind[:2])
        self._outsiders[rank] += decodes
        self._excess[rank] = max(self._excess.get(rank, excess), excess)

    def is_closed_to(self, ranked: Ranked) -> bool:
        """Waiting work like this, and more urgent, was refused in this walk."""
        return (ranked.rank.lane, ranked.seq.job.lane) in self._closed and not ranked.rank.outside_window

    def refuses_row(self, ranked: Ranked) -> bool:
        """Waiting work takes the rows of tenants outside the window as it takes their blocks; and, but for the first
        of a tenant, not while many are set aside already, who hold KV that nobody uses."""
        if not self._takes_row(ranked):
            return False
        rank = ranked.rank.lane
        excess = self._excess.get(rank, 0.0)
        aside = self._decoding - self._builder.rows
        is_crowded = excess <= 1.0 and aside > self._builder.rows // ASIDE_PART
        if not self._may_take(excess) or (is_crowded and not self.is_newcomer(ranked.seq)):
            self._closed.add((rank, ranked.seq.job.lane))
            return True
        return False

    def is_newcomer(self, seq: Sequence) -> bool:
        return seq.is_new and seq.job.tenant not in self._index.lanes[seq.job.lane].begun

    def may_ask(self, ranked: Ranked, holder: Ranked) -> bool:
        """Blocks go from tenant to tenant of a lane as sparingly as rows do."""
        if (
            ranked.seq.is_resident
            or ranked.rank.service_class == 0
            or ranked.rank.lane != holder.rank.lane
            or not holder.rank.outside_window
        ):
            return True
        return self._may_take(self._ranking.excess(holder.seq.job.lane, holder.seq.job.tenant))

    def count(self, ranked: Ranked, victims: list[Victim]) -> None:
        """It is about to run, and these yield to it."""
        lane = ranked.seq.job.lane
        takes_blocks = not ranked.seq.is_resident and any(victim.seq.job.lane is lane for victim in victims)
        self._taken += takes_blocks or self._takes_row(ranked)

    def _takes_row(self, ranked: Ranked) -> bool:
        """It has not begun, is best effort and inside the window, and only rows of those outside are left."""
        rank, lane = ranked.rank, ranked.seq.job.lane
        if rank.phase is not Phase.WAITING or rank.outside_window or rank.service_class == 0:
            return False
        return self._builder.rows_left(lane) <= self._outsiders[rank.lane]

    def _may_take(self, excess: float) -> bool:
        return self._taken <= len(self._index.begun) * max(0.0, excess - 1.0)
