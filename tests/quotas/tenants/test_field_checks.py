"""The checks of operators' fields."""

import pytest

from fairlane.quotas import field_checks as fields
from fairlane.quotas.field_checks import FieldError


def test_an_unknown_field_is_named_with_where_it_stands() -> None:
    with pytest.raises(FieldError, match=r"^scopes\.colour: no such field$"):
        fields.document({"colour": 1}, "scopes", ("models",))
    with pytest.raises(FieldError, match=r"^colour: no such field$"):
        fields.document({"colour": 1}, "", ("models",))


def test_a_very_long_unknown_name_is_cut() -> None:
    with pytest.raises(FieldError) as caught:
        fields.document({"x" * 10_000: 1}, "", ())

    assert len(str(caught.value)) < 100


@pytest.mark.parametrize("value", [None, [], "x", 1])
def test_what_is_no_object_is_refused(value: object) -> None:
    with pytest.raises(FieldError, match=r"^body: must be an object$"):
        fields.document(value, "", ())


@pytest.mark.parametrize("value", [0, 1, 2.5, 10])
def test_numbers_within_the_range_pass(value: float) -> None:
    assert fields.number(value, "n", 0, 10) == value


@pytest.mark.parametrize("value", [-0.001, 10.001, float("inf"), float("-inf"), float("nan"), True, "5", None, 10**400])
def test_numbers_out_of_range_are_refused(value: object) -> None:
    with pytest.raises(FieldError, match="must be a number from 0 to 10"):
        fields.number(value, "n", 0, 10)


@pytest.mark.parametrize("value", ["a" * 201, "a\x00b", "tab\t", "\ud800", 5, None, b"x"])
def test_text_that_is_long_unprintable_or_none_is_refused(value: object) -> None:
    with pytest.raises(FieldError, match="printable"):
        fields.text(value, "name")


def test_lists_lose_repetitions_and_keep_their_order() -> None:
    assert fields.texts(["b", "a", "b"], "models") == ("b", "a")


def test_a_list_without_end_is_refused() -> None:
    with pytest.raises(FieldError, match="at most 1000"):
        fields.texts(["x"] * 1001, "models")


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (1_800_000_000, 1_800_000_000),
        (1.5, 1.5),
        ("2027-01-31T00:00:00Z", 1_801_353_600),
        ("2027-01-31T02:00:00+02:00", 1_801_353_600),
    ],
)
def test_moments_are_seconds_or_iso_times_with_a_zone(value: object, seconds: float) -> None:
    assert fields.moment(value, "expires_at") == seconds


@pytest.mark.parametrize("value", ["2027-01-31", "2027-01-31T00:00:00", "soon", "", -1, 0, 1e12, True, None, []])
def test_other_moments_are_refused(value: object) -> None:
    with pytest.raises(FieldError, match="seconds since 1970"):
        fields.moment(value, "expires_at")
