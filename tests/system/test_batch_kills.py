"""A bounded form of `python -m tests.system.batch_kills`, with workers that speak from a script."""

import random
from pathlib import Path

import pytest

from tests.support.system.chaos import World
from tests.system.batch_kills import Case, run, shared

pytestmark = [pytest.mark.system, pytest.mark.anyio]

SHORT = Case(lines=40, kills=3, seed=1, tokens=32, longest_away_s=0.2)
LONG = Case(lines=60, kills=5, seed=1, tokens=32, longest_away_s=0.2)


@pytest.mark.parametrize(
    ("case", "deaths"),
    [
        pytest.param(SHORT, {"gateway": 1, "worker": 1, "store": 1}, id="short", marks=pytest.mark.thorough),
        pytest.param(LONG, {"gateway": 2, "worker": 2, "store": 1}, id="long", marks=pytest.mark.thorough),
    ],
)
async def test_every_line_is_answered_and_charged_once_whoever_is_killed(
    tmp_path: Path, case: Case, deaths: dict[str, int]
) -> None:
    settings = shared(tmp_path, GATEWAY__FILES__BATCH_LINES="8")
    with World(tmp_path, random.Random(case.seed), settings, step_s=0.03) as world:
        await world.ready()
        report = await run(world, case)

    assert report.faults == []
    assert report.deaths == deaths
    assert report.ends["whole"] > 0
