"""Each preemption's predicted cost beside the actual one: shares of copies for a swap, of steps for a recompute."""

import pytest

from fairlane.scheduler.planner.costs import CostModel
from fairlane.scheduler.planner.steps import (
    Copy,
    Ended,
    Row,
    SeqId,
    StepFeatures,
    StepOutcome,
    StepPlan,
    StepResult,
    Yield,
    features,
)
from fairlane.scheduler.protocol.messages import Outcome, Resumed, YieldMode
from fairlane.worker.engine.engine import StepReport
from fairlane.worker.telemetry import PreemptionCost, PreemptionCosts

BLOCK_SIZE = 16


def yields(
    job_id: str, mode: YieldMode, first: int, end: int, predicted_ms: float, *, saved: int = 0
) -> Yield:  # fmt: skip
    """`saved`: blocks that the host has already."""
    copied = -(-end // BLOCK_SIZE) - first // BLOCK_SIZE - saved if mode == "swap" else 0
    return Yield(SeqId(job_id, 0), mode, first, end, predicted_ms, copied)


def resumed(job_id: str) -> Resumed:
    return Resumed(job_id=job_id, choice=0, stalled_ms=5.0)


def row(job_id: str, tokens: int, *, first: int = 0, samples: bool = True) -> Row:
    return Row(SeqId(job_id, 0), (1,) * tokens, first, (0,) * 40, samples, 0)


def report(
    *what: Yield | Resumed, rows: tuple[Row, ...] = (), out: int = 0, back: int = 0, copy_ms: float = 0.0,
    run_ms: float = 0.0, ended: str | None = None,
) -> StepReport:  # fmt: skip
    copies = tuple(Copy(0, 0) for _ in range(out)), tuple(Copy(0, 0) for _ in range(back))
    events = tuple(one for one in what if isinstance(one, Resumed))
    given = tuple(one for one in what if isinstance(one, Yield))
    plan = StepPlan(1, rows, *copies, events=events, yields=given, features=features(rows))
    over = () if ended is None else (Ended(ended, Outcome.CANCELLED),)
    return StepReport(plan, StepResult(1, run_ms=run_ms, copy_ms=copy_ms), StepOutcome(ended=over), ())


@pytest.fixture
def found() -> list[PreemptionCost]:
    return []


@pytest.fixture
def watch(found: list[PreemptionCost]) -> PreemptionCosts:
    return PreemptionCosts(CostModel(), BLOCK_SIZE, found.append)


def test_a_swap_costs_its_share_of_the_copies_both_ways(watch: PreemptionCosts, found: list[PreemptionCost]) -> None:
    watch.stepped(report(yields("a", "swap", 16, 50, 4.0), out=4, copy_ms=8.0))
    watch.stepped(report(rows=(row("b", 1),), run_ms=10.0))
    watch.stepped(report(resumed("a"), back=3, copy_ms=3.0))

    assert found == [PreemptionCost("swap", 4.0, 9.0)]
    assert found[0].ratio == pytest.approx(2.25)


def test_what_the_host_had_already_costs_nothing_on_the_way_out(
    watch: PreemptionCosts, found: list[PreemptionCost]
) -> None:
    watch.stepped(report(yields("a", "swap", 0, 64, 4.0, saved=3), out=1, copy_ms=2.0))
    watch.stepped(report(resumed("a"), back=4, copy_ms=4.0))

    assert found == [PreemptionCost("swap", 4.0, 6.0)]


def test_a_recompute_costs_what_its_rows_add_until_it_samples(
    watch: PreemptionCosts, found: list[PreemptionCost]
) -> None:
    costs = CostModel()
    both, other = (row("a", 200, samples=False), row("b", 1)), (row("b", 1),)
    rest = (row("a", 30, first=200),)
    watch.stepped(report(yields("a", "recompute", 0, 230, 90.0), rows=other, run_ms=10.0))
    watch.stepped(report(resumed("a"), rows=both, run_ms=2 * costs.step_ms(features(both))))
    watch.stepped(report(rows=rest, run_ms=costs.step_ms(features(rest))))

    (cost,) = found
    added_ms = 2 * (costs.step_ms(features(both)) - costs.step_ms(features(other)))
    last_ms = costs.step_ms(features(rest)) - costs.step_ms(StepFeatures(1, 0, 0, 0))
    assert cost.actual_ms == pytest.approx(added_ms + last_ms)


def test_what_was_never_computed_is_no_cost_of_a_recompute(watch: PreemptionCosts, found: list[PreemptionCost]) -> None:
    costs, whole = CostModel(), (row("a", 100), row("b", 1))
    watch.stepped(report(yields("a", "recompute", 0, 25, 9.0), rows=whole[1:]))
    watch.stepped(report(resumed("a"), rows=whole, run_ms=costs.step_ms(features(whole))))

    added_ms = costs.step_ms(features(whole)) - costs.step_ms(features(whole[1:])._replace(rows=2))
    assert [cost.actual_ms for cost in found] == [pytest.approx(added_ms / 4)]


def test_who_gives_more_while_away_costs_more_and_is_expected_to(
    watch: PreemptionCosts, found: list[PreemptionCost]
) -> None:
    costs, rows = CostModel(), (row("a", 69, first=32),)
    watch.stepped(report(yields("a", "recompute", 64, 100, 9.0), yields("b", "swap", 32, 64, 3.0), out=2, copy_ms=2.0))
    watch.stepped(report(yields("a", "recompute", 32, 64, 8.0), yields("b", "swap", 0, 32, 3.0), out=2, copy_ms=4.0))
    watch.stepped(report(resumed("a"), resumed("b"), rows=rows, back=4, copy_ms=8.0, run_ms=30.0))

    share = 1.0 - costs.step_ms(StepFeatures(1, 0, 0, 0)) / costs.step_ms(features(rows))
    swapped, recomputed = found
    assert swapped == PreemptionCost("swap", 6.0, 14.0)
    assert recomputed.predicted_ms == 17.0
    assert recomputed.actual_ms == pytest.approx(30.0 * share * 68 / 69)


def test_what_is_in_the_host_pool_and_yet_computed_again_counts_as_recomputed(
    watch: PreemptionCosts, found: list[PreemptionCost]
) -> None:
    watch.stepped(report(yields("a", "swap", 64, 100, 9.0), out=3, copy_ms=3.0))
    watch.stepped(report(yields("a", "recompute", 32, 100, 8.0)))
    watch.stepped(report(resumed("a"), rows=(row("a", 69, first=32),), run_ms=30.0))

    assert [(cost.mode, cost.predicted_ms) for cost in found] == [("recompute", 8.0)]


def test_what_costs_nothing_or_never_returns_is_no_preemption_to_compare(
    watch: PreemptionCosts, found: list[PreemptionCost]
) -> None:
    asked = [yields(name, "swap", 0, 32, predicted_ms) for name, predicted_ms in (("a", 0.0), ("b", 1.0), ("c", 1.0))]
    watch.stepped(report(*asked))
    watch.stepped(report(rows=(row("d", 1),), ended="b"))
    watch.lost(["c"])
    watch.stepped(report(resumed("a"), resumed("b"), resumed("c")))

    assert found == []
