"""Each preemption's predicted cost beside the actual one: shares of copies for a swap, of steps for a recompute."""

import pytest

from scheduler.costs import CostModel
from scheduler.messages import Preempted, PreemptionMode, Resumed
from scheduler.outcomes import Outcome
from scheduler.steps import Copy, Ended, Row, SeqId, StepFeatures, StepOutcome, StepPlan, StepResult, features
from worker.engine import StepReport
from worker.preemption_costs import PreemptionCost, PreemptionCosts

BLOCK_SIZE = 16


def preempted(flight_id: str, mode: PreemptionMode, blocks: int, predicted_ms: float) -> Preempted:
    return Preempted(flight_id=flight_id, choice=0, mode=mode, blocks=blocks, predicted_ms=predicted_ms)


def resumed(flight_id: str) -> Resumed:
    return Resumed(flight_id=flight_id, choice=0, stalled_ms=5.0)


def row(flight_id: str, tokens: int, *, first: int = 0, samples: bool = True) -> Row:
    return Row(SeqId(flight_id, 0), (1,) * tokens, first, (0,) * 40, samples, 0)


def report(
    *events: Preempted | Resumed, rows: tuple[Row, ...] = (), out: int = 0, back: int = 0, copy_ms: float = 0.0,
    run_ms: float = 0.0, ended: str | None = None,
) -> StepReport:  # fmt: skip
    copies = tuple(Copy(0, 0) for _ in range(out)), tuple(Copy(0, 0) for _ in range(back))
    plan = StepPlan(1, rows, *copies, events=events, features=features(rows))
    over = () if ended is None else (Ended(ended, Outcome.CANCELLED),)
    return StepReport(plan, StepResult(1, run_ms=run_ms, copy_ms=copy_ms), StepOutcome(ended=over), ())


@pytest.fixture
def found() -> list[PreemptionCost]:
    return []


@pytest.fixture
def watch(found: list[PreemptionCost]) -> PreemptionCosts:
    return PreemptionCosts(CostModel(), BLOCK_SIZE, found.append)


def test_a_swap_costs_its_share_of_the_copies_both_ways(watch: PreemptionCosts, found: list[PreemptionCost]) -> None:
    watch.stepped(report(preempted("a", "swap", 3, 4.0), out=4, copy_ms=8.0))
    watch.stepped(report(rows=(row("b", 1),), run_ms=10.0))
    watch.stepped(report(resumed("a"), back=3, copy_ms=3.0))

    assert found == [PreemptionCost("swap", 4.0, 9.0)] == [*watch.found]
    assert found[0].ratio == pytest.approx(2.25)


def test_a_recompute_costs_what_its_rows_add_until_it_samples(
    watch: PreemptionCosts, found: list[PreemptionCost]
) -> None:
    costs = CostModel()
    both, other = (row("a", 200, samples=False), row("b", 1)), (row("b", 1),)
    rest = (row("a", 30, first=200),)
    watch.stepped(report(rows=(row("a", 1, first=229),)))
    watch.stepped(report(preempted("a", "recompute", 15, 90.0), rows=other, run_ms=10.0))
    watch.stepped(report(resumed("a"), rows=both, run_ms=2 * costs.step_ms(features(both))))
    watch.stepped(report(rows=rest, run_ms=costs.step_ms(features(rest))))

    (cost,) = found
    added_ms = 2 * (costs.step_ms(features(both)) - costs.step_ms(features(other)))
    last_ms = costs.step_ms(features(rest)) - costs.step_ms(StepFeatures(1, 0, 0, 0))
    assert cost.actual_ms == pytest.approx(added_ms + last_ms)


def test_what_was_never_computed_is_no_cost_of_a_recompute(watch: PreemptionCosts, found: list[PreemptionCost]) -> None:
    costs, whole = CostModel(), (row("a", 100), row("b", 1))
    watch.stepped(report(rows=(row("a", 25, samples=False),)))
    watch.stepped(report(preempted("a", "recompute", 2, 9.0), rows=whole[1:]))
    watch.stepped(report(resumed("a"), rows=whole, run_ms=costs.step_ms(features(whole))))

    added_ms = costs.step_ms(features(whole)) - costs.step_ms(features(whole[1:])._replace(rows=2))
    assert [cost.actual_ms for cost in found] == [pytest.approx(added_ms / 4)]


def test_who_gives_more_while_away_is_left_out(watch: PreemptionCosts, found: list[PreemptionCost]) -> None:
    watch.stepped(report(rows=(row("a", 1, first=99),)))
    watch.stepped(report(preempted("a", "recompute", 2, 9.0), rows=(row("b", 1),)))
    watch.stepped(report(resumed("a"), rows=(row("a", 69, first=32),), run_ms=30.0))

    assert found == []


def test_what_costs_nothing_or_never_returns_is_no_preemption_to_compare(
    watch: PreemptionCosts, found: list[PreemptionCost]
) -> None:
    watch.stepped(
        report(preempted("a", "keep", 0, 0.0), preempted("b", "swap", 2, 1.0), preempted("c", "swap", 2, 1.0))
    )
    watch.stepped(report(rows=(row("d", 1),), ended="b"))
    watch.lost(["c"])
    watch.stepped(report(resumed("a"), resumed("b"), resumed("c")))

    assert found == []
