"""A budget that fifty streams want: never more than it allows in any minute, and hardly less."""

import pytest

from benchmarks.quotas.streams import LIMIT, MINUTE_MS, contend, most_within
from tests.support.quotas.house import START_MS

pytestmark = pytest.mark.anyio

MINUTES = 4


@pytest.mark.parametrize("gateways", [pytest.param(1, marks=pytest.mark.thorough), 4])
@pytest.mark.parametrize(("limit", "minutes"), [(LIMIT, MINUTES), (100 * LIMIT, 1)])
async def test_fifty_streams_share_a_budget_over_gateways(limit: int, minutes: int, gateways: int) -> None:
    made_ms = await contend(START_MS, minutes, gateways=gateways, limit=limit)

    assert most_within(made_ms, MINUTE_MS) <= limit
    assert len(made_ms) >= 0.98 * limit * minutes


def test_a_window_is_open_at_its_old_end() -> None:
    assert most_within([0, 10, 59, 60, 69, 70], 60) == 4
    assert most_within([0, 1, 2], 60) == 3
    assert most_within([], 60) == 0
