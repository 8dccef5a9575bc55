"""Frames of an event stream, as a client's parser cuts them."""

import json

import pytest

from fairlane.gateway.http import sse


def test_an_event_is_one_line_of_json() -> None:
    frame = sse.data({"text": "a\nb\r\n\u2028\x85é🙂", "none": None})

    assert frame.startswith(b"data: ")
    assert frame.endswith(b"\n\n")
    assert b"\n" not in frame[:-2]
    assert b"\r" not in frame
    assert json.loads(frame[6:]) == {"text": "a\nb\r\n\u2028\x85é🙂", "none": None}


def test_json_that_is_ready_is_framed_as_it_is() -> None:
    assert sse.data(b'{"a":1}') == b'data: {"a":1}\n\n'


@pytest.mark.parametrize(
    ("text", "frame"),
    [
        ("queued position=4 eta_ms=1200", b": queued position=4 eta_ms=1200\n\n"),
        ("a\n\ndata: forged", b": a data: forged\n\n"),
        ("a\rb\u2028c", b": a b c\n\n"),
    ],
)
def test_a_comment_cannot_become_anything_else(text: str, frame: bytes) -> None:
    assert sse.comment(text) == frame


def test_the_last_frame() -> None:
    assert sse.DONE == b"data: [DONE]\n\n"
