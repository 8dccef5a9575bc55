"""The search for the smallest number of workers: what every count would show, found by looking at few."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlane.scheduler.protocol.lanes import LaneName
from fairlane.scheduler.simulation.advice import Case, Question, advise, play
from fairlane.scheduler.simulation.calibration import Calibration, preset
from fairlane.scheduler.simulation.scenario import busiest
from fairlane.scheduler.simulation.sizing import (
    NEAR,
    LaneVerdict,
    Verdict,
    alone_kept,
    drain_allowed_ms,
    smallest,
)
from fairlane.scheduler.simulation.synthetic_tenants import lane_tiers
from fairlane.scheduler.simulation.trace import TraceRow

pytestmark = pytest.mark.slow


def verdict(workers: int, *, keeps: bool) -> Verdict:
    kept = 1.0 if keeps else 0.5
    lane = LaneVerdict(requests=1, ttft_kept=kept, tpot_kept=1.0, refused=0.0, ttft_ms=None, tpot_ms=None)
    return Verdict(workers=workers, lanes={LaneName.LATENCY: lane}, drained_ms=0.0, drain_allowed_ms=1.0)


@settings(max_examples=200)
@given(st.integers(1, 300), st.integers(1, 400), st.integers(1, 8))
def test_the_edge_is_found_wherever_it_is(least: int, guess: int, at_once: int) -> None:
    seen: list[int] = []

    def simulate(counts: Sequence[int]) -> list[Verdict]:
        seen.extend(counts)
        return [verdict(count, keeps=count >= least) for count in counts]

    found = smallest(simulate, guess=guess, at_once=at_once, most=1_000)

    if least <= 16 * guess:
        assert found.workers == least
        assert not found.is_edge
    assert len(seen) == len(set(seen)), "each count is simulated once"


@settings(max_examples=200)
@given(st.integers(20, 200), st.sets(st.integers(-20, 20), max_size=6), st.integers(10, 300))
def test_chance_near_the_edge_moves_it_by_a_tenth_at_most(least: int, odd: set[int], guess: int) -> None:
    """Counts near the edge may keep by luck, or miss."""
    holds = {count: (count >= least) != (count - least in odd and abs(count - least) <= 0.05 * least)
             for count in range(1, 1_100)}  # fmt: skip
    found = smallest(lambda counts: [verdict(count, keeps=holds[count]) for count in counts], guess=guess, most=1_000)

    exhaustive = next(count for count in range(1, 1_001) if holds[count])
    if found.workers is None:
        assert exhaustive > 16 * guess or not holds[16 * guess], "the last count that is tried may miss by chance"
    else:
        assert holds[found.workers]
        assert found.workers - exhaustive <= NEAR * exhaustive + 1


def test_what_no_count_keeps_is_said() -> None:
    found = smallest(lambda counts: [verdict(count, keeps=False) for count in counts], guess=2, most=100)

    assert found.workers is None
    assert max(found.verdicts) <= 100


COSTS = Calibration(step=(5.0, 0.5, 0.1, 0.0, 0.0), copy=(0.1, 0.1), blocks=256, host_slots=64, max_sequences=16)


def question(count: int = 120, every_ms: float = 12.0) -> Question:
    rows = [TraceRow(n + 1, every_ms * n, 40 + 13 * (n % 17), 5 + 3 * (n % 11)) for n in range(count)]
    tiers = lane_tiers(0.5, single_stream_ms=COSTS.single_stream_ms)
    return Question(rows=rows, calibration=COSTS, tiers=tiers)


@pytest.mark.thorough
def test_advice_is_the_smallest_count_that_simulation_shows() -> None:
    """A small form of `benchmarks/scheduling/sizing.py`."""
    asked = question()
    advice = advise(asked, lambda cases: [play(asked, case) for case in cases], at_once=1)

    every = [play(asked, Case(workers=count)) for count in range(1, 13)]
    smallest_count = next(each.workers for each in every if each.keeps)

    assert 3 <= smallest_count <= 12
    assert advice.sizing.workers is not None
    assert smallest_count <= advice.sizing.workers <= 1.1 * smallest_count
    assert {target.setting for target in advice.targets} == {
        "lanes.latency.ttft_s", "lanes.latency.tpot_ms", "lanes.throughput.ttft_s",
    }  # fmt: skip
    assert all(target.could_be_ms is None or target.could_be_ms < target.target_ms for target in advice.targets)
    assert advice.knobs[0].change == "nothing"
    assert not advice.knobs[0].verdict.keeps, "with fewer workers something has to give"


def test_stated_limits_shed_and_a_moved_lane_waits() -> None:
    asked = question(count=300, every_ms=6.0)

    plain, stated, moved = (
        play(asked, case) for case in (Case(workers=2), Case(workers=2, states_ttft=True), Case(workers=2, moved=True))
    )

    assert plain.lanes[LaneName.LATENCY].refused == 0.0 < stated.lanes[LaneName.LATENCY].refused
    before, after = (each.lanes[LaneName.LATENCY].requests for each in (plain, moved))
    assert after == before // 2


def test_prompts_that_take_too_long_alone_are_found_without_a_search() -> None:
    rows = [TraceRow(n + 1, float(n), 100 if n % 2 else 20_000, 5) for n in range(100)]

    assert alone_kept(rows, preset("l4-8b"), 1_000.0) == 0.5


def test_the_busiest_stretch_is_that_which_asks_for_the_most() -> None:
    slow = [TraceRow(n + 1, 1_000.0 * n, 100, 10) for n in range(100)]
    fast = [TraceRow(n + 101, 100_000.0 + 10.0 * n, 100, 10) for n in range(50)]

    stretch = busiest([*slow, *fast], 50, COSTS)

    assert [row.row for row in stretch.rows] == [row.row for row in fast]
    assert (stretch.from_s, stretch.to_s) == (100.0, 100.49)
    assert stretch.rows[0].at_ms == 0.0
    assert busiest(slow, 100, COSTS).rows == slow


def test_a_backlog_may_drain_for_a_part_of_the_trace() -> None:
    asked = question()
    length_ms = asked.rows[-1].at_ms

    assert 0.1 * length_ms < drain_allowed_ms(asked.rows, COSTS) < 0.1 * length_ms + 35 * 3 * 6.5


@pytest.mark.parametrize("drained_ms", [0.0, 2.0])
def test_a_backlog_that_stays_is_a_miss(drained_ms: float) -> None:
    found = Verdict(workers=1, lanes={}, drained_ms=drained_ms, drain_allowed_ms=1.0)

    assert found.misses == (("backlog",) if drained_ms > 1.0 else ())
