"""Bodies that are no JSON, or more of it than is read: refused by name, whole, and without a trace."""

import gc
import sys
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlane.gateway.dialects.openai.chat_requests import parse_chat
from fairlane.gateway.dialects.openai.reading import Reading
from fairlane.gateway.dialects.openai.requests import parse_completion
from fairlane.gateway.errors import ApiError
from fairlane.gateway.http.json_reader import LARGE_BODY_BYTES, MAX_DEPTH
from fairlane.gateway.http.lifted import MAX_PARTS
from tests.support.gateway.bodies import MESSAGES, TOKEN_IDS, completion, param, refused

BROKEN: dict[str, tuple[bytes, str | None]] = {
    "empty": (b"", None),
    "cut": (b'{"model": "m", "messages": [{"role": "us', "messages"),
    "no JSON": (b"hello", None),
    "a list": (b"[]", None),
    "text": (b'"a"', None),
    "null": (b"null", None),
    "two values": (b"{} {}", None),
    "trailing comma": (b'{"model": "m",}', "model" if sys.version_info >= (3, 13) else None),  # named at the comma
    "bad literal": (b'{"model": "m", "stream": tru}', "stream"),
    "comment": (b'{"model": "m" /* */}', "model"),
    "invalid UTF-8": (b'{"model": "m", "user": "\xff"}', "user"),
    "overlong UTF-8": (b'{"model": "\xc0\x80"}', "model"),
    "UTF-16": ('{"model": "m"}'.encode("utf-16"), None),
    "control character": (b'{"model": "a\nb"}', "model"),
    "doubled field": (b'{"model": "m", "model": "n"}', "model"),
    "doubled inside": (b'{"model": "m", "metadata": {"k": "1", "k": "2"}}', "k"),
    "surrogate in a name": (b'{"\\ud800": 1}', "?"),
    "deep lists": (b'{"model": "m", "tools": ' + b"[" * 40_000, "tools"),
    "deep objects": (b'{"user": "u", "metadata": ' + b'{"a":' * 20_000, "metadata"),
    "deep, behind a lot": (b'{"a": [' + b"[]," * 20_000 + b'0], "b":' + b"[" * 20_000, None),
}


@pytest.mark.parametrize("case", BROKEN)
def test_broken_json_is_told_with_its_field(case: str) -> None:
    body, named = BROKEN[case]

    assert refused(body).param == named


def nested(depth: int, padding: int = 0) -> bytes:
    """A body with so many levels, the body itself and `tools` among them."""
    inner = '{"a":' * (depth - 4) + "1" + "}" * (depth - 4)
    function = f'{{"name": "f", "parameters": {inner}, "description": "{"x" * padding}"}}'
    return f'{{"model": "m", "messages": [], "tools": [{{"type": "function", "function": {function}}}]}}'.encode()


@pytest.mark.parametrize("padding", [0, LARGE_BODY_BYTES])
def test_a_body_may_have_so_many_levels_and_no_more(padding: int) -> None:
    assert refused(nested(MAX_DEPTH, padding)).param == "messages"
    for depth in (MAX_DEPTH + 1, *range(850, 1050, 3)):
        error = refused(nested(depth, padding))
        assert (error.param, "nested too deeply" in error.message) == ("tools", True)


@given(body=st.binary(max_size=200) | st.text(alphabet='{}[]":,\\ud8ae1-."model', max_size=80).map(str.encode))
@settings(max_examples=200)
def test_no_body_breaks_the_parser(body: bytes) -> None:
    for parse in (parse_chat, parse_completion):
        with pytest.raises(ApiError):
            parse(body, Reading(TOKEN_IDS))


@pytest.mark.parametrize("part", ['"k%d\\"": 1', '"[%d": []', '"%d": {}', '"%d": "{\\\\"'])
def test_a_body_of_very_many_parts_is_not_even_parsed(part: str) -> None:
    body = "{" + ",".join(part % number for number in range(MAX_PARTS + 1)) + "}"

    with pytest.raises(ApiError) as caught:
        parse_chat(body.encode())

    assert (caught.value.code, caught.value.status) == ("request_too_large", 413)


@pytest.mark.parametrize("fields", ['"x": 1', '"x": }', '"x": 1, "x": 2', '"stop": [5]', '"n": 1.5'])
def test_nothing_of_a_refused_body_waits_for_the_next_collection(fields: str) -> None:
    body = f'{{"model": "tiny", "prompt": "{"x" * 20_000}", {fields}}}'.encode()
    gc.collect()
    gc.disable()
    try:
        with suppress(ApiError):
            parse_completion(body, Reading(TOKEN_IDS))
        assert gc.collect() == 0
    finally:
        gc.enable()


@pytest.mark.parametrize("text", ['{"[', "\\", '\\"{'])
def test_a_text_may_look_like_very_many_parts(text: str) -> None:
    assert completion(prompt=text * MAX_PARTS).prompts == (text * MAX_PARTS,)


def test_of_very_many_broken_messages_the_first_is_told() -> None:
    assert param(messages=[*MESSAGES, *[1] * 90_000]) == "messages.[1]"
