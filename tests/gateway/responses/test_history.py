"""Items of earlier turns as clients send them back, from OpenAI's own models too: read, dropped or rendered."""

import json
from typing import Any

import pytest

from fairlane.gateway.dialects.media_marks import MediaFound
from fairlane.gateway.dialects.openai.reading import Reading
from fairlane.gateway.dialects.openai.requests import Turn, rewritten
from fairlane.gateway.dialects.openai.response_body import ResponseRequest, parse_response
from fairlane.gateway.dialects.openai.response_items import CompactionItem, read_items, turns_of
from fairlane.gateway.dialects.openai.tools import ToolCall
from fairlane.gateway.errors import ApiError
from tests.support.gateway.families import prompt_text, strict_model
from tests.support.text_model import of_text

USER = {"type": "message", "role": "user", "content": "Hello"}
OMITTED = "[image omitted: this model reads text only]"
IMAGE = {"type": "input_image", "image_url": "data:,", "detail": "auto"}


def parsed(*items: dict[str, Any], reading: Reading | None = None, **fields: Any) -> ResponseRequest:
    body = {"model": "tiny", "input": [USER, *items], **fields}
    reading = reading or Reading(refuses_unknown=True)
    return of_text(parse_response(json.dumps(body).encode(), reading), reading)


def read(*items: dict[str, Any], reading: Reading | None = None) -> list[Turn]:
    """The turns after the user's first."""
    request = parsed(*items, reading=reading)
    kept = [item.as_json() for item in request.items]
    assert all(item["id"] for item in kept)
    again = [item for item in read_items(kept) if not isinstance(item, CompactionItem)]
    found = MediaFound()
    again_turns = rewritten(turns_of(again, None, found, 0), lambda text: found.media.omitted_from(text, [0]))
    assert len(again) < len(kept) or again_turns == request.messages
    return list(request.messages[1:])


def said(content: Any, **more: Any) -> dict[str, Any]:
    return {"type": "message", "role": "assistant", "content": content, **more}


def text(words: str | None, kind: str = "output_text", **more: Any) -> dict[str, Any]:
    return {"type": kind, "text": words, **more}


def called(name: str, arguments: str, id: str | None = "1") -> Turn:  # noqa: A002
    return Turn(role="assistant", content=None, tool_calls=(ToolCall(name=name, arguments=arguments, id=id),))


def found(content: str) -> Turn:
    return Turn(role="tool", content=content, tool_call_id="1")


A_TURN = Turn(role="assistant", content="a")
CITED: dict[str, Any] = {"annotations": [{"type": "url_citation"}], "logprobs": []}
CALL = {"type": "function_call", "call_id": "1", "name": "look", "arguments": "{}"}
ACTION = {"type": "exec", "command": ["ls"], "env": {}}


@pytest.mark.parametrize(
    ("item", "turns"),
    [
        (said(None), [Turn(role="assistant", content="")]),
        (said([]), [Turn(role="assistant", content="")]),
        (
            said([text(None), text("a", **CITED)], status="completed", phase="final"),
            [Turn(role="assistant", content="\na")],
        ),
        (said("a", id="msg_1", status=None), [A_TURN]),
        (said([text("a", cache_control={"type": "ephemeral"})]), [A_TURN]),
        (
            {"type": "reasoning", "id": "rs_1", "summary": [], "content": [], "encrypted_content": "x", "status": None},
            [],
        ),
        ({"type": "function_call_output", "call_id": "1", "output": None}, [found("")]),
        (
            {"type": "function_call_output", "call_id": "1", "output": [text("a", "input_text"), IMAGE]},
            [found(f"a\n{OMITTED}")],
        ),
        (
            {**CALL, "arguments": {"a": 1}, "caller": {"type": "program", "caller_id": "x"}},
            [called("look", '{"a": 1}')],
        ),
        ({**CALL, "arguments": None, "name": "", "status": "completed"}, [called("", "")]),
    ],
)
def test_an_item_sent_back_is_read(item: dict[str, Any], turns: list[Turn]) -> None:
    assert read(item) == turns


def test_reasoning_may_have_a_summary_alone() -> None:
    [turn] = read({"type": "reasoning", "summary": [text("hm", "summary_text")]}, said("a"))

    assert turn == Turn(role="assistant", content="a", reasoning="hm")


HOSTED: dict[str, tuple[dict[str, Any], list[Turn]]] = {
    "code_interpreter_call": (
        {"code": "1+1", "container_id": "c", "outputs": [{"type": "logs", "logs": "2"}, {"type": "image", "url": "u"}]},
        [called("code_interpreter", '{"code": "1+1"}'), found(f"2\n{OMITTED}")],
    ),
    "file_search_call": (
        {"queries": ["rain"], "results": [{"file_id": "f", "filename": "a.txt", "text": "Rain.", "score": 0.5}]},
        [called("file_search", '{"queries": ["rain"]}'), found("a.txt\nRain.")],
    ),
    "image_generation_call": (
        {"result": "AAAA", "revised_prompt": "a cat"},
        [called("image_generation", '{"revised_prompt": "a cat"}'), found(OMITTED)],
    ),
    "mcp_call": (
        {"server_label": "s", "name": "look", "arguments": '{"a": 1}', "output": None, "error": {"message": "No."}},
        [called("look", '{"a": 1}'), found("No.")],
    ),
    "local_shell_call": ({"action": ACTION}, [called("local_shell", json.dumps({"action": ACTION}))]),
    "shell_call": ({"action": {"commands": ["ls"]}}, [called("shell", '{"action": {"commands": ["ls"]}}')]),
    "apply_patch_call": ({"operation": {"path": "a"}}, [called("apply_patch", '{"operation": {"path": "a"}}')]),
    "tool_search_call": ({"arguments": {"query": "x"}}, [called("tool_search", '{"arguments": {"query": "x"}}')]),
    "computer_call": ({"action": {"type": "wait"}}, [called("computer", '{"action": {"type": "wait"}}')]),
    "local_shell_call_output": ({"output": "a.txt"}, [found("a.txt")]),
    "shell_call_output": (
        {"output": [{"stdout": "a.txt", "stderr": "", "outcome": {"type": "exit"}}]},
        [found("a.txt")],
    ),
    "apply_patch_call_output": ({"output": None}, [found("")]),
    "computer_call_output": (
        {"output": {"type": "computer_screenshot", "image_url": "data:,"}},
        [found("[screenshot omitted: this model reads text only]")],
    ),
    "tool_search_output": ({"id": None, "tools": []}, [found("")]),
}


@pytest.mark.parametrize("kind", HOSTED)
def test_what_a_tool_of_openais_did_is_a_call_or_its_result(kind: str) -> None:
    fields, turns = HOSTED[kind]

    assert read({"type": kind, "id": "x", "call_id": "1", "status": "completed", **fields}) == turns


def test_what_another_agent_said_is_a_users_turn() -> None:
    content = [text("Go.", "input_text"), {"type": "encrypted_content", "encrypted_content": "x"}]

    assert read({"type": "agent_message", "author": "lead", "recipient": "me", "content": content}) == [
        Turn(role="user", content="lead\nGo.")
    ]


def test_a_summary_that_only_openai_can_read_is_said_to_be_missing() -> None:
    item = {"type": "compaction", "id": "cmp_1", "encrypted_content": "gAAAAABo"}

    [turn] = read(item)

    assert (turn.role, "[omitted: " in (turn.content or "")) == ("user", True)
    with pytest.raises(ApiError) as refused:
        parsed({**item, "encrypted_content": "changed"})
    assert refused.value.param == "input"


@pytest.mark.parametrize("kind", ["web_search_call", "mcp_list_tools", "mcp_approval_request", "mcp_approval_response"])
def test_what_says_nothing_to_a_model_is_dropped_and_named(kind: str) -> None:
    reading = Reading(refuses_unknown=True)

    assert read({"type": kind, "id": "x", "action": {"query": "rain"}}, said("a"), reading=reading) == [A_TURN]
    assert reading.ignored == [f"input.{kind}"]


def test_a_result_needs_no_call_before_it() -> None:
    output = {"type": "function_call_output", "call_id": "1", "output": "rain"}

    assert read(output, CALL) == [found("rain"), called("look", "{}")]


def test_foreign_fields_of_items_and_parts_are_ignored_and_named() -> None:
    reading = Reading()

    assert read(said([text("a", provider="x")], created_by="x"), reading=reading) == [A_TURN]
    assert sorted(reading.ignored) == ["input.content.provider", "input.created_by"]


@pytest.mark.parametrize("role", ["user", "developer"])
def test_an_image_is_refused(role: str) -> None:
    with pytest.raises(ApiError) as refused:
        parsed({"type": "message", "role": role, "content": [IMAGE]})
    assert refused.value.param == "input.[1].content"


def test_an_image_of_a_tool_is_named_or_refused() -> None:
    output, reading = {"type": "function_call_output", "call_id": "1", "output": [IMAGE]}, Reading()

    assert read(output, reading=reading) == [found(OMITTED)]
    assert reading.ignored == ["input.output.input_image"]
    with pytest.raises(ApiError) as refused:
        parsed(output, reading=Reading(refuses_images=True))
    assert refused.value.param == "input.[1].output"


EXEC = {"type": "custom", "name": "exec"}
ADDED = {
    "type": "additional_tools",
    "role": "developer",
    "tools": [{"type": "namespace", "name": "f", "tools": [EXEC]}],
}


def test_tools_may_be_items_of_the_input() -> None:
    """As Codex sends them, again with each turn, and without any."""
    empty = {**ADDED, "tools": [{"type": "namespace", "name": "c", "tools": []}]}
    body = [{"type": "function", "name": "look", "parameters": {"type": "object"}}]

    request = parsed(ADDED, empty, ADDED, tools=body)

    assert [tool.name for tool in request.tools] == ["look", "f__exec"]
    assert (request.called_as["f__exec"].name, request.called_as["f__exec"].namespace) == ("exec", "f")
    assert read(ADDED, said("a")) == [A_TURN]
    with pytest.raises(ApiError) as refused:
        parsed({**ADDED, "tools": [{"type": "web_search"}]})
    assert refused.value.param == "input"


@pytest.mark.parametrize("name", ["Mistral", "Gemma", "Llama 2"])
def test_the_first_turn_of_codex_fits_a_strict_template(name: str) -> None:
    items = [{**USER, "role": "developer", "content": "Mind."}, {**USER, "content": "environment"}]
    body = json.dumps({"model": "tiny", "input": [*items, USER]}).encode()
    model = strict_model(name)

    text = prompt_text(model, model.chat_prompt(parse_response(body).messages))

    assert [text.count(word) for word in ("Mind.", "environment\n\nHello", "[INST]")] == [1, 1, 1]


@pytest.mark.parametrize("value", ["\ud800", float("nan")])
def test_what_json_cannot_hold_is_refused(value: object) -> None:
    with pytest.raises(ApiError) as refused:
        parsed({"type": "mcp_call", "id": "1", "name": "look", "arguments": "{}", "output": value})
    assert str(refused.value.param).startswith(("input.[1]", "output"))
