"""Bodies of the Responses API: what they come to, and what is refused by name."""

import functools
import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from fairlane.gateway.api.responses import RESPONSE
from fairlane.gateway.dialects.media_marks import MediaFound
from fairlane.gateway.dialects.openai.reading import Reading
from fairlane.gateway.dialects.openai.requests import Turn
from fairlane.gateway.dialects.openai.response_body import ResponseRequest, parse_response
from fairlane.gateway.dialects.openai.response_conversation import KeptResponse, Stored
from fairlane.gateway.dialects.openai.response_items import CompactionItem, read_items, turns_of
from fairlane.gateway.dialects.openai.response_tools import CalledAs
from fairlane.gateway.dialects.openai.tools import MAX_TOOLS, ToolCall, ToolChoice
from fairlane.gateway.errors import ApiError
from fairlane.gateway.model_text.tokenizer import TextModel
from tests.support.counted import calls_of
from tests.support.gateway.tool_models import TOOL_MODELS, tool_card
from tests.support.text_model import of_text

WEATHER: dict[str, Any] = {"type": "function", "name": "weather", "parameters": {"type": "object", "properties": {}}}
PATCH: dict[str, Any] = {"type": "custom", "name": "patch"}
USER: dict[str, Any] = {"role": "user", "content": "Hello"}
CALL: dict[str, Any] = {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": "{}"}
RESULT: dict[str, Any] = {"type": "function_call_output", "call_id": "c1", "output": "rain"}
THOUGHT: dict[str, Any] = {"type": "reasoning", "id": "rs_1", "summary": [], "content": None}


@functools.cache
def text_model(name: str) -> TextModel:
    return TextModel(tool_card(name))


def parsed(**fields: Any) -> ResponseRequest:
    reading = Reading(refuses_unknown=True)
    return of_text(parse_response(json.dumps({"model": "tiny", "input": "Hello", **fields}).encode(), reading), reading)


def refused(**fields: Any) -> str | None:
    """The field that a refusal names."""
    with pytest.raises(ApiError) as error:
        parsed(**fields)
    assert error.value.code == "invalid_request_error"
    return error.value.param


def said(role: str, text: str) -> dict[str, Any]:
    return {"type": "message", "role": role, "content": text}


def thought(text: str) -> dict[str, Any]:
    return {**THOUGHT, "content": [{"type": "reasoning_text", "text": text}]}


def test_a_text_alone_is_what_a_user_says() -> None:
    assert parsed().messages == (Turn(role="user", content="Hello"),)


@pytest.mark.parametrize(
    "content",
    [
        "one\ntwo",
        [{"type": "input_text", "text": "one"}, {"type": "input_text", "text": "two"}],
        [{"type": "output_text", "text": "one\ntwo", "annotations": [], "logprobs": []}],
        [{"type": "refusal", "refusal": "one\ntwo"}],
    ],
)
def test_a_message_is_text_however_it_is_given(content: object) -> None:
    (turn,) = parsed(input=[{"role": "assistant", "content": content}]).messages

    assert turn == Turn(role="assistant", content="one\ntwo")


def test_what_the_model_did_before_it_came_to_rest_is_one_turn() -> None:
    two = {**CALL, "call_id": "c2"}
    items = [USER, thought("Hm."), said("assistant", "Let me see."), CALL, two, RESULT, thought("So."), CALL, RESULT]

    turns = parsed(input=items).messages

    assert [turn.role for turn in turns] == ["user", "assistant", "tool", "assistant", "tool"]
    assert (turns[1].reasoning, turns[1].content) == ("Hm.", "Let me see.")
    assert [call.id for call in turns[1].tool_calls] == ["c1", "c2"]
    assert turns[2] == Turn(role="tool", content="rain", tool_call_id="c1")
    assert (turns[3].reasoning, turns[3].content) == ("So.", None)


def test_what_it_says_after_a_call_is_a_turn_of_its_own() -> None:
    turns = parsed(input=[USER, CALL, said("assistant", "Done."), said("assistant", "Well.")]).messages

    assert [(turn.role, turn.content, len(turn.tool_calls)) for turn in turns[1:]] == [
        ("assistant", None, 1),
        ("assistant", "Done.", 0),
        ("assistant", "Well.", 0),
    ]


def test_reasoning_that_only_its_maker_can_read_is_passed_over() -> None:
    items = [USER, {**THOUGHT, "encrypted_content": "gAAAA"}, said("assistant", "Yes."), THOUGHT]

    assert [turn.reasoning for turn in parsed(input=items).messages] == [None, None]


def test_what_instructs_the_model_at_the_beginning_is_one_turn() -> None:
    items = [said("developer", "two"), said("system", "three"), USER, said("developer", "later")]

    turns = parsed(input=items, instructions="one").messages

    assert turns[0] == Turn(role="system", content="one\n\ntwo\n\nthree")
    assert [turn.role for turn in turns[1:]] == ["user", "developer"]


def test_a_custom_tool_is_a_function_with_one_argument() -> None:
    called = {"type": "custom_tool_call", "call_id": "c1", "name": "patch", "input": 'ü"'}
    told = {"type": "custom_tool_call_output", "call_id": "c1", "output": "ok"}

    request = parsed(input=[USER, called, told], tools=[PATCH])

    assert request.messages[1].tool_calls == (ToolCall(name="patch", arguments='{"input": "ü\\""}', id="c1"),)
    assert request.tools[0].strict
    assert request.tools[0].parameters["required"] == ["input"]
    assert request.tools[0].takes_text
    assert not request.called_as


def test_a_custom_tools_grammar_is_told_to_the_model() -> None:
    grammar = {"type": "grammar", "syntax": "lark", "definition": "start: /a+/"}

    request = parsed(tools=[{**PATCH, "description": "Change.", "format": grammar}])

    assert request.tools[0].description == "Change.\n\n`input` keeps to this grammar (lark):\nstart: /a+/"
    assert request.tools[0].pattern == "(?:(?:a+))"
    assert request.echo["tools"][0]["format"] == grammar


def test_tools_of_a_namespace_have_its_name_before_theirs() -> None:
    spaces = [{"type": "namespace", "name": name, "tools": [WEATHER, PATCH]} for name in ("sky", "mcp__sea__")]
    called = [{**CALL, "namespace": "sky"}, {**CALL, "call_id": "c2", "namespace": "mcp__sea__"}]

    request = parsed(tools=[*spaces, WEATHER], input=[USER, *called, {**RESULT, "namespace": "sky", "name": "weather"}])

    names = ["sky__weather", "sky__patch", "mcp__sea__weather", "mcp__sea__patch", "weather"]
    assert [tool.name for tool in request.tools] == names
    assert request.called_as["sky__patch"] == CalledAs("patch", "sky")
    assert request.called_as["mcp__sea__weather"] == CalledAs("weather", "mcp__sea__")
    assert [call.name for call in request.messages[1].tool_calls] == ["sky__weather", "mcp__sea__weather"]
    assert request.messages[2].name == "sky__weather"
    assert request.items[1].as_json()["namespace"] == "sky"


@pytest.mark.parametrize(
    ("choice", "found"),
    [
        (None, ToolChoice("auto")),
        ("none", ToolChoice("none")),
        ("required", ToolChoice("required")),
        ({"type": "function", "name": "weather"}, ToolChoice("required", ("weather",))),
        ({"type": "custom", "name": "patch"}, ToolChoice("required", ("patch",))),
        (
            {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "weather"}]},
            ToolChoice("auto", ("weather",)),
        ),
    ],
)
def test_all_forms_of_a_tool_choice(choice: object, found: ToolChoice) -> None:
    request = parsed(tools=[WEATHER, PATCH], tool_choice=choice)

    assert request.tool_choice == found
    assert request.echo["tool_choice"] == (choice or "auto")


def test_what_codex_sends_is_taken() -> None:
    request = parsed(
        input=[said("developer", "Mind the sandbox."), {**USER, "type": "message"}],
        instructions="You are an agent.",
        tools=[{**WEATHER, "description": "", "strict": False}],
        tool_choice="auto",
        parallel_tool_calls=False,
        reasoning={"effort": "medium", "summary": "auto"},
        store=False,
        stream=True,
        include=["reasoning.encrypted_content"],
        service_tier=None,
        prompt_cache_key="0199",
        text={"verbosity": "medium"},
        client_metadata={"x-codex-installation-id": "1"},
    )

    assert (request.store, request.stream, request.parallel_tool_calls, request.logprobs) == (False, True, False, None)


def test_a_form_is_asked_for_in_text() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    request = parsed(text={"format": {"type": "json_schema", "name": "a", "schema": schema, "strict": True}})

    assert request.structure is not None
    assert json.loads(request.structure.text) == schema
    assert request.structure.param == "text.format.schema"
    assert request.echo["text"]["format"]["schema"] == schema
    assert parsed(text={"format": {"type": "text"}}).structure is None
    assert parsed(text={"format": {"type": "json_object"}}).structure is not None


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": None}, "input"),
        ({"input": []}, "input"),
        ({"input": [THOUGHT]}, "input"),
        ({"input": ["Hello"]}, "input.[0]"),
        ({"input": [{"type": "unheard_of_call", "id": "x_1"}]}, "input.[0]"),
        ({"input": [{"type": ["message"]}]}, "input.[0]"),
        ({"input": [{**USER, "role": "tool"}]}, "input.[0].role"),
        ({"input": [{**USER, "nonsense": 1}]}, "input.[0].nonsense"),
        ({"input": [{"role": "user"}]}, "input.[0].content"),
        ({"input": [{**USER, "content": [{"type": "input_image", "image_url": "data:,"}]}]}, "input.[0].content"),
        ({"input": [{**USER, "content": [{"type": {}}]}]}, "input.[0].content"),
        ({"input": [{**USER, "content": [{"type": "input_text", "text": 5}]}]}, "input.[0].content"),
        ({"input": [{**CALL, "call_id": None}]}, "input.[0].call_id"),
        ({"input": [{**RESULT, "output": 5}]}, "input.[0].output"),
        ({"background": True}, "background"),
        ({"conversation": "conv_1"}, "conversation"),  # without what is stored
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"truncation": "other"}, "truncation"),
        ({"context_management": [{"type": "compaction"}]}, "context_management"),
        ({"reasoning": {"effort": "mild"}}, "reasoning.effort"),
        ({"text": {"format": {"type": "json_schema", "name": "a"}}}, "text.format.schema"),
        ({"text": {"format": {"type": "json_schema", "schema": {}}}}, "text.format.name"),
        ({"text": {"format": {"type": "text", "schema": {}}}}, "text.format.schema"),
        ({"text": {"format": {"type": "grammar"}}}, "text.format.type"),
        ({"tools": [{"type": "web_search"}]}, "tools.[0]"),
        ({"tools": [WEATHER, {"type": "local_shell"}]}, "tools.[1]"),
        ({"tools": [{"type": "mcp", "server_label": "a"}]}, "tools.[0]"),
        ({"tools": [{"type": []}]}, "tools.[0]"),
        ({"tools": [WEATHER, WEATHER]}, "tools.[1].name"),
        ({"tools": [{**WEATHER, "name": "a b"}]}, "tools.[0].name"),
        ({"tools": [{**WEATHER, "parameters": {"type": "string"}}]}, "tools.[0].parameters"),
        ({"tools": [{**PATCH, "format": {"type": "grammar", "syntax": "lark"}}]}, "tools.[0].format"),
        ({"tools": [{**PATCH, "format": {"type": "video"}}]}, "tools.[0].format"),
        ({"tools": [{"type": "namespace", "name": "a", "tools": [{"type": "mcp"}]}]}, "tools.[0].tools.[0]"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "name": "weather"}}, "tool_choice"),
        ({"tool_choice": {"type": "web_search_preview"}}, "tool_choice"),
        ({"tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": []}}, "tool_choice.tools"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"top_logprobs": 21}, "top_logprobs"),
        ({"temperature": 3}, "temperature"),
        ({"max_tokens": 5}, "max_tokens"),
        ({"messages": [USER]}, "messages"),
        ({"instructions": "\ud800"}, "instructions"),
    ],
)
def test_what_is_wrong_or_not_served_is_named(fields: dict[str, Any], param: str) -> None:
    found = refused(**fields)

    assert found is not None
    assert found.startswith(param)


def test_tools_inside_namespaces_count_towards_the_bound_of_tools() -> None:
    def body(count: int) -> bytes:
        spaces = [
            {"type": "namespace", "name": f"n{space}", "tools": [{**WEATHER, "name": f"f{at}"} for at in range(count)]}
            for space in range(MAX_TOOLS // 64)
        ]
        return json.dumps({"model": "tiny", "input": "Hello", "tools": spaces}).encode()

    def refused_for_tools(body: bytes) -> None:
        with pytest.raises(ApiError) as error:
            parse_response(body)
        assert (error.value.code, error.value.param) == ("invalid_request_error", "tools")

    assert len(parse_response(body(64)).tools) == MAX_TOOLS
    refused_for_tools(body(65))
    many = body(90)
    assert calls_of(json.dumps, lambda: refused_for_tools(many)) == 0, "a schema was checked"


def test_no_refusal_holds_what_was_sent() -> None:
    with pytest.raises(ApiError) as error:
        parsed(input=[{**USER, "content": [{"type": "a secret"}]}])
    assert "secret" not in error.value.message
    assert "Hello" not in repr(parsed())


def test_items_are_kept_as_they_can_be_read_again() -> None:
    called = {"type": "custom_tool_call", "call_id": "c1", "name": "patch", "input": "x"}
    told = {"type": "custom_tool_call_output", "call_id": "c1", "output": "ok"}
    request = parsed(input=[USER, thought("Hm."), said("assistant", "So."), CALL, RESULT, called, told])

    kept = [item.as_json() for item in request.items]

    read = [item for item in read_items(kept) if not isinstance(item, CompactionItem)]
    assert turns_of(read, None, MediaFound(), 0) == request.messages
    assert len({item["id"] for item in kept}) == len(kept)
    assert [item.as_json() for item in read_items(kept)] == kept


def test_a_stored_item_that_cannot_be_read_is_no_fault_of_ours() -> None:
    kept = KeptResponse({"output": [{**CALL, "call_id": None}]}, [{**USER, "type": "message"}])
    body = json.dumps({"model": "tiny", "input": "Go on.", "previous_response_id": "resp_1"}).encode()

    with pytest.raises(ApiError) as error:
        parse_response(body, stored=Stored(msgspec.json.encode(kept)))

    assert (error.value.status, error.value.param) == (400, "previous_response_id")


_leaf = st.none() | st.booleans() | st.integers(-3, 2**65) | st.floats() | st.text(max_size=5)
_names = st.text(max_size=5)
_json = _leaf | st.lists(_leaf, max_size=3) | st.dictionaries(_names, _leaf | st.lists(_leaf, max_size=2), max_size=3)
_parts = st.lists(
    st.fixed_dictionaries(
        {"type": st.sampled_from(["input_text", "output_text", "refusal", "input_image"])},
        optional={"text": _json, "refusal": _json, "annotations": _json},
    ),
    max_size=2,
)
_items = st.lists(
    st.fixed_dictionaries(
        {},
        optional={
            "type": st.sampled_from(["message", "reasoning", "function_call", "function_call_output", "x"])
            | st.sampled_from(["mcp_call", "computer_call_output", "web_search_call", "additional_tools"])
            | _json,
            "role": st.sampled_from(["user", "assistant", "developer"]) | _json,
            "content": st.text(max_size=5) | _parts | _json,
            "call_id": st.text(max_size=5) | _json,
            "name": st.text(max_size=5) | _json,
            "arguments": st.text(max_size=5) | _json,
            "output": st.text(max_size=5) | _parts | _json,
            "summary": _parts | _json,
        },
    ),
    max_size=4,
)


@given(
    st.fixed_dictionaries(
        {"model": st.just("tiny"), "input": _items | _json},
        optional={
            "instructions": st.text(max_size=5) | _json,
            "tools": st.lists(st.sampled_from([WEATHER, PATCH]) | _json, max_size=2) | _json,
            "tool_choice": st.sampled_from(["auto", "required"]) | _json,
            "text": st.fixed_dictionaries({"format": _json}) | _json,
            "reasoning": _json,
            "include": _json,
            "metadata": _json,
            "store": _json,
        },
    )
)
def test_any_body_is_a_request_or_a_refusal_that_names_a_field(body: dict[str, Any]) -> None:
    refusal: ApiError | None = None
    try:
        request = parse_response(json.dumps(body).encode())
    except ApiError as error:
        refusal = error
    else:
        assert request.messages
        assert all(turn.content is not None or turn.tool_calls for turn in request.messages)
    assert refusal is None or refusal.status in (400, 413)


_conversations = st.lists(
    st.sampled_from(
        [
            USER,
            said("assistant", "So."),
            said("developer", "Mind."),
            said("system", ""),
            thought("Hm."),
            CALL,
            {**CALL, "call_id": "c2", "arguments": "no JSON"},
            RESULT,
            {**RESULT, "call_id": "unheard of", "name": "weather"},
            {"type": "mcp_call", "id": "m1", "name": "look", "arguments": "{}", "output": "rain"},
            {"type": "local_shell_call", "call_id": "c3", "action": {"command": ["ls"]}},
            {"type": "local_shell_call_output", "id": "c3", "output": "a.txt"},
            {"type": "web_search_call", "id": "w1"},
            said("user", ""),
        ]
    ),
    min_size=1,
    max_size=8,
)


@given(_conversations, st.sampled_from(sorted(TOOL_MODELS)), st.booleans(), st.none() | st.just("Be brief."))
def test_any_order_of_items_is_a_prompt_or_a_refusal_that_names_the_input(
    items: list[dict[str, Any]], model: str, has_tools: bool, instructions: str | None
) -> None:
    refusal: ApiError | None = None
    try:
        request = parsed(input=items, tools=[WEATHER] if has_tools else None, instructions=instructions)
        (prompt,) = RESPONSE.prompts(text_model(model), request)
    except ApiError as error:
        refusal = error
    else:
        assert prompt
    assert refusal is None or (refusal.status, refusal.param) == (400, "input")


def test_many_items_become_one_turn_at_once_and_not_one_after_the_other() -> None:
    answer = [*[THOUGHT | {"content": "Well."}] * 400, *[CALL] * 400]

    assert calls_of(replace, lambda: parsed(input=[{"role": "system", "content": "Be kind."}] * 500)) == 1
    [turn] = parsed(input=answer).messages
    assert (len(turn.tool_calls), turn.reasoning) == (400, "\n".join(["Well."] * 400))
