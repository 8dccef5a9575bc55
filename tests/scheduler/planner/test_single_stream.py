"""What a single stream's token takes on a worker, and the TPOT targets that follow from it."""

import pytest

from fairlane.common.settings_error import SettingsError
from fairlane.scheduler.admission.open_requests import OpenRequests
from fairlane.scheduler.planner.costs import TYPICAL_CONTEXT, CostModel, Measurement, slowest_ms
from fairlane.scheduler.planner.steps import NO_WORK, StepFeatures
from fairlane.scheduler.protocol.lanes import DEFAULT_LANES, LATENCY, THROUGHPUT, LaneName
from fairlane.scheduler.protocol.messages import WorkerStatus
from fairlane.scheduler.protocol.settings import SharedSettings, load

ALONE = StepFeatures(1, 0, TYPICAL_CONTEXT, 0)
FULL = StepFeatures(64, 256, 40_000, 65_536)


def worker(single_stream_ms: float, *, draining: bool = False) -> WorkerStatus:
    return WorkerStatus(
        worker_id="w",
        model="m",
        queue="q",
        card_sha256="",
        started_at_ms=0.0,
        draining=draining,
        single_stream_ms=single_stream_ms,
        block_size=16,
        blocks_total=100,
        max_sequences=8,
        step_weights=(10.0, 0.1, 0.1, 0.0, 0.0),
    )


def test_it_is_not_known_before_it_was_measured() -> None:
    costs = CostModel()
    costs.observe(FULL, 500.0, 0, 0.0)
    costs.observe_between(3.0)

    assert costs.single_stream_ms == 0.0


def test_it_is_the_median_at_start_and_what_lies_between_steps() -> None:
    costs = CostModel()
    costs.start_from([Measurement(ALONE, ms, 0, 0.0) for ms in (18.0, 20.0, 90.0)] + [Measurement(FULL, 400.0, 0, 0.0)])

    assert costs.single_stream_ms == pytest.approx(20.0)
    for _ in range(200):
        costs.observe_between(2.0)
    assert costs.single_stream_ms == pytest.approx(22.0, rel=0.01)


def test_steps_of_one_decode_move_it_and_no_others() -> None:
    costs = CostModel()
    costs.start_from([Measurement(ALONE, 20.0, 0, 0.0), Measurement(FULL, 400.0, 0, 0.0)])
    for _ in range(300):
        costs.observe(FULL, 800.0, 0, 0.0)
    assert costs.single_stream_ms == pytest.approx(20.0)

    costs.observe(ALONE, 5_000.0, 0, 0.0)  # a page fault
    assert costs.single_stream_ms < 22.0
    for _ in range(300):
        costs.observe(ALONE, 30.0, 0, 0.0)
    assert costs.single_stream_ms == pytest.approx(30.0, rel=0.01)


def test_no_target_is_looser_than_the_lanes_nor_zero() -> None:
    assert LATENCY.tpot_on(0.0) == LATENCY.tpot_ms == 100.0
    assert LATENCY.tpot_on(16.0) == 48.0
    assert LATENCY.tpot_on(50.0) == 100.0
    assert LATENCY.tpot_on(0.01) == 1.0
    assert THROUGHPUT.tpot_on(16.0) == THROUGHPUT.tpot_ms


def test_several_workers_have_the_slowest_ones_figure() -> None:
    assert slowest_ms([worker(10.0), worker(0.0), worker(20.0), worker(90.0, draining=True)]) == 20.0
    assert slowest_ms([worker(0.0)]) == slowest_ms([]) == 0.0


def test_a_door_paces_steps_by_the_target_that_its_jobs_have() -> None:
    door = OpenRequests(DEFAULT_LANES)
    door.look([worker(10.0), worker(16.0)], 0.0)
    assert door.costs is not None

    assert door.costs.pace_ms == LATENCY.tpot_on(16.0) == 48.0


@pytest.mark.parametrize(("said", "on_16_ms"), [(None, 48.0), ("auto", 48.0), ("75", 75.0), ("250", 250.0)])
def test_the_setting_takes_a_figure_or_auto(said: str | None, on_16_ms: float) -> None:
    environ = {} if said is None else {"FAIRLANE_LANES__LATENCY__TPOT_MS": said}
    lanes = load(SharedSettings, document=None, environ=environ).lanes.lanes()

    assert lanes[LaneName.LATENCY].tpot_on(16.0) == on_16_ms


@pytest.mark.parametrize("said", ["fast", "0", "-1"])
def test_the_setting_takes_nothing_else(said: str) -> None:
    with pytest.raises(SettingsError, match=r"lanes\.latency\.tpot_ms"):
        load(SharedSettings, document=None, environ={"FAIRLANE_LANES__LATENCY__TPOT_MS": said})


def test_a_step_without_work_says_nothing() -> None:
    costs = CostModel()
    costs.observe(NO_WORK, 3.0, 0, 0.0)

    assert costs.single_stream_ms == 0.0
