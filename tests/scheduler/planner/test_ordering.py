"""Weighted virtual token counters: lift, charge, window, the bound that follows; class, urgency, dues."""

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlane.scheduler.planner.ordering import BEHIND, LEAD, PLENTY, SHORT_FIRST, Counters, first_due_ms, prospects
from fairlane.scheduler.planner.sequence_group import open_group
from fairlane.scheduler.protocol.lanes import LATENCY
from fairlane.scheduler.protocol.messages import Lease
from fairlane.scheduler.queue.types import due_after_ms
from tests.support.scheduler.queues import job


def charged(window: float = 100.0, **values: float) -> Counters:
    counters = Counters(window)
    for tenant, value in values.items():
        counters.charge(tenant, value, 1.0)
    return counters


def test_a_tenant_never_seen_has_had_nothing() -> None:
    assert Counters(100.0).value("a") == 0.0


def test_charging_divides_by_weight() -> None:
    counters = Counters(100.0)

    assert counters.charge("heavy", 90.0, 3.0) == 30.0
    assert counters.charge("light", 90.0, 1.0) == 90.0


def test_a_refund_takes_a_charge_back() -> None:
    counters = charged(a=90.0)

    assert counters.charge("a", -40.0, 1.0) == 50.0


def test_the_floor_is_the_smallest_backlogged_counter() -> None:
    counters = charged(a=50.0, b=30.0, idle=10.0)

    assert counters.floor(["a", "b"]) == 30.0


def test_a_newcomer_starts_right_behind_the_floor() -> None:
    counters = charged(a=50.0, b=30.0)

    assert counters.lift("new", ["a", "b"]) == 30.0 + BEHIND
    assert counters.value("new") == 30.0 + BEHIND


def test_debt_is_kept() -> None:
    counters = charged(a=50.0, debtor=80.0)

    assert counters.lift("debtor", ["a"]) == 80.0


def test_a_tenant_is_not_lifted_to_itself() -> None:
    counters = charged(a=50.0, b=10.0)

    assert counters.lift("b", ["a", "b"]) == 50.0 + BEHIND


def test_where_nobody_is_backlogged_all_start_level() -> None:
    counters = charged(a=50.0, b=10.0)

    assert counters.lift("b", []) == 50.0
    assert counters.lift("new", []) == 50.0


@given(
    charges=st.lists(st.tuples(st.integers(0, 3), st.floats(0.1, 50.0)), min_size=10, max_size=200),
    window=st.sampled_from([0.0, 100.0, 1_000.0]),
    weights=st.tuples(*[st.floats(0.5, 4.0)] * 4),
)
@settings(max_examples=60, deadline=None)
def test_backlogged_tenants_stay_within_the_window_and_one_charge(
    charges: list[tuple[int, float]], window: float, weights: tuple[float, ...]
) -> None:
    """Whoever of the eligible is served, by how much in one go: the spread is at most the window and that."""
    counters, tenants = Counters(window), [f"t{index}" for index in range(4)]
    largest = max(tokens for _, tokens in charges) / min(weights)
    for choice, tokens in charges:
        limit = counters.floor(tenants) + window
        eligible = [index for index, tenant in enumerate(tenants) if counters.value(tenant) <= limit]
        index = eligible[choice % len(eligible)]
        counters.charge(tenants[index], tokens, weights[index])

        values = [counters.value(tenant) for tenant in tenants]
        assert max(values) - min(values) <= window + largest + 1e-6


@given(
    steps=st.lists(st.tuples(st.sampled_from("abcd"), st.booleans(), st.floats(0.0, 90.0)), max_size=100),
)
@settings(max_examples=60, deadline=None)
def test_coming_and_going_never_puts_anyone_below_those_who_wait(steps: list[tuple[str, bool, float]]) -> None:
    """Idleness saves no credit: whoever becomes backlogged starts at least where the least served of the others is."""
    counters, backlogged = Counters(100.0), set[str]()
    for tenant, leaves, tokens in steps:
        if tenant not in backlogged:
            others = [counters.value(other) for other in backlogged]
            before = counters.value(tenant)
            lifted = counters.lift(tenant, backlogged)
            backlogged.add(tenant)
            assert lifted >= max([before, *([min(others)] if others else [])])
        counters.charge(tenant, tokens, 1.0)
        if leaves:
            backlogged.discard(tenant)


LONG_WAIT_MS = 30_000.0


def test_a_deadline_far_off_does_not_order() -> None:
    assert prospects(PLENTY * 10.0 + 1.0, 10.0, 0.0, 0.0, LONG_WAIT_MS) == (False, math.inf)


@pytest.mark.parametrize("slack_ms", [0.0, PLENTY * 10.0])
def test_what_can_be_in_time_is_ordered_by_slack_and_length(slack_ms: float) -> None:
    assert prospects(slack_ms, 10.0, 0.0, 0.0, LONG_WAIT_MS) == (False, slack_ms + SHORT_FIRST * 10.0)


def test_a_tenant_that_is_ahead_counts_as_due_later() -> None:
    assert prospects(100.0, 10.0, 40.0, 0.0, LONG_WAIT_MS) == (False, 100.0 + SHORT_FIRST * 10.0 + LEAD * 40.0)


def test_what_is_too_late_is_relegated_and_ordered_by_counters_alone() -> None:
    assert prospects(-1.0, 10.0, 0.0, LONG_WAIT_MS - 1.0, LONG_WAIT_MS) == (True, math.inf)


def test_what_is_guaranteed_is_never_relegated() -> None:
    expected = (False, SHORT_FIRST * 10.0 - 1.0)
    assert prospects(-1.0, 10.0, 0.0, 0.0, LONG_WAIT_MS, guaranteed=True) == expected


@pytest.mark.parametrize("slack_ms", [-1.0, 400.0])
def test_what_has_waited_long_is_ordered_by_age(slack_ms: float) -> None:
    assert prospects(slack_ms, 10.0, 0.0, LONG_WAIT_MS, LONG_WAIT_MS) == (False, -LONG_WAIT_MS)


@pytest.mark.parametrize("slack_ms", [-1e6, 0.0, 1e6])
def test_without_known_times_the_deadline_alone_orders(slack_ms: float) -> None:
    assert prospects(slack_ms, 0.0, 0.0, 0.0, LONG_WAIT_MS) == (False, slack_ms)


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
