"""A worker's own figures: what its cost model learnt, the time between its steps, and how they scatter."""

import math
from collections.abc import Iterable
from typing import Any

import pytest

from fairlane.scheduler.planner.costs import CostModel
from fairlane.scheduler.planner.steps import Capacity, Row, SeqId, StepFeatures, StepOutcome, StepPlan, StepResult
from fairlane.scheduler.simulation.calibration import read_calibration
from fairlane.worker.engine.engine import StepReport
from fairlane.worker.heartbeat import CostReport
from fairlane.worker.reports import Report, WorkerLoad

ROW = Row(SeqId("job", 0), (51,), 0, (0,), samples=True, output_index=0)


class Bench:
    """A report, and an engine whose clock stands in the test's hand."""

    def __init__(self) -> None:
        self.now_ms = 0.0
        self.costs = CostModel()
        for rows in range(1, 60):
            self.costs.observe(StepFeatures(rows % 5 + 1, 0, 0, 0), 10.0, 0, 0.0)
        self.report = CostReport(self.costs, clock=lambda: self.now_ms / 1e3, blocks=7, max_sequences=3)

    def step(self, run_ms: float, *, between_ms: float = 0.0, predicted_ms: float = 10.0, jobs: int = 1) -> None:
        self.now_ms += between_ms + run_ms
        plan = StepPlan(number=1, rows=(ROW,), predicted_ms=predicted_ms)
        self.turn(StepReport(plan, StepResult(number=1, run_ms=run_ms), StepOutcome(), ()), jobs)

    def turn(self, step: StepReport | None, jobs: int) -> None:
        self.report.turned(Report(1, jobs, Capacity({}, {}), WorkerLoad(), step=step))


def test_costs_and_sizes_are_the_workers_own() -> None:
    bench = Bench()

    found = bench.report.calibration()

    assert found.step_ms(StepFeatures(3, 0, 0, 0)) == pytest.approx(bench.costs.step_ms(StepFeatures(3, 0, 0, 0)))
    assert (found.blocks, found.max_sequences, found.overhead_ms, found.noise) == (7, 3, 0.0, 0.0)
    assert found.learnt


def test_the_time_between_steps_is_measured_while_they_follow_each_other() -> None:
    bench = Bench()
    for _ in range(5):
        bench.step(10.0, between_ms=2.0)
    bench.turn(None, 1)  # a command applied
    bench.step(10.0, between_ms=2.0, jobs=0)
    bench.now_ms += 60_000.0
    bench.step(10.0)
    bench.turn(StepReport(StepPlan(number=2), StepResult(number=2), StepOutcome(), ()), 1)  # nothing could run
    bench.now_ms += 50.0
    bench.step(10.0)

    assert bench.report.calibration().overhead_ms == pytest.approx(2.0)


def test_noise_is_how_steps_scatter_about_their_prediction() -> None:
    bench = Bench()
    for number in range(400):
        bench.step(10.0 * math.exp(0.3 if number % 2 else -0.3))

    assert bench.report.calibration().noise == pytest.approx(0.3, rel=0.01)


def test_a_steady_error_is_no_noise() -> None:
    bench = Bench()
    for _ in range(20):
        bench.step(14.0)

    assert bench.report.calibration().noise == pytest.approx(0.0, abs=1e-6)


def test_it_answers_beside_another_application() -> None:
    bench, said = Bench(), []

    def other(environ: Any, start_response: Any) -> Iterable[bytes]:
        return [b"metrics"]

    app = bench.report.mounted_on(other)

    assert app({"PATH_INFO": "/metrics"}, lambda *head: said.append(head)) == [b"metrics"]  # type: ignore[arg-type]
    (body,) = app({"PATH_INFO": "/costs"}, lambda *head: said.append(head))  # type: ignore[arg-type]
    assert read_calibration(body) == bench.report.calibration()
    assert said == [("200 OK", [("Content-Type", "application/json")])]
