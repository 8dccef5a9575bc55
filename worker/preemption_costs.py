"""What each preemption was expected to cost, beside what it cost: the scheduler's choice of a mode rests on it.

A swap costs its share of the copies of the steps in which it goes and comes back. A recompute costs what its rows add
to the steps in which they run, as far as they compute again what was there: of such a step's time the share that the
cost model gives to them. Who gives further blocks while away is expected to cost so much more, and does.
"""

import logging
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from operator import sub

from scheduler.costs import CostModel
from scheduler.messages import Lease, PreemptionMode, Resumed, YieldMode
from scheduler.steps import Row, SeqId, StepFeatures, StepPlan, Yield, features
from worker.engine import StepReport
from worker.report import Report

LATEST = 4096
"""So many preemptions are kept."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PreemptionCost:
    """One preemption that is over."""

    mode: PreemptionMode
    predicted_ms: float
    actual_ms: float

    @property
    def ratio(self) -> float:
        """Actual to predicted."""
        return self.actual_ms / self.predicted_ms


@dataclass(slots=True)
class _Away:
    mode: YieldMode
    first: int
    end: int
    """The tokens whose KV is gone."""
    predicted_ms: float
    actual_ms: float = 0.0


class PreemptionCosts:
    """Follows preemptions from step to step. `on_found` is told of each that is over; the latest are kept too."""

    def __init__(
        self, costs: CostModel, block_size: int, on_found: Callable[[PreemptionCost], None] | None = None
    ) -> None:
        self._costs = costs
        self._block_size = block_size
        self._on_found = on_found
        self._away: dict[SeqId, _Away] = {}
        self.found: deque[PreemptionCost] = deque(maxlen=LATEST)

    def took(self, leases: Iterable[Lease]) -> None:
        """Nothing to learn."""

    def lost(self, flight_ids: Iterable[str]) -> None:
        """These will not come back."""
        self._leave(flight_ids)

    def turned(self, report: Report) -> None:
        """The engine has moved on."""
        if report.step is not None:
            self.stepped(report.step)

    def stepped(self, step: StepReport) -> None:
        """The engine has run a step."""
        plan = step.plan
        copy_ms = step.result.copy_ms / max(1, plan.copies)
        for one in plan.yields:
            self._left(one, copy_ms)
        if not self._away:
            return
        for event in plan.events:
            if isinstance(event, Resumed):
                self._resumed(SeqId(event.flight_id, event.choice), copy_ms)
        for row in plan.rows:
            self._recomputed(row, plan, step.result.run_ms)
        self._leave(ended.flight_id for ended in step.outcome.ended)

    def _left(self, one: Yield, copy_ms: float) -> None:
        """Whose blocks went by the other mode before, begins anew: only what goes this way is compared."""
        away = self._away.get(one.seq)
        if away is None or away.mode != one.mode:
            away = self._away[one.seq] = _Away(one.mode, one.first, one.end, 0.0)
        away.first, away.end = min(away.first, one.first), max(away.end, one.end)
        away.predicted_ms += one.predicted_ms
        if one.mode == "swap":
            away.actual_ms += copy_ms * one.copied

    def _resumed(self, seq: SeqId, copy_ms: float) -> None:
        away = self._away.get(seq)
        if away is not None and away.mode == "swap":
            away.actual_ms += copy_ms * self._blocks(away.first, away.end)
            self._over(seq)

    def _blocks(self, first: int, end: int) -> int:
        return -(-end // self._block_size) - first // self._block_size

    def _recomputed(self, row: Row, plan: StepPlan, run_ms: float) -> None:
        away = self._away.get(row.seq)
        if away is None or away.mode != "recompute":
            return
        whole_ms = self._costs.step_ms(plan.features)
        others = StepFeatures(*map(sub, plan.features, features([row])))
        others_ms = self._costs.step_ms(others._replace(rows=others.rows + row.samples))  # it would have a row anyway
        again = max(0, min(row.context_length, away.end) - row.first_position) / len(row.token_ids)
        away.actual_ms += run_ms * again * (whole_ms - others_ms) / max(whole_ms, 1e-9)
        if row.samples or row.context_length >= away.end:
            self._over(row.seq)

    def _over(self, seq: SeqId) -> None:
        """What was expected to cost nothing, or was never asked for, is no preemption to compare."""
        away = self._away.pop(seq)
        if away.predicted_ms <= 0.0:
            return
        cost = PreemptionCost(away.mode, away.predicted_ms, away.actual_ms)
        _log.debug(
            "preemption of %s by %s: %.3f ms expected, %.3f ms found",
            seq.flight_id,
            cost.mode,
            cost.predicted_ms,
            cost.actual_ms,
        )
        self.found.append(cost)
        if self._on_found is not None:
            self._on_found(cost)

    def _leave(self, flight_ids: Iterable[str]) -> None:
        gone = set(flight_ids)
        for seq in [seq for seq in self._away if seq.flight_id in gone]:
            del self._away[seq]
