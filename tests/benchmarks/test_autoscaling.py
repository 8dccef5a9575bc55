"""`benchmarks.autoscaling`: the day's load is what it says, and the gateways' rule follows it."""

from collections import Counter
from itertools import pairwise

import pytest

from benchmarks.autoscaling import gateways, workers


def test_the_day_has_the_pace_of_each_stretch_and_comes_in_order() -> None:
    rows = list(workers.day())
    by_stretch = Counter(int(row.at_ms / 1e3 // workers.STRETCH_S) for row in rows)

    assert all(before.at_ms <= after.at_ms for before, after in pairwise(rows))
    for place, pace in enumerate(workers.PACES):
        assert by_stretch[place] / workers.STRETCH_S == pytest.approx(pace, rel=0.2)


def test_gateways_follow_the_load_within_their_bounds() -> None:
    found = gateways.play()

    assert gateways.RULE.least < found.most <= gateways.RULE.most
    hours = workers.STRETCH_S * len(workers.PACES) / 3600.0
    assert gateways.RULE.least * hours < found.gateway_hours < found.most * hours


def test_every_rule_of_a_fixed_size_stays_so() -> None:
    fixed = {name: rule for name, rule in workers.RULES.items() if name.endswith("workers")}

    assert fixed
    assert all(name == f"{rule.least} workers" and rule.least == rule.most for name, rule in fixed.items())
