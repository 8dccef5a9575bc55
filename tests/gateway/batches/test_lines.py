"""Lines of a file: found however it comes, bounded, and read for what is wrong with them."""

import json
import tracemalloc

import hypothesis.strategies as st
import pytest
from hypothesis import given

from fairlane.gateway.batches.lines import (
    DUPLICATE,
    MAX_LINE_BYTES,
    MAX_LINES,
    TOO_LONG,
    LineIndex,
    LineScanner,
    read_line,
)
from tests.support.gateway.batch_files import line
from tests.support.gateway.served import COMPLETIONS


def scanned(content: bytes, part: int = 2**16) -> LineIndex:
    """The lines of a file that comes in such parts."""
    scanner = LineScanner()
    for start in range(0, len(content), part):
        scanner.feed(content[start : start + part])
    return scanner.finish()


def raw(content: bytes, index: LineIndex) -> list[bytes]:
    """What stands where the index says."""
    return [content[entry.start : entry.start + entry.length] for entry in index]


@given(
    kept=st.lists(st.sampled_from([b"{}", b"", b"  ", b"not json", b'{"a": "\xc3\xa9"}', b"\r"]), max_size=12),
    end=st.sampled_from([b"\n", b"\r\n"]),
    is_ended=st.booleans(),
    bom=st.sampled_from([b"", b"\xef\xbb\xbf"]),
    part=st.integers(1, 40),
)
def test_lines_are_where_the_index_says(
    kept: list[bytes], end: bytes, *, is_ended: bool, bom: bytes, part: int
) -> None:
    content = bom + end.join(kept) + (end if is_ended else b"")

    index = scanned(content, part)

    wanted = [(number, each) for number, each in enumerate(kept, 1) if each.strip()]
    assert [entry.number for entry in index] == [number for number, _ in wanted]
    assert [found.strip() for found in raw(content, index)] == [each.strip() for _, each in wanted]


def test_a_duplicate_is_the_later_one() -> None:
    content = b"\n".join([line("a"), line("b"), line("a")])
    assert [entry.flags for entry in scanned(content)] == [0, 0, DUPLICATE]


def test_a_line_that_is_too_long_is_not_kept_and_harms_no_other() -> None:
    content = line("a") + b"\n" + b"x" * (3 * MAX_LINE_BYTES) + b"\n" + line("b")
    index = scanned(content)
    assert [entry.flags for entry in index] == [0, TOO_LONG, 0]
    assert raw(content, index)[2] == line("b")
    refusal = read_line(b"", index[1], COMPLETIONS).refusal
    assert refusal is not None
    assert refusal.code == "request_too_large"


@pytest.mark.thorough
def test_fifty_thousand_lines_take_little_memory() -> None:
    one = line("x" * 12, prompt="word " * 50)
    scanner = LineScanner()
    tracemalloc.start()
    try:
        for number in range(MAX_LINES):
            scanner.feed(one.replace(b"x" * 12, b"%012d" % number) + b"\n")
        index = scanner.finish()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(index) == MAX_LINES
    assert peak < 16 * 2**20


@pytest.mark.parametrize(
    ("asked", "param"),
    [
        (b"[1]", None),
        (b"{", None),
        (b'{"custom_id": "a"', None),
        (b"\xff\xfe{}", None),
        (b"[" * 100_000, None),
        (b'{"method": "POST"}', "custom_id"),
        (line(7), "custom_id"),
        (line(""), "custom_id"),
        (line("x" * 513), "custom_id"),
        (line("a", method="GET"), "method"),
        (line("a", url="/v1/moderations"), "url"),
        (json.dumps({"custom_id": "a", "method": "POST", "url": COMPLETIONS, "body": []}).encode(), "body"),
        (json.dumps({"custom_id": "a", "method": "POST", "url": COMPLETIONS}).encode(), "body"),
    ],
)
def test_what_is_wrong_with_a_line_is_said(asked: bytes, param: str | None) -> None:
    (entry,) = scanned(asked)
    refusal = read_line(asked, entry, COMPLETIONS).refusal
    assert refusal is not None
    assert (refusal.status, refusal.param) == (400, param)


@pytest.mark.parametrize("value", [b'"\xff"', b"9" * 4_000, b"1e999999"])
@pytest.mark.parametrize("field", ["custom_id", "method", "url", "stream"])
def test_a_value_that_cannot_be_decoded_is_refused_with_its_line_alone(field: str, value: bytes) -> None:
    fields = {"custom_id": b'"a"', "method": b'"POST"', "url": f'"{COMPLETIONS}"'.encode(), "body": b'{"prompt": "a"}'}
    fields |= {"body": b'{"stream": %b}' % value} if field == "stream" else {field: value}
    odd = b"{%b}" % b", ".join(b'"%b": %b' % (name.encode(), given) for name, given in fields.items())
    content = b"\n".join([odd, line("b")])

    index = scanned(content)
    lines = [read_line(each, entry, COMPLETIONS) for each, entry in zip(raw(content, index), index, strict=True)]

    assert [entry.number for entry in index] == [1, 2]
    assert lines[1].refusal is None
    if field != "stream":  # of the body that is said when it is read as a whole
        assert lines[0].refusal is not None
        assert lines[0].refusal.param == field


def test_tokens_are_estimated_from_what_a_line_says() -> None:
    content = b"\n".join(
        [line("a", max_tokens=10, n=3), line("b", max_tokens=None), line("c", max_tokens=2**70), line("d", n="x")]
    )
    stated, unstated, absurd, odd = scanned(content)
    assert stated.tokens(1_000) == stated.prompt_tokens + 30
    assert unstated.tokens(1_000) == unstated.prompt_tokens + 1_000
    assert absurd.tokens(1_000) == absurd.prompt_tokens + 1_000
    assert odd.tokens(1_000) == odd.prompt_tokens + 4
    assert 0 < stated.prompt_tokens < len(content)


@given(st.binary(max_size=300))
def test_any_bytes_are_lines_that_can_be_told(content: bytes) -> None:
    for entry in (index := scanned(content, 7)):
        read_line(raw(content, index)[0], entry, COMPLETIONS)
