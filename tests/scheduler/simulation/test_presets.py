"""Hardware by name: every preset is a worker that could be, and what is faster on paper is faster here."""

from itertools import pairwise

import pytest

from fairlane.scheduler.planner.steps import StepFeatures
from fairlane.scheduler.simulation.calibration import DEVICES, SHAPES, Calibration, names, preset, read_calibration


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
        return preset(f"{device}-{shape}").hardware.step_ms(step) * count.get(device, 1)

    for step in (decode, prompt):
        times = [gpu_ms(device, step) for device in DEVICES]
        assert all(slow >= 0.95 * fast for slow, fast in pairwise(times)), times


def test_an_eight_billion_model_reads_its_weights_in_a_step() -> None:
    """16.06 GB at four fifths of 3.35 TB/s are 6.0 ms; a prompt token is 16.06 GFLOP at half of 989.5 TFLOPS."""
    base, _, token, context, _ = preset("h100-8b").step

    assert base == pytest.approx(1.0 + 5.99, abs=0.01)
    assert token == pytest.approx(0.0325, abs=1e-4)
    assert context == pytest.approx(131_072 / 2.68e9, rel=1e-3)
