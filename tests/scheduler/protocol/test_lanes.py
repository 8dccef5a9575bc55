"""Lanes, and how requests end."""

import dataclasses
from typing import Any

import pytest

from fairlane.scheduler.protocol.lanes import DEFAULT_LANES, LATENCY, THROUGHPUT, LaneName
from fairlane.scheduler.protocol.messages import CHARGED, Outcome


def test_the_lanes_are_as_promised() -> None:
    assert (LATENCY.ttft_ms, LATENCY.tpot_ms, LATENCY.max_wait_ms) == (1_000, 100, 60_000)
    assert (THROUGHPUT.ttft_ms, THROUGHPUT.max_wait_ms) == (600_000, 86_400_000)
    assert THROUGHPUT.share_floor == 0.05
    assert LATENCY.rank < THROUGHPUT.rank


def test_every_lane_has_its_own_rank_and_name() -> None:
    assert {name: lane.name for name, lane in DEFAULT_LANES.items()} == {name: name for name in LaneName}
    assert len({lane.rank for lane in DEFAULT_LANES.values()}) == len(LaneName)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("ttft_ms", 0.5),
        ("tpot_ms", -1.0),
        ("max_wait_ms", 1e10),
        ("share_floor", 1.5),
        ("share_floor", float("nan")),
        ("max_queued", 0),
    ],
)
def test_a_figure_out_of_range_is_named(field: str, value: float) -> None:
    changes: dict[str, Any] = {field: value}

    with pytest.raises(ValueError, match=f"lane latency: {field} must be between"):
        dataclasses.replace(LATENCY, **changes)


def test_only_a_rejected_request_owes_nothing() -> None:
    assert [outcome for outcome in Outcome if outcome not in CHARGED] == [Outcome.REJECTED]
