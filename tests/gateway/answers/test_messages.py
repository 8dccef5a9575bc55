"""Anthropic's messages, whole and in events, checked by its SDK's own types."""

import itertools
import json
from collections.abc import Sequence
from typing import Any, cast

import pytest
from anthropic.types import Message, RawMessageStreamEvent
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from fairlane.gateway.answers.chunks import KeepAlive, TextChunk
from fairlane.gateway.answers.messages import SIGNATURE, MessagesAnswer
from fairlane.gateway.dialects.anthropic.requests import Display, MessagesRequest
from fairlane.gateway.dialects.openai.tools import Tool
from fairlane.gateway.fleet import ServedModel
from fairlane.gateway.http.sse import EventStream
from fairlane.gateway.model_text.tokenizer import TextModel
from fairlane.gateway.request.live_request import LiveJob
from fairlane.scheduler.protocol.messages import FinishReason
from tests.support.gateway.cards import byte_level_card
from tests.support.gateway.one_request import job
from tests.support.gateway.read_outputs import TOOLS
from tests.support.gateway.tool_models import tool_card

PLAIN = TextModel(byte_level_card())
QWEN = TextModel(tool_card("Qwen 3"))
CALLS = (
    '<think>\nWell.\n</think>\n\nI look.\n<tool_call>\n{"name": "weather", "arguments": {"city": "Köln"}}\n</tool_call>'
    '\n<tool_call>\n{"name": "time", "arguments": {}}\n</tool_call>'
)
EVENT: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)


class Out:
    """A client that takes all at once."""

    def __init__(self) -> None:
        self.started = True
        self.frames = b""

    def put(self, frames: bytes) -> bool:
        self.frames += frames
        return True


def generated() -> LiveJob:
    """Five tokens, of a prompt of ten, three of which a cache held."""
    done = job("1")
    done.cached_tokens, done.choices[0].published = 3, 5
    return done


def built(
    model: TextModel, of: LiveJob, out: Out | None, thinking: Display, tools: Sequence[Tool] = TOOLS, **asked: Any
) -> MessagesAnswer:
    served = ServedModel("tiny", "tiny@0", model, (), {})
    request = MessagesRequest(model="tiny", messages=(), tools=tuple(tools), thinking=thinking, **asked)
    return MessagesAnswer(request, served, "default", [of], cast(EventStream | None, out))


def pieces(text: str, cuts: Sequence[int], finish: FinishReason, stopped_by: str | None) -> list[TextChunk]:
    places = [0, *sorted(cuts), len(text)]
    chunks = [TextChunk(0, text[start:end], (), (), None) for start, end in itertools.pairwise(places)]
    return [*chunks, TextChunk(0, "", (), (), finish, stopped_by)]


def whole(
    text: str,
    *,
    model: TextModel = QWEN,
    thinking: Display = "shown",
    finish: FinishReason = "stop",
    stopped_by: str | None = None,
    of: LiveJob | None = None,
    **asked: Any,
) -> dict[str, Any]:
    answer = built(model, of or generated(), None, thinking, **asked)
    assert answer.feed(pieces(text, (), finish, stopped_by))
    told = answer.whole()
    Message.model_validate(told, strict=True)
    return told


def events(
    text: str,
    *,
    cuts: Sequence[int] = (),
    model: TextModel = QWEN,
    thinking: Display = "shown",
    finish: FinishReason = "stop",
    stopped_by: str | None = None,
    of: LiveJob | None = None,
    **asked: Any,
) -> list[dict[str, Any]]:
    out = Out()
    answer = built(model, of or generated(), out, thinking, **asked)
    for chunk in pieces(text, cuts, finish, stopped_by):
        assert answer.feed([chunk])
    return read(out.frames + answer.ending())


def read(frames: bytes) -> list[dict[str, Any]]:
    """The events, whose names are their types."""
    found = []
    for frame in frames.decode().removesuffix("\n\n").split("\n\n"):
        name, data = frame.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
        if found[-1]["type"] != "ping":
            EVENT.validate_python(found[-1])
    return found


def put_together(told: list[dict[str, Any]]) -> dict[str, Any]:
    """The message that a client makes of a stream: one block at a time, numbered from zero."""
    first, *middle, end, last = [event for event in told if event["type"] != "ping"]
    assert (first["type"], end["type"], last["type"]) == ("message_start", "message_delta", "message_stop")
    message, texts = first["message"], []
    opened: int | None = None
    for event in middle:
        if event["type"] == "content_block_start":
            assert opened is None
            opened = event["index"]
            assert opened == len(message["content"])
            message["content"].append(event["content_block"])
            texts.append("")
        elif event["type"] == "content_block_stop":
            assert event["index"] == opened
            opened = None
        else:
            assert event["index"] == opened
            delta = dict(event["delta"])
            kind = delta.pop("type")
            [(field, text)] = delta.items()
            if kind == "input_json_delta":
                texts[-1] += text
            else:
                message["content"][-1][field] += text
    assert opened is None
    for block, text in zip(message["content"], texts, strict=True):
        if text:
            block["input"] = json.loads(text)
    del end["type"]
    return {**message, **end.pop("delta"), **end}


def without_ids(message: dict[str, Any]) -> dict[str, Any]:
    for block in message["content"]:
        if block["type"] == "tool_use":
            assert block.pop("id").startswith("toolu_")
        if "text" in block:
            block["text"] = block["text"].strip()
    return message


def test_a_message_has_thinking_text_and_calls() -> None:
    told = whole(CALLS)

    assert [block["type"] for block in told["content"]] == ["thinking", "text", "tool_use", "tool_use"]
    assert told["content"][0]["signature"] == SIGNATURE
    assert [call["input"] for call in told["content"][2:]] == [{"city": "Köln"}, {}]
    assert told["stop_reason"] == "tool_use"
    assert told["usage"] == {
        "input_tokens": 7,
        "cache_read_input_tokens": 3,
        "cache_creation_input_tokens": 0,
        "output_tokens": 5,
        "service_tier": "standard",
    }


@settings(deadline=None)
@given(st.lists(st.integers(0, len(CALLS)), max_size=8), st.sampled_from(["hidden", "omitted", "shown"]))
def test_a_stream_comes_to_the_same_message_however_it_is_cut(cuts: list[int], thinking: Display) -> None:
    told = put_together(events(CALLS, cuts=cuts, thinking=thinking))

    assert without_ids(told) == without_ids(whole(CALLS, thinking=thinking))


@pytest.mark.parametrize("cut", range(1, 100))
def test_text_after_a_call_leaves_the_call_whole_however_it_is_cut(cut: int) -> None:
    text = '<tool_call>\n{"name": "weather", "arguments": {"city": "Köln"}}\n</tool_call>\nDone.'

    told = put_together(events(text, cuts=[min(cut, len(text))]))

    [call] = [block for block in told["content"] if block["type"] == "tool_use"]
    assert (call["name"], call["input"]) == ("weather", {"city": "Köln"})
    assert "".join(block["text"] for block in told["content"] if block["type"] == "text") == "Done."


@settings(deadline=None)
@given(st.text(max_size=40), st.lists(st.integers(0, 40), max_size=4))
def test_text_is_told_as_it_is(text: str, cuts: list[int]) -> None:
    told = put_together(events(text, cuts=[min(cut, len(text)) for cut in cuts], model=PLAIN, tools=()))

    assert told == whole(text, model=PLAIN, tools=())
    assert "".join(block["text"] for block in told["content"]) == text


def test_thinking_that_is_not_shown_keeps_the_connection_alive() -> None:
    hidden = events(CALLS, cuts=range(1, 20), thinking="hidden")
    omitted = events(CALLS, cuts=range(1, 20), thinking="omitted")

    for told in (hidden, omitted):
        assert [event["type"] for event in told].count("ping") > 1
        assert "Well" not in json.dumps(told)
    assert put_together(hidden)["content"][0]["type"] == "text"
    assert put_together(omitted)["content"][0] == {"type": "thinking", "thinking": "", "signature": SIGNATURE}


@pytest.mark.parametrize(
    ("ended", "reason", "sequence"),
    [
        ({}, "end_turn", None),
        ({"stopped_by": "END"}, "stop_sequence", "END"),
        ({"finish": "length", "max_tokens": 5}, "max_tokens", None),
        ({"finish": "length"}, "model_context_window_exceeded", None),
    ],
)
def test_the_reason_of_an_end_is_one_of_anthropics(ended: dict[str, Any], reason: str, sequence: str | None) -> None:
    for told in (whole("Hi.", **ended), put_together(events("Hi.", **ended))):
        assert (told["stop_reason"], told["stop_sequence"]) == (reason, sequence)


def test_a_call_that_a_stop_string_cut_is_no_call_to_answer() -> None:
    assert whole(CALLS, stopped_by="Köln")["stop_reason"] == "stop_sequence"


def test_a_limit_that_cut_it_short_is_named() -> None:
    for tell in (whole, lambda text, **given: put_together(events(text, **given))):
        cut = generated()
        cut.limited_by = "tokens_per_day"
        told = tell("Hi.", finish="length", of=cut)
        assert (told["stop_reason"], told["fairlane"]) == ("max_tokens", {"limited_by": "tokens_per_day"})


def test_nothing_said_is_a_message_without_blocks() -> None:
    assert whole("")["content"] == []
    assert put_together(events(""))["content"] == []


def test_an_error_is_an_event_of_its_own() -> None:
    answer = built(PLAIN, generated(), None, "shown")
    assert answer.fault({"type": "error"}) == b'event: error\ndata: {"type":"error"}\n\n'


def test_a_pulse_is_a_line_break() -> None:
    out = Out()
    assert built(PLAIN, generated(), out, "hidden").feed([KeepAlive()])

    assert out.frames == b"\n"
