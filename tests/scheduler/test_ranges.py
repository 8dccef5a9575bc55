"""What a scheduler is built from is checked when it is built: one line with the name, the rule and the value."""

import math
import re
from collections.abc import Mapping
from typing import Any

import pytest

from fairlane.scheduler.planner.costs import CostModel
from fairlane.scheduler.planner.planner import Planner
from fairlane.scheduler.planner.steps import require
from fairlane.scheduler.protocol.lanes import DEFAULT_LANES
from fairlane.scheduler.queue.memory_queue import LaneQueue
from fairlane.scheduler.simulation.workload import Hardware

SIZES: Mapping[str, Any] = {
    "block_size": 16, "blocks": 8, "host_slots": 0, "max_sequences": 4, "max_step_tokens": 16, "window": 512.0
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "value", "rule"),
    [
        ("block_size", 0, "between 1 and inf"),
        ("blocks", 0, "between 1 and inf"),
        ("host_slots", -1, "between 0 and inf"),
        ("max_sequences", 0, "between 1 and inf"),
        ("max_step_tokens", -5, "between 1 and inf"),
        ("window", -0.5, "between 0.0 and inf"),
        ("window", math.nan, "between 0.0 and inf"),
    ],
)
def test_a_planner_refuses_what_is_out_of_range(name: str, value: float, rule: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(f'{name} must be {rule}, not {value}')}$"):
        Planner(lanes=DEFAULT_LANES, costs=CostModel(), **{**SIZES, name: value})


def test_a_queue_refuses_a_window_out_of_range() -> None:
    with pytest.raises(ValueError, match=r"^window must be between"):
        LaneQueue(DEFAULT_LANES, window=math.nan)


@pytest.mark.parametrize(
    ("costs", "name"),
    [
        ({"step": (1.0, 0.0, -0.1, 0.0, 0.0)}, "step"),
        ({"step": (1.0, math.nan, 0.0, 0.0, 0.0)}, "step"),
        ({"copy": (0.0, math.inf)}, "copy"),
        ({"overhead_ms": -1.0}, "overhead_ms"),
        ({"noise": 3.0}, "noise"),
    ],
)
def test_hardware_refuses_costs_out_of_range(costs: dict[str, Any], name: str) -> None:
    with pytest.raises(ValueError, match=f"^{name} must be between 0"):
        Hardware(**{"step": (1.0, 0.0, 0.0, 0.0, 0.0), "copy": (0.0, 0.0), **costs})


@pytest.mark.parametrize("value", [1.0, 1.5, 2.0])
def test_both_ends_of_a_range_are_in_it(value: float) -> None:
    require("value", value, 1.0, 2.0)
