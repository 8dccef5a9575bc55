"""Large bodies: read as small ones are, in steps, and bounded in what they may hold."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlane.gateway.dialects.openai.reading import Reading
from fairlane.gateway.dialects.openai.requests import parse_completion
from fairlane.gateway.errors import ApiError
from fairlane.gateway.http.json_reader import LARGE_BODY_BYTES, read_object
from fairlane.gateway.http.lifted import MAX_TOKEN_ID, PIECE_BYTES, Lifted, NoTokenIds

PADDING = {"padding": "x" * LARGE_BODY_BYTES}
MANY = 10_000_000


def large(fields: str, ids: int = MANY) -> dict[str, Any]:
    """A large body with these fields, as it is read."""
    return read_object(f"{{{fields}, {json.dumps(PADDING)[1:-1]}}}".encode(), token_ids=ids)


def listed(value: Any) -> Any:
    """With lists for tuples of ids, as a parser has them."""
    if isinstance(value, dict):
        return {name: listed(inner) for name, inner in value.items()}
    return [listed(inner) for inner in value] if isinstance(value, list | tuple) else value


def is_read(read: Any, written: Any) -> bool:
    """Whether this is what was written; in the place of a long list that is none of ids there may be a mark of that."""
    match read:
        case NoTokenIds():
            return isinstance(written, list) and not all(
                type(each) is int and 0 <= each < MAX_TOKEN_ID for each in written
            )
        case dict():
            return read.keys() == written.keys() and all(is_read(read[name], written[name]) for name in read)
        case list() | tuple():
            return len(read) == len(written) and all(map(is_read, read, written))
        case _:
            return bool(read == written)


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
ids = st.integers(0, MAX_TOKEN_ID - 1)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXTS | st.lists(ids, min_size=40),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=12,
)


@given(value=values, ascii_only=st.booleans(), indent=st.sampled_from([None, 1]))
@settings(max_examples=60, deadline=None)
def test_a_large_body_is_read_as_a_parser_reads_it(value: object, ascii_only: bool, indent: int | None) -> None:
    fields = {**PADDING, "value": value, "after": 'a "[1,2]" \\'}
    body = json.dumps(fields, ensure_ascii=ascii_only, indent=indent).encode("utf-8")

    assert is_read(read_object(body, token_ids=MANY), fields)


@pytest.mark.parametrize("count", [20, 40, PIECE_BYTES, 3 * PIECE_BYTES])
def test_a_list_of_any_length_is_read_whole(count: int) -> None:
    numbers = list(range(count))

    assert listed(large(f'"a": {numbers}, "b": [{numbers}, {numbers}]')) == {
        "a": numbers,
        "b": [numbers, numbers],
        **PADDING,
    }


@pytest.mark.parametrize("wrong", ["-1", "1.5", "null", str(MAX_TOKEN_ID), "7" * 4_000, '"a"', "[]", "{}", "", "1 2"])
@pytest.mark.parametrize("before", [40, PIECE_BYTES])
def test_a_long_list_of_anything_else_is_a_prompt_of_nobody(wrong: str, before: int) -> None:
    numbers = ",".join(["1"] * before)
    body = f'{{"model": "tiny", "user": "{"x" * LARGE_BODY_BYTES}", "prompt": [{numbers},{wrong},{numbers}]}}'

    with pytest.raises(ApiError) as refused:
        parse_completion(body.encode(), Reading(MANY))

    assert refused.value.status == 400 or before == PIECE_BYTES
    assert refused.value.status in (400, 413)
    assert refused.value.param in ("prompt", "user", None)


@pytest.mark.parametrize("field", ["stop", "messages", "tools", "temperature", "nonsense", "model"])
def test_no_other_field_takes_a_list_of_ids(field: str) -> None:
    numbers = ",".join(["1"] * LARGE_BODY_BYTES)
    required = "" if field == "model" else '"model": "tiny", '

    with pytest.raises(ApiError) as refused:
        parse_completion(
            f'{{{required}"prompt": "a", "{field}": [{numbers}]}}'.encode(), Reading(MANY, refuses_unknown=True)
        )

    assert refused.value.param == field


def test_nobodys_number_is_taken_for_a_list() -> None:
    lifted = Lifted(json.dumps({"a": list(range(100))}).encode(), MANY)
    [mark] = lifted.values

    read = large(f'"a": {list(range(100))}, "b": {mark}')

    assert read["b"] == int(mark)
    assert not isinstance(next(iter(lifted.values.values())), NoTokenIds)


@pytest.mark.parametrize(
    "body",
    [
        b'{"prompt": [' + b"1," * 200_001 + b"1]}",
        b'{"prompt": [[' + b"1," * 100_000 + b"1], [" + b"1," * 100_000 + b"1]]}",
        b'{"prompt": [[],' + b"1," * 200_000 + b"1]}",
        b'{"prompt": ' + b" " * 3_000_000 + b"1}",
        b'{"n": ' + b"7" * 3_000_000 + b"}",
        b'{"prompt": ' + b"[" * 60_000,
        b'{"prompt": ' + b"{" * 60_000,
        b'{"prompt": [' + b"[1]," * 60_000 + b"[1]]}",
    ],
)
def test_more_than_a_body_may_hold_is_refused_unparsed(body: bytes) -> None:
    with pytest.raises(ApiError) as refused:
        read_object(body, token_ids=200_000)

    assert refused.value.code == "request_too_large"


@pytest.mark.parametrize("number", ["7" * 101, "-" + "7" * 4_000, "0." + "3" * 200])
def test_a_number_of_very_many_digits_is_read_as_infinity(number: str) -> None:
    assert abs(large(f'"n": {number}')["n"]) == float("inf")


def test_very_many_fields_are_refused_before_each_is_looked_at() -> None:
    body = json.dumps({f"key-{number}": 1 for number in range(1_001)}).encode()

    with pytest.raises(ApiError, match="more than 1000 fields"):
        read_object(body)


def test_where_the_json_breaks_is_told_as_the_caller_counts() -> None:
    body = f'{{"a": {list(range(10_000))}, "b": }}'

    with pytest.raises(ApiError) as refused:
        read_object(body.encode(), token_ids=MANY)

    assert refused.value.param == "b"
    assert f"at character {len(body) - 1}." in refused.value.message
