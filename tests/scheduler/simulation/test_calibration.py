"""A worker's figures: what its cost model predicts, in a document that others can read; and hardware by name."""

from itertools import pairwise

import pytest

from fairlane.scheduler.planner.costs import CostModel
from fairlane.scheduler.planner.steps import StepFeatures
from fairlane.scheduler.simulation.calibration import (
    DEVICES,
    SHAPES,
    Calibration,
    CalibrationError,
    names,
    of_costs,
    preset,
    read_calibration,
)


def test_a_cost_model_is_told_apart_into_its_weights() -> None:
    costs = CostModel()
    for rows in range(1, 60):
        plan = StepFeatures(rows % 7 + 1, 16 * (rows % 5), 100 * (rows % 11), 900 * (rows % 3))
        costs.observe(
            plan, 8.0 + 0.5 * plan.rows + 0.1 * plan.prefill_tokens + 1e-3 * plan.context, rows % 4, 0.3 * (rows % 4)
        )

    found = of_costs(costs, blocks=77, max_step_tokens=99)

    assert found.learnt
    assert (found.blocks, found.max_step_tokens, found.block_size) == (77, 99, 16)
    for plan in (StepFeatures(1, 0, 0, 0), StepFeatures(9, 300, 4_000, 90_000)):
        assert found.step_ms(plan) == pytest.approx(costs.step_ms(plan))
    assert found.copy_ms(12) == pytest.approx(costs.copy_ms(12))


def test_a_worker_knows_its_figures_from_the_start_and_learns_nothing_from_what_they_foresee() -> None:
    found = preset("h100-8b")

    costs = found.costs()

    assert costs.knows_steps
    assert costs.knows_copies
    assert costs.single_stream_ms == pytest.approx(found.single_stream_ms - found.overhead_ms)
    before = of_costs(costs)
    for rows in range(1, 50):
        plan = StepFeatures(rows, 100 * (rows % 3), 900 * rows, 5_000 * (rows % 3))
        assert costs.step_ms(plan) == pytest.approx(found.step_ms(plan))
        costs.observe(plan, found.step_ms(plan), rows % 2, found.copy_ms(rows % 2))
    assert of_costs(costs).step == before.step
    costs.observe(StepFeatures(1, 0, 0, 0), 30.0, 0, 0.0)
    assert costs.step_ms(StepFeatures(1, 0, 0, 0)) > found.step_ms(StepFeatures(1, 0, 0, 0))


def test_a_worker_that_has_run_nothing_says_so() -> None:
    assert not of_costs(CostModel()).learnt


def test_the_document_is_read_as_it_was_written() -> None:
    calibration = Calibration(step=(1.0, 2.0, 3.0, 4.0, 5.0), copy=(6.0, 7.0), noise=0.1, blocks=10, block_size=4)

    assert read_calibration(calibration.to_json()) == calibration
    assert calibration.kv_tokens == 40
    assert read_calibration(b"{}") == Calibration()


@pytest.mark.parametrize(
    ("document", "words"),
    [
        (b"", "truncated"),
        (b"[]", "object"),
        (b"\xff", "malformed"),
        (b'{"blocks": 0}', "blocks"),
        (b'{"blocks": 1.5}', "blocks"),
        (b'{"step": [1, 2, 3, 4]}', "step"),
        (b'{"step": [1, 2, 3, 4, -5]}', "step"),
        (b'{"copy": [1, NaN]}', "malformed"),
        (b'{"speed": 3}', "speed"),
    ],
)
def test_a_wrong_document_is_refused_in_one_line(document: bytes, words: str) -> None:
    with pytest.raises(CalibrationError) as raised:
        read_calibration(document)

    assert words in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("name", names())
def test_every_preset_is_a_worker_with_room(name: str) -> None:
    found = preset(name)

    assert read_calibration(found.to_json()) == found
    assert found.kv_tokens >= 10_000
    assert min(found.step) > 0.0


def test_there_is_one_for_each_device_and_shape() -> None:
    assert {f"{device}-{shape}" for device in ("cpu", "l4", "a100", "h100", "h200") for shape in SHAPES} <= {*names()}
    assert preset("cpu-135m") == Calibration()


@pytest.mark.parametrize("shape", SHAPES)
def test_faster_memory_and_arithmetic_are_faster_per_gpu(shape: str) -> None:
    decode, prompt = StepFeatures(1, 0, 1_000, 0), StepFeatures(1, 4_096, 0, 0)
    count = {"70b": {"l4": 8, "a100": 4, "h100": 4, "h200": 2}}.get(shape, {})

    def gpu_ms(device: str, step: StepFeatures) -> float:
        return preset(f"{device}-{shape}").step_ms(step) * count.get(device, 1)

    for step in (decode, prompt):
        times = [gpu_ms(device, step) for device in DEVICES]
        assert all(slow >= 0.95 * fast for slow, fast in pairwise(times)), times


def test_an_eight_billion_model_reads_its_weights_in_a_step() -> None:
    """16.06 GB at four fifths of 3.35 TB/s are 6.0 ms; a prompt token is 16.06 GFLOP at half of 989.5 TFLOPS."""
    base, _, token, context, _ = preset("h100-8b").step

    assert base == pytest.approx(1.0 + 5.99, abs=0.01)
    assert token == pytest.approx(0.0325, abs=1e-4)
    assert context == pytest.approx(131_072 / 2.68e9, rel=1e-3)
