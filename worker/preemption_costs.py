"""What each preemption was expected to cost, beside what it cost: the scheduler's choice of a mode rests on it.

A swap costs its share of the copies of the steps in which it goes and comes back. A recompute costs what its rows add
to the steps in which they run, as far as they compute again what was there: of such a step's time the share that the
cost model gives to them. Who gives further blocks while away costs more than was expected of the first ones, and is
left out.
"""

import logging
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from scheduler.costs import CostModel
from scheduler.messages import Lease, Preempted, PreemptionMode, Resumed
from scheduler.steps import Row, SeqId, StepPlan, features
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
    event: Preempted
    reached: int
    """Tokens that it had computed."""
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
        self._last_rows: tuple[Row, ...] = ()
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
        for event in plan.events:
            match event:
                case Preempted(mode="swap" | "recompute") if event.predicted_ms > 0.0:
                    going_ms = copy_ms * event.blocks if event.mode == "swap" else 0.0
                    self._left(event, going_ms)
                case Resumed():
                    self._resumed(SeqId(event.flight_id, event.choice), copy_ms)
        if self._away:
            for row in plan.rows:
                self._recomputed(row, plan, step.result.run_ms)
            self._leave(ended.flight_id for ended in step.outcome.ended)
        self._last_rows = plan.rows or self._last_rows

    def _left(self, event: Preempted, going_ms: float) -> None:
        seq = SeqId(event.flight_id, event.choice)
        reached = next((row.context_length for row in self._last_rows if row.seq == seq), 0)
        if reached or event.mode == "swap":  # who did not run of late had not all of its blocks
            self._away[seq] = _Away(event, reached, going_ms)

    def _resumed(self, seq: SeqId, copy_ms: float) -> None:
        away = self._away.get(seq)
        if away is not None and away.event.mode == "swap":
            away.actual_ms += copy_ms * away.event.blocks
            self._over(seq)

    def _recomputed(self, row: Row, plan: StepPlan, run_ms: float) -> None:
        away = self._away.get(row.seq)
        if away is None or away.event.mode != "recompute":
            return
        kept = -(-away.reached // self._block_size) - away.event.blocks
        if row.first_position < kept * self._block_size and not away.actual_ms:
            del self._away[row.seq]
            return
        whole_ms = self._costs.step_ms(plan.features)
        others = features(other for other in plan.rows if other is not row)
        others_ms = self._costs.step_ms(others._replace(rows=others.rows + row.samples))  # it would have a row anyway
        again = max(0, min(row.context_length, away.reached) - row.first_position) / len(row.token_ids)
        away.actual_ms += run_ms * again * (whole_ms - others_ms) / max(whole_ms, 1e-9)
        if row.samples or row.context_length >= away.reached:
            self._over(row.seq)

    def _over(self, seq: SeqId) -> None:
        away = self._away.pop(seq)
        cost = PreemptionCost(away.event.mode, away.event.predicted_ms, away.actual_ms)
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
