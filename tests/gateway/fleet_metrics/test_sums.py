"""Sums of figures: added up in any order and any grouping they come to the same, and percentiles stay near."""

import math
from collections import Counter

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from fairlane.gateway.insight.fleet_metrics.sums import (
    LAST_BUCKET,
    MOST_TENANTS,
    Sums,
    merged,
    observe,
    percentiles_ms,
    upper_ms,
)

DURATIONS = st.floats(0.0, 1e9)


def sums_of(requests: list[tuple[str, str, float]]) -> Sums:
    """Of requests by tenant, lane and TTFT."""
    found = Sums(samples=1, kv_used=0.5)
    for tenant, lane, ms in requests:
        one = found.lane(lane)
        one.requests += 1
        one.oldest_wait_ms = max(one.oldest_wait_ms, ms)
        observe(one.ttft, ms)
        found.tenant(tenant).requests += 1
        found.refusals["overloaded"] = found.refusals.get("overloaded", 0) + 1
    return found


STRETCHES = st.lists(
    st.lists(
        st.tuples(st.sampled_from([f"t{n}" for n in range(40)]), st.sampled_from(["latency", "throughput"]), DURATIONS)
    ),
    max_size=6,
)


@given(STRETCHES, st.integers(0, 6))
def test_sums_of_sums_are_the_sums_of_all(stretches: list[list[tuple[str, str, float]]], cut: int) -> None:
    parts = [sums_of(each) for each in stretches]
    at_once, by_halves = merged(parts), merged([merged(parts[:cut]), merged(parts[cut:])])

    assert (at_once.samples, at_once.kv_used, at_once.lanes) == (by_halves.samples, by_halves.kv_used, by_halves.lanes)
    assert at_once.refusals == by_halves.refusals
    told = [sum(one.requests for one in whole.tenants.values()) for whole in (at_once, by_halves)]
    assert told == [sum(map(len, stretches))] * 2
    assert len(at_once.tenants) <= MOST_TENANTS + 1


@given(STRETCHES)
def test_merging_leaves_its_parts_as_they_were(stretches: list[list[tuple[str, str, float]]]) -> None:
    parts = [sums_of(each) for each in stretches]
    before = msgspec.msgpack.encode(parts)
    merged(parts)

    assert msgspec.msgpack.encode(parts) == before


@given(st.lists(st.floats(1.0, 1e8), min_size=1), st.floats(0.01, 1.0))
def test_a_percentile_is_at_most_a_bucket_off(durations: list[float], share: float) -> None:
    buckets: dict[int, int] = {}
    for ms in durations:
        observe(buckets, ms)
    [found] = percentiles_ms(buckets, [share])
    true_ms = sorted(durations)[max(0, math.ceil(share * len(durations) - 1e-9) - 1)]

    assert true_ms / 2**0.25 * 0.999 <= found <= true_ms * 2**0.25 * 1.001


@given(DURATIONS)
def test_a_bucket_holds_what_is_not_above_its_bound(ms: float) -> None:
    buckets: dict[int, int] = {}
    observe(buckets, ms)

    [number] = buckets
    assert 0 <= number <= LAST_BUCKET
    assert number == LAST_BUCKET or ms <= upper_ms(number) * (1 + 1e-9)
    assert number == 0 or ms > upper_ms(number - 1) * (1 - 1e-9)


def test_the_busiest_tenants_keep_their_names() -> None:
    whole = merged([sums_of([(f"t{n:02}", "latency", 1.0) for n in range(40) for _ in range(n + 1)])])

    named = Counter({name: one.requests for name, one in whole.tenants.items() if name})
    assert set(named) == {f"t{n:02}" for n in range(40 - MOST_TENANTS, 40)}
    assert whole.tenants[""].requests == sum(range(1, 40 - MOST_TENANTS + 1))
