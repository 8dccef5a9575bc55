"""What each job took of the machine: all of the steps' time, once, and the blocks that it held, as long as it did."""

import pytest

from fairlane.scheduler.planner.steps import Row, SeqId, StepPlan, Yield
from fairlane.scheduler.protocol.messages import Finished, JobSteps, Outcome
from fairlane.worker.accounts import StepAccounts
from fairlane.worker.reports import Report, ReportBuilder, WorkerLoad
from tests.support.worker.scripted import ScriptedRunner, engine, lease

BLOCK = 4


def row(job_id: str, tokens: int, blocks: int, choice: int = 0) -> Row:
    return Row(SeqId(job_id, choice), (7,) * tokens, 0, tuple(range(blocks)), samples=True, output_index=0)


def plan(number: int, *rows: Row, yields: tuple[Yield, ...] = ()) -> StepPlan:
    return StepPlan(number, rows, yields=yields)


def test_a_steps_time_is_divided_by_computed_tokens() -> None:
    accounts = StepAccounts(BLOCK)
    accounts.add(plan(1, row("a", 6, 2), row("b", 2, 1)), 8.0, 1_000.0)
    accounts.add(plan(2, row("a", 1, 2), row("b", 1, 1), row("b", 1, 1, choice=1)), 3.0, 1_010.0)

    assert accounts.close("a", 1_013.0) == (7_000, 2 * 13)
    assert accounts.close("b", 1_013.0) == (4_000, 13 + 3)


def test_a_block_counts_while_it_is_held_with_or_without_a_row() -> None:
    accounts = StepAccounts(BLOCK)
    accounts.add(plan(1, row("a", 12, 3)), 1.0, 0.0)
    taken = Yield(SeqId("a", 0), "swap", first=4, end=12, predicted_ms=0.0)
    accounts.add(plan(2, row("b", 1, 1), yields=(taken,)), 1.0, 100.0)
    accounts.add(plan(3, row("a", 1, 4)), 1.0, 300.0)

    assert accounts.close("a", 301.0)[1] == 3 * 100 + 1 * 200 + 4 * 1


def test_a_job_that_never_ran_took_nothing_and_an_unknown_one_yields_nothing() -> None:
    accounts = StepAccounts(BLOCK)
    accounts.add(plan(1, yields=(Yield(SeqId("x", 0), "recompute", 0, 4, 0.0),)), 5.0, 0.0)
    accounts.add(plan(2, row("a", 1, 1)), 5.0, 0.0)
    accounts.drop("a")

    assert accounts.close("a", 9.0) == accounts.close("x", 9.0) == (0, 0)


def run(measured: StepAccounts | None) -> tuple[dict[str, JobSteps], int]:
    """Two jobs in an engine with steps of a millisecond: what their ends say."""
    runner = ScriptedRunner()
    it, reports, now_ms, steps = engine(runner), ReportBuilder("worker", measured), 0.0, dict[str, JobSteps]()
    leases = [lease("a", max_tokens=3), lease("b", max_tokens=6)]
    for each in leases:
        it.add(each, now_ms)
    capacity = it.planner.capacity()
    reports.complete(Report(2, 2, capacity, WorkerLoad(), leases))
    while it.has_work:
        report = Report(2, 2, capacity, WorkerLoad(), (), it.step(now_ms), now_ms)
        reports.complete(report)
        events = [event for each in report.publications for event in each.events]
        for event in [event for event in events if isinstance(event, Finished)]:
            assert event.outcome is Outcome.FINISHED
            assert event.steps is not None
            steps[event.job_id] = event.steps
        now_ms += 1.0
    return steps, runner.steps


def test_the_ends_of_all_jobs_tell_the_time_of_all_steps() -> None:
    steps, ran = run(StepAccounts(BLOCK))

    assert sum(each.gpu_us for each in steps.values()) == pytest.approx(ran * 1_000, abs=1)
    assert steps["b"].gpu_us > steps["a"].gpu_us > 0
    assert steps["a"].kv_block_ms >= 2 * 3  # five tokens and three more, in blocks of four, through three steps
    assert steps["b"].kv_block_ms > steps["a"].kv_block_ms


def test_of_a_machine_elsewhere_nothing_is_said() -> None:
    steps, _ = run(None)

    assert {(each.gpu_us, each.kv_block_ms) for each in steps.values()} == {(0, 0)}
