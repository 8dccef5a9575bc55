"""A budget that fifty streams want: never more than it allows in any minute, and hardly less."""

import pytest

from benchmarks.quotas.streams import LIMIT, MINUTE_MS, contend, most_within
from tests.support.quotas.house import START_MS

pytestmark = pytest.mark.anyio

MINUTES = 10


async def test_fifty_streams_share_a_hundred_tokens_a_minute() -> None:
    made_ms = await contend(START_MS, MINUTES)

    assert most_within(made_ms, MINUTE_MS) <= LIMIT
    assert len(made_ms) >= 0.98 * LIMIT * MINUTES


def test_a_window_is_open_at_its_old_end() -> None:
    assert most_within([0, 10, 59, 60, 69, 70], 60) == 4
    assert most_within([0, 1, 2], 60) == 3
    assert most_within([], 60) == 0
