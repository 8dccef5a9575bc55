"""Class and urgency of fresh work."""

import math

import pytest

from fairlane.scheduler.planner.ordering import LEAD, PLENTY, SHORT_FIRST, prospects

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
