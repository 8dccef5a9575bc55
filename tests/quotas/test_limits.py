"""The limits as operators write them, and the arithmetic that decides a request."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlane.quotas.field_checks import FieldError
from fairlane.quotas.limits import (
    LARGEST,
    LIMIT_NAMES,
    RULES,
    Demand,
    Level,
    Limits,
    Prices,
    most_severe,
    refusals,
    statuses,
)
from fairlane.quotas.sizing import sized
from fairlane.quotas.windows import FixedWindow, Minute, Totals

NOW_MS = 1_000_000


def level(
    limits: Limits, *, used: int = 0, held: int = 0, live: int = 0, shadow: frozenset[str] = frozenset()
) -> Level:
    """A level whose day has used and reserved so much."""
    return Level(
        scope="tenant",
        limits=limits,
        shadow=shadow,
        windows={
            "minute": Minute().at(NOW_MS),
            "day": FixedWindow(Totals(input=used), NOW_MS + 5_000),
            "month": FixedWindow(Totals(input=used), NOW_MS + 9_000),
            "live": FixedWindow(Totals(requests=live), None),
        },
        held=Totals(output=held),
    )


def test_the_names_are_those_of_the_contract() -> None:
    assert LIMIT_NAMES == (
        "requests_per_minute",
        "tokens_per_minute",
        "input_tokens_per_minute",
        "output_tokens_per_minute",
        "tokens_per_day",
        "tokens_per_month",
        "concurrent_requests",
        "queued_requests",
        "max_prompt_tokens",
        "max_output_tokens",
        "spend_per_day",
        "spend_per_month",
        "enqueued_batch_tokens",
    )


def test_an_empty_object_sets_no_limit() -> None:
    assert Limits.parse({}) == Limits()
    assert Limits.parse({}).as_dict() == {}


def test_null_means_no_limit_and_zero_means_none_at_all() -> None:
    limits = Limits.parse({"tokens_per_day": None, "tokens_per_month": 0})

    assert limits.as_dict() == {"tokens_per_month": 0}


@pytest.mark.parametrize("figure", [-1, 1.5, 10.0, "10", True, LARGEST + 1, 1e309, float("nan"), [], {}])
def test_a_figure_that_no_limit_can_have_is_refused_by_name(figure: object) -> None:
    with pytest.raises(FieldError, match=r"^limits\.tokens_per_day: must be a whole number") as caught:
        Limits.parse({"tokens_per_minute": 1, "tokens_per_day": figure})

    assert caught.value.field == "limits.tokens_per_day"


@pytest.mark.parametrize("name", ["tokens_per_hour", "", "requests_per_minute ", "x" * 1000, 3])
def test_an_unknown_limit_is_refused_by_name(name: object) -> None:
    with pytest.raises(FieldError, match="no such limit") as caught:
        Limits.parse({name: 1})

    assert len(caught.value.field) < 100


@pytest.mark.parametrize(
    ("name", "named"), [("tokens_per_min", "tokens_per_minute or "), ("x", f"{' or '.join(LIMIT_NAMES)}")]
)
def test_an_unknown_limit_is_refused_with_the_closest_names_or_all(name: str, named: str) -> None:
    with pytest.raises(FieldError, match=re.escape(f"limits.{name}: no such limit: use {named}")):
        Limits.parse({name: 5})


@pytest.mark.parametrize("document", [None, [], "tokens_per_day", 7])
def test_limits_that_are_no_object_are_refused(document: object) -> None:
    with pytest.raises(FieldError, match="must be an object"):
        Limits.parse(document)


def test_merging_changes_only_what_is_stated() -> None:
    before = Limits(tokens_per_day=5, concurrent_requests=2, requests_per_minute=9)

    after = before.merged({"tokens_per_day": None, "concurrent_requests": 3})

    assert after == Limits(concurrent_requests=3, requests_per_minute=9)
    assert before.tokens_per_day == 5


@given(st.dictionaries(st.sampled_from(LIMIT_NAMES), st.integers(0, LARGEST)))
def test_what_is_parsed_is_what_is_shown(document: dict[str, int]) -> None:
    assert Limits.parse(document).as_dict() == document


def test_remaining_is_never_negative() -> None:
    (status,) = statuses([level(Limits(tokens_per_day=10), used=50)], NOW_MS)

    assert (status.used, status.remaining) == (50, 0)


def test_a_request_that_fits_exactly_is_let_in() -> None:
    full = level(Limits(tokens_per_day=100), used=30, held=40)

    assert refusals([full], Demand(10, 20, 20, 1), NOW_MS) == []
    assert len(refusals([full], Demand(11, 20, 20, 1), NOW_MS)) == 1


def test_of_several_refusals_the_one_that_can_never_fit_is_told() -> None:
    found = refusals([level(Limits(tokens_per_day=40, tokens_per_month=29), used=20)], Demand(10, 20, 20, 1), NOW_MS)

    refusal = most_severe(found)

    assert refusal is not None
    assert (refusal.status.name, refusal.kind, refusal.retry_after_s) == ("tokens_per_month", "exceeds", None)


def test_of_several_refusals_the_longest_wait_is_told() -> None:
    both = Limits(tokens_per_day=40, tokens_per_month=40, concurrent_requests=1)

    refusal = most_severe(refusals([level(both, used=20, live=1)], Demand(10, 20, 20, 1), NOW_MS))

    assert refusal is not None
    assert (refusal.status.name, refusal.retry_after_s) == ("tokens_per_month", 9)


def test_a_refusal_in_shadow_is_found_but_not_told() -> None:
    found = refusals(
        [level(Limits(tokens_per_day=1), shadow=frozenset({"tokens_per_day"}))], Demand(1, 1, 1, 1), NOW_MS
    )

    assert [refusal.status.shadow for refusal in found] == [True]
    assert most_severe(found) is None


def test_a_request_is_not_refused_by_a_limit_that_counts_nothing_of_it() -> None:
    overdrawn = Level(
        scope="key",
        limits=Limits(input_tokens_per_minute=5),
        shadow=frozenset(),
        windows={"minute": FixedWindow(Totals(input=100), NOW_MS)},
        held=Totals(),
    )

    assert refusals([overdrawn], Demand(0, 20, 20, 1), NOW_MS) == []


@given(
    figure=st.integers(0, 200),
    used=st.integers(0, 200),
    prompt=st.integers(0, 50),
    choice=st.integers(1, 100),
    n=st.integers(1, 4),
)
def test_cutting_gives_as_much_as_fits_and_never_more(figure: int, used: int, prompt: int, choice: int, n: int) -> None:
    levels = [level(Limits(tokens_per_day=figure), used=used)]

    cut = sized(levels, Demand(prompt, choice, choice, n, stated=False), None)

    assert 1 <= cut.choice <= choice
    fits = not refusals(levels, cut, NOW_MS)
    assert fits == (used + prompt + n <= figure)
    if fits and cut.choice < choice:
        assert refusals(levels, Demand(prompt, cut.choice + 1, cut.choice + 1, n), NOW_MS)


def test_every_rule_counts_something_but_the_queues() -> None:
    one = Demand(3, 5, 5, 2, longest=2, prices=Prices(input=7, cached=1, output=2))

    assert {rule.name: one.amount(rule) for rule in RULES} == {
        "requests_per_minute": 1,
        "tokens_per_minute": 13,
        "input_tokens_per_minute": 3,
        "output_tokens_per_minute": 10,
        "tokens_per_day": 13,
        "tokens_per_month": 13,
        "concurrent_requests": 1,
        "queued_requests": 0,
        "max_prompt_tokens": 2,
        "max_output_tokens": 5,
        "spend_per_day": 3 * 7 + 10 * 2,
        "spend_per_month": 3 * 7 + 10 * 2,
    }
