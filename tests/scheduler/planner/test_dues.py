"""One rule for when a first token is due: queue and planner order by what the door reckoned with."""

from typing import Any

import pytest

from fairlane.scheduler.planner.ordering import first_due_ms
from fairlane.scheduler.planner.sequence_group import open_group
from fairlane.scheduler.protocol.lanes import LATENCY
from fairlane.scheduler.protocol.messages import Lease
from fairlane.scheduler.queue.types import due_after_ms
from tests.support.scheduler.queues import job


@pytest.mark.parametrize(
    ("fields", "due_ms"),
    [
        ({}, 1_000.0),
        ({"hard_ttft_ms": 400.0}, 400.0),
        ({"deadline_ms": 10_500.0}, 500.0),  # 100 tokens at the lane's target
        ({"deadline_ms": 10_500.0, "pace_ms": 102.0}, 300.0),
        ({"deadline_ms": 10_500.0, "pace_ms": 102.0, "hard_ttft_ms": 200.0}, 200.0),
        ({"deadline_ms": 500.0}, 0.0),
    ],
)
def test_it_is_the_earliest_of_target_statement_and_what_a_stated_end_leaves(
    fields: dict[str, Any], due_ms: float
) -> None:
    asked = job("a", **fields)

    job_id = open_group(Lease(job=asked, epoch=1, arrived_ms_ago=0.0), LATENCY, arrived_ms=7.0, block_size=16)

    assert first_due_ms(asked) == due_after_ms(asked) == due_ms
    assert job_id.choices[0].first_due_ms == 7.0 + due_ms
