"""Line 1 in short: two clients in overload, on one worker with many rows."""

import pytest

from benchmarks.scheduling.lines.fairness import HARDER, Case, share
from benchmarks.scheduling.lines.world import OURS, THETA


@pytest.mark.thorough
@pytest.mark.parametrize("seed", [0, 1])
def test_tenants_do_not_swing_past_each_other_in_a_large_batch(seed: int) -> None:
    gap = share(Case(OURS, HARDER, 20_000, seed, 120.0)).gap
    assert gap < 1.6 * THETA
