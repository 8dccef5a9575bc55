"""A worker of rows and fixed steps."""

import pytest

from fairlane.scheduler.protocol.lanes import LATENCY, LaneName
from fairlane.scheduler.protocol.messages import Lease, Outcome
from fairlane.scheduler.simulation.calibration import preset
from fairlane.scheduler.simulation.fleet.rows_worker import Done, RowsShape, RowsWorker
from fairlane.scheduler.simulation.trace import TraceRow
from tests.support.scheduler.simulated import arrival

SHAPE = RowsShape(rows=4, step_ms=10.0, step_tokens=100)


def lease(job_id: str, prompt: int, lane: LaneName = LaneName.LATENCY) -> Lease:
    return Lease(job=arrival(job_id, prompt=prompt, lane=lane).job(), epoch=1, arrived_ms_ago=0.0)


def test_a_job_takes_its_prompts_steps_and_one_for_each_token() -> None:
    worker = RowsWorker(SHAPE)

    first = worker.start(lease("a", 250), 0, 5, 7.0)

    assert (first.first_ms, first.end_ms) == (37.0, 77.0)


def test_prompts_share_the_steps_prefill_tokens_and_begin_with_a_step() -> None:
    worker = RowsWorker(SHAPE)

    jobs = [worker.start(lease(f"r{number}", 60), 0, 1, 0.0) for number in range(3)]
    late = worker.start(lease("late", 60), 0, 1, 31.0)

    assert [job.first_ms for job in jobs] == [10.0, 20.0, 20.0]
    assert late.first_ms == 50.0


def test_a_prompt_overtakes_those_of_the_lane_below_and_delays_what_follows() -> None:
    worker = RowsWorker(SHAPE)

    leases = [lease("a", 500, LaneName.THROUGHPUT), lease("b", 200), lease("c", 100, LaneName.THROUGHPUT)]

    assert [worker.start(one, 0, 1, 0.0).first_ms for one in leases] == [50.0, 20.0, 80.0]


def test_rows_are_offered_used_and_freed() -> None:
    worker = RowsWorker(SHAPE)
    worker.offered[1] = 3
    worker.start(lease("a", 10), 1, 2, 0.0)

    assert (worker.used, worker.offered[1], worker.unoffered) == (1, 2, 1)
    assert [job.lease.job.job_id for job in worker.end(20.0)] == ["a"]
    assert (worker.used, worker.unoffered) == (0, 2)


def test_progress_is_reported_once() -> None:
    worker = RowsWorker(SHAPE)
    job = worker.start(lease("a", 10), 0, 4, 0.0)

    reports = [worker.progress(0, at_ms) for at_ms in (5.0, 25.0, 25.0)]
    last = job.progress(40.0, SHAPE.step_ms, Outcome.FINISHED)

    assert [[(one.generated, one.cost) for one in report] for report in reports] == [[], [(2, 10.0 + 4.0)], []]
    assert last is not None
    assert (last.generated, last.cost, last.ends) == (4, 4.0, Outcome.FINISHED)


def test_a_job_of_a_dead_worker_continues_after_its_last_token() -> None:
    job = RowsWorker(SHAPE).start(lease("a", 90), 0, 5, 0.0, Done(tokens=3, reported=90.0 + 4.0))

    last = job.progress(30.0, SHAPE.step_ms, Outcome.FINISHED)

    # its three tokens are part of its prompt, which one step computes with the fourth token
    assert (job.first_ms, job.end_ms, job.tokens(5.0, SHAPE.step_ms)) == (10.0, 20.0, 3)
    assert last is not None
    assert (last.generated, last.cost) == (5, 6.0)


def test_a_shape_is_read_or_derived_from_a_calibrated_worker() -> None:
    assert RowsShape.parse("rows=8,step_ms=12.5") == RowsShape(rows=8, step_ms=12.5)
    hardware, rows = preset("h100-8b"), [TraceRow(1, 0.0, 1_000, 200)]
    like = RowsShape.like(hardware, rows)
    assert 20 < like.rows < 100
    assert 0.9 * LATENCY.tpot_on(hardware.single_stream_ms) < like.step_ms <= LATENCY.tpot_on(hardware.single_stream_ms)


@pytest.mark.parametrize("text", ["", "rows", "rows=0", "lines=4", "step_ms=-1"])
def test_a_shape_that_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"workers-as must be such as|rows must be between"):
        RowsShape.parse(text)
