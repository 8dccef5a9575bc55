"""Blocks of earlier turns as clients send them back, from Anthropic's own models too: read, dropped or rendered."""

import json
from typing import Any

import pytest

from fairlane.gateway.dialects.anthropic.requests import parse_messages
from fairlane.gateway.dialects.openai.reading import Reading
from fairlane.gateway.dialects.openai.requests import Turn
from fairlane.gateway.dialects.openai.tools import ToolCall
from fairlane.gateway.errors import ApiError
from fairlane.gateway.http.json_reader import MAX_DEPTH
from tests.support.gateway.families import STRICT_TEMPLATES, prompt_text, strict_model
from tests.support.text_model import of_text

HELLO = {"role": "user", "content": "Hello"}
CACHED = {"cache_control": {"type": "ephemeral", "ttl": "9h", "scope": {}}}
PNG = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA"}}
PDF = {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "AA"}, "title": "T"}
ILLUSTRATED: dict[str, Any] = {
    "type": "document",
    "title": "T",
    "source": {"type": "content", "content": [{"type": "text", "text": "a"}, PNG]},
}
PLAIN = {"type": "text", "media_type": "text/plain", "data": "Rain."}
NO_IMAGE, NO_DOCUMENT = (f"[{noun} omitted: this model reads text only]" for noun in ("image", "document"))


def text(words: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": words, **more}


def result(content: Any, **more: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": "1", "content": content, **more}


def call(kind: str = "tool_use", **more: Any) -> dict[str, Any]:
    return {"type": kind, "id": "1", "name": "look", "input": {}, **more}


def found(kind: str, content: Any) -> dict[str, Any]:
    return {"type": f"{kind}_tool_result", "tool_use_id": "1", "content": content}


def read(*messages: dict[str, Any], reading: Reading | None = None) -> list[Turn]:
    body = {"model": "tiny", "messages": [*messages, HELLO]}
    reading = reading or Reading(refuses_unknown=True)
    return list(of_text(parse_messages(json.dumps(body).encode(), reading), reading).messages)


def said(*blocks: dict[str, Any]) -> list[Turn]:
    """Turns of the assistant's message."""
    return read(HELLO, {"role": "assistant", "content": list(blocks)})[1:-1]


def told(*blocks: dict[str, Any]) -> list[tuple[str, str | None]]:
    """Turns of a user's message."""
    turns = read({"role": "user", "content": list(blocks)}, {"role": "assistant", "content": "a"})[:-2]
    return [(turn.role, turn.content) for turn in turns]


@pytest.mark.parametrize("content", [None, "", [], [text("")]])
def test_a_message_may_be_empty(content: Any) -> None:
    for role in ("user", "assistant", "system"):
        first = read({"role": role, "content": content}, {"role": "assistant", "content": "a"})[0]
        assert (first.role, (first.content or "").strip()) == (role, "a" if role == "assistant" else "")


@pytest.mark.parametrize(
    ("block", "turn"),
    [
        (text("a", citations=None, **CACHED), Turn(role="assistant", content="a")),
        ({"type": "compaction", "content": "a", **CACHED}, Turn(role="assistant", content="a")),
        ({"type": "thinking", "thinking": "a", "signature": None}, Turn(role="assistant", content="", reasoning="a")),
        ({"type": "thinking", "thinking": None}, Turn(role="assistant", content="")),
        ({"type": "redacted_thinking", "data": None, **CACHED}, Turn(role="assistant", content="")),
    ],
)
def test_blocks_of_an_answer(block: dict[str, Any], turn: Turn) -> None:
    assert said(block) == [turn]


@pytest.mark.parametrize("given", [{}, None, ""])
def test_calls_may_have_no_input_and_any_caller(given: Any) -> None:
    caller = {"type": "code_execution_20250825", "tool_id": "x"}

    turns = read(HELLO, {"role": "assistant", "content": [{**call(), "input": given, "caller": caller, **CACHED}]})

    assert turns[1].tool_calls == (ToolCall(name="look", arguments="{}", id="1"),)


FOUND = {"type": "web_search_result", "title": "T", "url": "https://a", "encrypted_content": "x", "page_age": "1 d"}
FETCHED = {"type": "web_fetch_result", "url": "https://a", "content": {"type": "document", "source": PLAIN}}
RAN = {"type": "code_execution_result", "stdout": "2", "stderr": "", "return_code": 0, "content": []}
FAILED = {"type": "web_search_tool_result_error", "error_code": "max_uses_exceeded"}


@pytest.mark.parametrize(
    ("kind", "content", "shown"),
    [
        ("web_search", [FOUND, FOUND], "T\nhttps://a\nT\nhttps://a"),
        ("web_search", FAILED, "max_uses_exceeded"),
        ("web_fetch", FETCHED, "https://a\nRain."),
        ("web_fetch", {**FETCHED, "content": PDF}, f"https://a\n{NO_DOCUMENT}\nT"),
        ("code_execution", RAN, "2"),
        ("mcp", [text("a"), PNG], f"a\n{NO_IMAGE}"),
        ("mcp", None, ""),
    ],
)
def test_what_a_tool_of_anthropics_found_is_a_result(kind: str, content: Any, shown: str) -> None:
    use = "mcp_tool_use" if kind == "mcp" else "server_tool_use"

    turns = said(text("Let me look."), call(use), found(kind, content), text("So."))

    assert turns == [
        Turn(role="assistant", content="Let me look.", tool_calls=(ToolCall(name="look", arguments="{}", id="1"),)),
        Turn(role="tool", content=shown, tool_call_id="1"),
        Turn(role="assistant", content="So."),
    ]


def test_a_result_may_be_as_deep_as_a_body() -> None:
    content: Any = "a"
    for _ in range(MAX_DEPTH // 2 - 5):
        content = [{"x": content}]

    assert said(call("server_tool_use"), found("web_search", content))[1].content == "a"


@pytest.mark.parametrize(
    ("block", "shown"),
    [
        (
            {"type": "document", "source": PLAIN, "title": "T", "context": "C", "citations": {"enabled": False}},
            "T\nC\nRain.",
        ),
        ({"type": "document", "source": {"type": "content", "content": [text("Rain.")]}, **CACHED}, "Rain."),
        ({"type": "document", "source": {"type": "content", "content": "Rain."}}, "Rain."),
        ({"type": "search_result", "source": "s", "title": "T", "content": [text("Rain.")], **CACHED}, "T\ns\nRain."),
        ({"type": "tool_reference", "tool_name": "grep", **CACHED}, "[tool: grep]"),
    ],
)
def test_blocks_of_text_are_read_of_users_and_of_tools(block: dict[str, Any], shown: str) -> None:
    assert told(block, text("a")) == [("user", f"{shown}\na")]
    assert told(result([block])) == [("tool", shown)]


@pytest.mark.parametrize(
    ("blocks", "turns"),
    [
        ([result([text("a"), PNG])], [("tool", f"a\n{NO_IMAGE}")]),
        ([result([PDF], is_error=True)], [("tool", f"Error: T\n{NO_DOCUMENT}")]),
        ([result("a"), PDF], [("tool", "a"), ("user", f"T\n{NO_DOCUMENT}")]),
        ([result([ILLUSTRATED])], [("tool", f"T\na\n{NO_IMAGE}")]),
        ([result([{"type": "browser_state", "x": 1}])], [("tool", "[content omitted: this model reads text only]")]),
    ],
)
def test_media_of_a_tool_is_omitted_or_refused(blocks: list[dict[str, Any]], turns: list[tuple[str, str]]) -> None:
    assert told(*blocks) == turns
    with pytest.raises(ApiError) as refused:
        read({"role": "user", "content": blocks}, reading=Reading(refuses_images=True))
    assert str(refused.value.param).startswith("messages.[0].content.[")


@pytest.mark.parametrize("block", [PNG, PDF, ILLUSTRATED, {"type": "container_upload", "file_id": "x"}])
def test_media_of_a_user_is_refused(block: dict[str, Any]) -> None:
    with pytest.raises(ApiError) as refused:
        read({"role": "user", "content": [text("a"), block]})
    assert refused.value.param == "messages.[0].content.[1]"


def test_an_image_next_to_a_result_is_the_users() -> None:
    with pytest.raises(ApiError) as refused:
        read({"role": "user", "content": [result("a"), PNG]})
    assert refused.value.param == "messages.[0].content.[1]"


def test_what_is_dropped_is_named() -> None:
    reading = Reading()
    blocks = [text("a", citations=[{"type": "char_location"}]), {"type": "fallback", "x": 1}, PNG]
    answer = {"id": "msg_1", "role": "assistant", "content": blocks, "stop_reason": "end_turn", "stop_sequence": None}

    turns = read(HELLO, answer, {"role": "user", "content": [result([PNG])]}, reading=reading)

    assert turns[1] == Turn(role="assistant", content=f"a\n{NO_IMAGE}")
    names = ("content.content.image", "content.fallback", "content.image", "id", "stop_reason")
    assert sorted(reading.ignored) == ["citations", *(f"messages.{name}" for name in names)]


@pytest.mark.parametrize("name", STRICT_TEMPLATES)
@pytest.mark.parametrize("before", [True, False])
def test_a_reminder_of_claude_code_fits_a_strict_template(name: str, before: bool) -> None:
    blocks = [text("Mind."), result("rain")] if before else [result("rain"), text("Mind.")]
    turns = read(HELLO, {"role": "assistant", "content": [call()]}, {"role": "user", "content": blocks})
    model = strict_model(name)

    told = prompt_text(model, model.chat_prompt(turns))

    assert told.index("look") < min(told.index("rain"), told.index("Mind.")) < told.rindex("Hello")
