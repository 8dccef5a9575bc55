"""A bounded form of `python -m tests.system.engine_kills`, before stand-ins of vLLM."""

from pathlib import Path

import pytest

from tests.system.engine_kills import Case, lives

pytestmark = [pytest.mark.system, pytest.mark.anyio]


@pytest.mark.thorough
@pytest.mark.parametrize("schedules", [1, 2])
async def test_no_token_is_lost_or_doubled_and_the_books_balance_whoever_is_killed(
    tmp_path: Path, schedules: int
) -> None:
    report = await lives(tmp_path, Case(schedules=schedules, seed=2, longest_away_s=0.2))

    assert report.faults == []
    assert report.deaths == dict.fromkeys(("engine", "lease holder", "gateway"), schedules)
    assert report.ends["patient whole"] > 0
    assert report.tokens > 250 * schedules
