"""The overlay: seeded, the same for every load, in the proportions that were asked for, and silent about lengths."""

from collections import Counter
from dataclasses import replace

import pytest

from fairlane.scheduler.protocol.lanes import LATENCY, LaneName
from fairlane.scheduler.simulation.synthetic_tenants import (
    SyntheticTenants,
    Tier,
    lane_tiers,
    max_tokens_over,
)
from fairlane.scheduler.simulation.trace import TraceRow, scale_load
from fairlane.scheduler.simulation.workload import Arrival

ROWS = [TraceRow(number + 2, 10.0 * number, 100, 1 + number % 300) for number in range(4_000)]
TIERS = (
    Tier(name="fast", lane=LaneName.LATENCY, share=1, ttft_ms=500, tpot_ms=50),
    Tier(name="sure", lane=LaneName.LATENCY, share=1, ttft_ms=900, tpot_ms=90, deadline_ms=9_000, hard_ttft_ms=1_000),
    Tier(name="cheap", lane=LaneName.THROUGHPUT, share=2, ttft_ms=60_000, tpot_ms=500),
)


def arrivals(load: float = 1.0, **settings: object) -> list[Arrival]:
    return list(replace(SyntheticTenants(tiers=TIERS), **settings).arrivals(scale_load(ROWS, load)))  # type: ignore[arg-type]


def test_the_same_seed_gives_the_same_requests() -> None:
    assert arrivals(seed=7) == arrivals(seed=7)
    assert arrivals(seed=7) != arrivals(seed=8)


def test_another_load_changes_only_when_requests_come() -> None:
    assert [replace(one, at_ms=one.at_ms * 4) for one in arrivals(4.0)] == arrivals(1.0)


def test_tenants_and_tiers_are_drawn_apart() -> None:
    few, many = arrivals(tenants=2), arrivals(tenants=50)

    assert [one.tier for one in few] == [one.tier for one in many]
    assert [one.tenant for one in many] == [one.tenant for one in arrivals(tenants=50, tiers=lane_tiers(0.5))]


def test_tiers_come_in_their_shares_with_their_promises() -> None:
    made = arrivals()
    counts = Counter(one.tier for one in made)

    assert counts["cheap"] == pytest.approx(2_000, rel=0.05)
    assert counts["fast"] == pytest.approx(1_000, rel=0.1)
    sure = next(one for one in made if one.tier == "sure")
    assert (sure.lane, sure.ttft_ms, sure.tpot_ms) == (LaneName.LATENCY, 900, 90)
    assert (sure.deadline_ms, sure.hard_ttft_ms) == (9_000, 1_000)


def test_tenants_ask_by_zipfs_law() -> None:
    counts = Counter(one.tenant for one in arrivals(tenants=4, zipf=1.0))

    for rank in range(1, 5):
        assert counts[f"tenant-{rank}"] == pytest.approx(4_000 / rank / (1 + 1 / 2 + 1 / 3 + 1 / 4), rel=0.1)


def test_without_an_exponent_tenants_ask_alike() -> None:
    counts = Counter(one.tenant for one in arrivals(tenants=4, zipf=0.0))

    assert all(count == pytest.approx(1_000, rel=0.1) for count in counts.values())


def test_the_lane_mix_has_the_lanes_own_targets() -> None:
    made = arrivals(tiers=lane_tiers(0.25))

    assert Counter(one.lane for one in made)[LaneName.LATENCY] == pytest.approx(1_000, rel=0.1)
    assert {one.ttft_ms for one in made if one.lane is LaneName.LATENCY} == {LATENCY.ttft_ms}
    assert {one.lane for one in arrivals(tiers=lane_tiers(0.0))} == {LaneName.THROUGHPUT}


@pytest.mark.parametrize(
    ("output", "kv_tokens", "stated"),
    [(1, None, 16), (15, None, 16), (16, None, 32), (255, None, 256), (256, None, 512), (257, None, 512),
     (257, 1_000, 512), (257, 500, 400), (400, 500, 400)],
)  # fmt: skip
def test_what_is_stated_is_a_power_of_two_above_the_output_that_fits(
    output: int, kv_tokens: int | None, stated: int
) -> None:
    assert max_tokens_over(TraceRow(1, 0.0, 100, output), kv_tokens) == stated


def test_no_request_of_an_overlay_outgrows_the_pool() -> None:
    assert all(one.output_tokens <= one.max_tokens <= 300 for one in arrivals(kv_tokens=400))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"tenants": 0}, "tenants must be between 1 and 100000, not 0"),
        ({"zipf": -1.0}, "zipf must be between 0 and 10, not -1.0"),
        ({"zipf": float("nan")}, "zipf must be between 0 and 10, not nan"),
        ({"tiers": ()}, "tiers must have shares"),
    ],
)
def test_a_setting_out_of_range_is_refused_by_name(settings: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        SyntheticTenants(**settings)  # type: ignore[arg-type]


def test_a_mix_and_a_tier_out_of_range_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"latency_share must be between 0 and 1, not 1\.5"):
        lane_tiers(1.5)
    with pytest.raises(ValueError, match="tier fast: ttft_ms must be above 0"):
        replace(TIERS[0], ttft_ms=0.0)
    with pytest.raises(ValueError, match="tier fast: share must be a number of at least 0"):
        replace(TIERS[0], share=float("nan"))
