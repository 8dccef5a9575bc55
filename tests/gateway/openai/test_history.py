"""Messages of earlier turns as clients send them back: read, dropped or rendered, and never refused for what is
empty."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlane.gateway.dialects.openai.chat_requests import parse_chat
from fairlane.gateway.dialects.openai.reading import Reading
from fairlane.gateway.dialects.openai.requests import Turn
from fairlane.gateway.dialects.openai.tools import ToolCall
from fairlane.gateway.errors import ApiError
from tests.support.gateway.bodies import CHAT
from tests.support.gateway.families import strict_model
from tests.support.text_model import of_text

EXTRA = {"provider_specific_fields": {"thought_signature": "x"}}
CACHED = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA", "detail": "low"}}
OMITTED = "[image omitted: this model reads text only]"


def text(words: str | None, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": words, **more}


def said(content: Any = None, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **more}


def result(content: Any) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": "1", "content": content}


def called(arguments: str = "", name: str = "look", id: str | None = "1") -> Turn:  # noqa: A002
    return Turn(role="assistant", content=None, tool_calls=(ToolCall(name=name, arguments=arguments, id=id),))


def call(**function: Any) -> dict[str, Any]:
    return {"id": "1", "type": "function", "function": {"name": "look", **function}}


def read(message: dict[str, Any], reading: Reading) -> Turn:
    body = json.dumps({**CHAT, "messages": [*CHAT["messages"], message]}).encode()
    [_, turn] = of_text(parse_chat(body, reading), reading).messages
    return turn


A_TURN = Turn(role="assistant", content="a")
THOUGHT = Turn(role="assistant", content="a", reasoning="hm")
CASES: dict[str, tuple[dict[str, Any], Turn]] = {
    "null of a user": ({"role": "user", "content": None}, Turn(role="user", content="")),
    "no parts of a user": ({"role": "user", "content": []}, Turn(role="user", content="")),
    "null of a system": ({"role": "system", "content": None}, Turn(role="system", content="")),
    "null of an assistant": (said(), Turn(role="assistant", content="")),
    "nothing of an assistant": ({"role": "assistant"}, Turn(role="assistant", content="")),
    "null of a tool": (result(None), Turn(role="tool", content="", tool_call_id="1")),
    "parts of a tool": (result([text("a"), text("b")]), Turn(role="tool", content="a\nb", tool_call_id="1")),
    "empty parts": (said([text(""), text(None), text("a")]), Turn(role="assistant", content="\n\na")),
    "fields of parts": (said([text("a", annotations=[1], **CACHED, **EXTRA)]), A_TURN),
    "fields of a message": (said("a", audio=None, refusal=None, function_call={}, tool_calls=[], **CACHED), A_TURN),
    "a refusal part": (said([{"type": "refusal", "refusal": "a"}]), A_TURN),
    "a transcript": (said(audio={"id": "x", "data": "AA", "expires_at": 1, "transcript": "a"}), A_TURN),
    "reasoning alone": (said(reasoning_content="hm"), Turn(role="assistant", content="", reasoning="hm")),
    "reasoning, and its details": (said("a", reasoning="hm", reasoning_details=[{"text": "x"}]), THOUGHT),
    "details": (
        said("a", reasoning_details=[{"type": "reasoning.encrypted", "data": "x"}, {"summary": "hm"}]),
        THOUGHT,
    ),
    "blocks of thinking": (
        said("a", thinking_blocks=[{"thinking": "hm", "signature": "x"}, {"type": "redacted_thinking", "data": "x"}]),
        THOUGHT,
    ),
    "parts of thinking": (
        said([{"type": "thinking", "thinking": [text("hm")]}, {"type": "redacted_thinking", "data": "x"}, text("a")]),
        THOUGHT,
    ),
    "empty reasoning": (
        said("a", reasoning="", reasoning_content=None, reasoning_details=[], thinking_blocks={}),
        A_TURN,
    ),
    "a call with more": (
        said(tool_calls=[{**call(arguments="{}", **EXTRA), **EXTRA, "index": 0}], **EXTRA),
        called("{}"),
    ),
    "a call without arguments": (said([], tool_calls=[call(arguments=None)]), called()),
    "a call with an object": (said("", tool_calls=[call(arguments={"city": "Köln"})]), called('{"city": "Köln"}')),
    "a call of no kind or name": (
        said(tool_calls=[{"id": "", "type": None, "function": {"name": None, "arguments": ""}}]),
        called(name="", id=""),
    ),
    "a custom call": (
        said(tool_calls=[{"id": "1", "type": "custom", "custom": {"name": "look", "input": 'ü"'}}]),
        called('{"input": "ü\\""}'),
    ),
    "LibreChat's thinking": (said([{"type": "think", "think": "hm"}, text("a")]), THOUGHT),
    "a call among the parts": (said([{"type": "tool_use"}], tool_calls=[call(arguments="{}")]), called("{}")),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("refuses_unknown", [True, False])
def test_a_message_sent_back_is_read(case: str, refuses_unknown: bool) -> None:
    message, turn = CASES[case]
    reading = Reading(refuses_unknown=refuses_unknown)

    assert read(message, reading) == turn
    assert {*reading.ignored} <= {"cache_control"}


def test_what_is_dropped_is_named() -> None:
    foreign = {"id": "1", "timestamp": 5, "finish_reason": "stop", "stop_reason": None, "logprobs": {}, "index": 0}
    reading = Reading()

    turn = read(said([text("a", weight=1)], annotations=[{"type": "url_citation"}], **foreign), reading)

    assert turn == A_TURN
    names = ("annotations", "content.weight", "finish_reason", "id", "index", "timestamp")
    assert sorted(reading.ignored) == [f"messages.{name}" for name in names]


@pytest.mark.parametrize("message", [result([text("a"), IMAGE]), said([text("a"), IMAGE])], ids=["tool", "assistant"])
def test_an_image_that_a_tool_or_model_returned_is_omitted(message: dict[str, Any]) -> None:
    reading = Reading()

    assert read(message, reading).content == f"a\n{OMITTED}"
    assert reading.ignored == ["messages.content.image_url"]


@pytest.mark.parametrize(
    ("message", "reading"),
    [
        (result([text("a"), IMAGE]), Reading(refuses_images=True)),
        ({"role": "user", "content": [text("a"), IMAGE]}, Reading()),
        ({"role": "developer", "content": [{"type": "file", "file": {"file_id": "x"}}]}, Reading()),
    ],
    ids=["as set", "user", "developer"],
)
def test_an_image_is_refused(message: dict[str, Any], reading: Reading) -> None:
    with pytest.raises(ApiError) as refused:
        read(message, reading)

    assert refused.value.param == "messages.[1].content"


@pytest.mark.parametrize(
    ("kind", "noun"), [("input_audio", "audio"), ("video_url", "video"), ("file", "file"), ("x", "content")]
)
def test_other_media_is_omitted_by_its_name(kind: str, noun: str) -> None:
    assert read(result([{"type": kind}]), Reading()).content == f"[{noun} omitted: this model reads text only]"


_leaf = st.none() | st.integers() | st.text(max_size=3) | st.sampled_from(["\ud800", "text", "thinking"])
_any = st.recursive(_leaf, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=4), inner))
_parts = st.lists(
    st.fixed_dictionaries(
        {"type": st.sampled_from(["text", "refusal", "thinking", "image_url", "tool_use"]) | _any},
        optional={"text": _any, "thinking": _any, "refusal": _any},
    ),
    max_size=3,
)
_messages = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["user", "assistant", "tool", "system"])},
        optional={
            "content": _parts | _any,
            "reasoning_details": _parts | _any,
            "audio": st.fixed_dictionaries({"transcript": _any}) | _any,
            "tool_calls": st.lists(st.fixed_dictionaries({"function": st.fixed_dictionaries({"arguments": _any})}))
            | _any,
        },
    ),
    min_size=1,
    max_size=4,
)
MODEL = strict_model("Mistral")


@given(_messages)
@settings(max_examples=50)
def test_any_messages_are_a_prompt_or_refused_by_name(messages: list[dict[str, Any]]) -> None:
    refusal: ApiError | None = None
    try:
        reading = Reading()
        request = of_text(parse_chat(json.dumps({"model": "tiny", "messages": messages}).encode(), reading), reading)
        MODEL.chat_prompt(request.messages)
    except ApiError as error:
        refusal = error
    assert refusal is None or (refusal.status, (refusal.param or "")[:8]) == (400, "messages")
