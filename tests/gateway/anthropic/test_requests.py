"""Anthropic's bodies: what they become, and what is refused by name."""

import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from fairlane.gateway.dialects.anthropic.requests import MessagesRequest, parse_count, parse_messages
from fairlane.gateway.dialects.openai.reading import Reading
from fairlane.gateway.dialects.openai.requests import Turn
from fairlane.gateway.dialects.openai.tools import ToolCall, ToolChoice
from fairlane.gateway.errors import ApiError
from fairlane.gateway.model_text.tokenizer import PromptTooLong, TextModel
from tests.support.counted import calls_of
from tests.support.gateway.tool_models import tool_card
from tests.support.text_model import of_text

MODEL = TextModel(tool_card("Qwen 3"))
HELLO = {"role": "user", "content": "Hello"}
TOOL = {"name": "weather", "input_schema": {"type": "object"}}
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": ""}}


def parsed(**asked: Any) -> MessagesRequest:
    reading = Reading(refuses_unknown=True)
    return of_text(
        parse_messages(json.dumps({"model": "tiny", "messages": [HELLO], **asked}).encode(), reading), reading
    )


def refused(**asked: Any) -> tuple[str, str | None]:
    with pytest.raises(ApiError) as error:
        parsed(**asked)
    assert error.value.__context__ is None  # no traceback quotes the body
    return error.value.code, error.value.param


def turns(*messages: dict[str, Any], **asked: Any) -> list[tuple[str, str | None]]:
    return [(turn.role, turn.content) for turn in parsed(messages=list(messages), **asked).messages]


def said(role: str, *blocks: dict[str, Any]) -> dict[str, Any]:
    return {"role": role, "content": list(blocks)}


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def call(number: int = 1, **arguments: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": f"toolu_{number}", "name": "weather", "input": arguments}


def result(number: int = 1, **fields: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": f"toolu_{number}", **fields}


def thought(words: str) -> dict[str, Any]:
    return {"type": "thinking", "thinking": words, "signature": "s"}


def test_the_system_prompt_is_the_first_turn() -> None:
    assert turns(HELLO, system="Be short.") == [("system", "Be short."), ("user", "Hello")]
    assert turns(HELLO, system=[text("Be short."), text("Be kind.")])[0] == ("system", "Be short.\nBe kind.")
    assert turns(HELLO, system="") == turns(HELLO, system=[]) == [("user", "Hello")]


def test_a_system_message_may_stand_in_the_middle() -> None:
    assert turns(HELLO, said("system", text("Be short.")), HELLO) == [
        ("user", "Hello"),
        ("system", "Be short."),
        ("user", "Hello"),
    ]


def test_what_claude_code_is_billed_to_is_no_prompt() -> None:
    attribution = text("x-anthropic-billing-header: cc_version=2.1.1; cch=0aaa9;")

    assert turns(HELLO, system=[attribution, text("Be short.")])[0] == ("system", "Be short.")
    assert turns(said("user", attribution))[0][1] == attribution["text"]  # whoever says so elsewhere means it


def test_turns_of_one_role_are_one() -> None:
    answer = {"role": "assistant", "content": "Hi."}
    assert turns(HELLO, HELLO, answer, answer, HELLO) == [
        ("user", "Hello\nHello"),
        ("assistant", "Hi.\nHi."),
        ("user", "Hello"),
    ]


def test_calls_and_results_are_turns_that_name_each_other() -> None:
    request = parsed(
        messages=[
            HELLO,
            said("assistant", text("I look."), call(1, city="Köln"), call(2)),
            said("user", result(1, content="rain"), result(2, content=[text("a"), text("b")]), text("And?")),
        ]
    )

    assert request.messages[1:] == (
        Turn(
            role="assistant",
            content="I look.",
            tool_calls=(
                ToolCall(name="weather", arguments='{"city": "Köln"}', id="toolu_1"),
                ToolCall(name="weather", arguments="{}", id="toolu_2"),
            ),
        ),
        Turn(role="tool", content="rain", tool_call_id="toolu_1"),
        Turn(role="tool", content="a\nb", tool_call_id="toolu_2"),
        Turn(role="user", content="And?"),
    )


def test_a_result_may_be_empty_or_an_error() -> None:
    assert turns(said("user", result(), result(2, content="no city", is_error=True))) == [
        ("tool", ""),
        ("tool", "Error: no city"),
    ]


def test_thinking_comes_back_as_reasoning() -> None:
    answer = said("assistant", thought("Well."), {"type": "redacted_thinking", "data": "x"}, text("Hi."))

    [_, turn, _] = parsed(messages=[HELLO, answer, HELLO]).messages

    assert (turn.content, turn.reasoning) == ("Hi.", "Well.")


@pytest.mark.parametrize(
    ("keep", "left"),
    [
        ({}, [None, None, "3"]),
        ({"keep": "all"}, ["1", "2", "3"]),
        ({"keep": {"type": "all"}}, ["1", "2", "3"]),
        ({"keep": {"type": "thinking_turns", "value": 2}}, [None, "2", "3"]),
        ({"keep": {"type": "thinking_turns", "value": 9}}, ["1", "2", "3"]),
    ],
)
def test_thinking_of_earlier_turns_is_left_out_as_asked(keep: dict[str, Any], left: list[str | None]) -> None:
    messages = [HELLO]
    for number in "123":
        messages += [said("assistant", thought(number), text("Hi.")), HELLO]

    request = parsed(messages=messages, context_management={"edits": [{"type": "clear_thinking_20251015", **keep}]})

    assert [turn.reasoning for turn in request.messages if turn.role == "assistant"] == left


@pytest.mark.parametrize(
    ("choice", "becomes", "parallel"),
    [
        ({"type": "auto"}, ToolChoice(), True),
        ({"type": "any"}, ToolChoice("required"), True),
        ({"type": "any", "disable_parallel_tool_use": True}, ToolChoice("required"), False),
        ({"type": "tool", "name": "weather"}, ToolChoice("required", ("weather",)), True),
        ({"type": "none"}, ToolChoice("none"), True),
    ],
)
def test_a_choice_of_tools_is_one_of_ours(choice: dict[str, Any], becomes: ToolChoice, parallel: bool) -> None:
    request = parsed(tools=[TOOL], tool_choice=choice)

    assert (request.tool_choice, request.parallel_tool_calls) == (becomes, parallel)
    assert [tool.name for tool in request.tools] == ["weather"]


def test_a_form_of_the_answer_may_stand_in_both_places() -> None:
    form = {"type": "json_schema", "schema": {"type": "object"}}

    for request, param in (
        (parsed(output_config={"format": form, "effort": "high"}), "output_config.format.schema"),
        (parsed(output_format=form), "output_format.schema"),
    ):
        assert request.structure is not None
        assert (request.structure.kind, request.structure.param) == ("json_schema", param)
    assert refused(output_format=form, output_config={"format": form}) == ("invalid_request_error", "output_format")


def test_how_tokens_are_drawn_is_as_in_a_chat() -> None:
    assert parsed(temperature=0.5, top_p=0.0, top_k=0).draw == {"temperature": 0.5, "top_p": 1.0, "top_k": 1}
    assert parsed(temperature=1, top_p=1, top_k=0).draw == {"temperature": 1, "top_p": 1, "top_k": 0}


def test_a_count_needs_no_answer() -> None:
    messages = [HELLO, {"role": "assistant", "content": "Hi."}]

    counted = parse_count(json.dumps({"model": "tiny", "messages": messages}).encode())

    assert [turn.role for turn in counted.messages] == ["user", "assistant"]
    with pytest.raises(ApiError) as error:
        parse_count(json.dumps({"model": "tiny", "messages": messages, "max_tokens": 5}).encode())
    assert error.value.param == "max_tokens"


@pytest.mark.parametrize(
    ("asked", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages.[0].role"),
        ({"messages": [{"role": "user"}]}, "messages.[0].content"),
        ({"messages": [HELLO, said("assistant", text("I look."), call())]}, "messages"),
        ({"messages": [said("user", IMAGE)]}, "messages.[0].content.[0]"),
        ({"messages": [said("user", text("x"), {"type": "document"})]}, "messages.[0].content.[1]"),
        ({"messages": [said("user", {"type": "text"})]}, "messages.[0].content.[0].text"),
        ({"messages": [said("user", {**text("x"), "more": 1})]}, "messages.[0].content.[0].more"),
        ({"messages": [{"role": "user", "content": ["x"]}]}, "messages.[0].content.[0]"),
        ({"messages": [said("user", call())]}, "messages.[0].content.[0]"),
        ({"messages": [HELLO, said("assistant", text("x"), result())]}, "messages.[1].content.[1]"),
        ({"messages": [said("assistant", result()), HELLO]}, "messages.[0].content.[0]"),
        ({"messages": [said("system", thought("x")), HELLO]}, "messages.[0].content.[0]"),
        ({"messages": [said("assistant", {**call(), "input": []}), HELLO]}, "messages.[0].content.[0].input"),
        ({"messages": [said("user", text("\ud800"))]}, "messages.[0].content.[0].text"),
        ({"messages": [said("assistant", call(city="\ud800")), HELLO]}, "messages.[0].content.[0].input"),
        ({"system": [IMAGE]}, "system.[0].type"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"temperature": 2.5}, "temperature"),
        ({"stop_sequences": ["x"] * 17}, "stop_sequences"),
        ({"service_tier": "gold"}, "service_tier"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools.[0]"),
        ({"tools": [{"name": "weather"}]}, "tools.[0].input_schema"),
        ({"tools": [{**TOOL, "name": "the weather"}]}, "tools.[0].name"),
        ({"tools": [{**TOOL, "input_schema": {"type": "string"}}]}, "tools.[0].input_schema"),
        ({"tools": [{**TOOL, "allowed_callers": ["code_execution_20250825"]}]}, "tools.[0].allowed_callers.[0]"),
        ({"tools": [TOOL, TOOL]}, "tools.[1].name"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool", "name": "time"}}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool"}}, "tool_choice.name"),
        ({"tools": [TOOL], "tool_choice": {"type": "any", "name": "weather"}}, "tool_choice.name"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"thinking": {"type": "deep"}}, "thinking.type"),
        ({"context_management": {"edits": [{"type": "compact_20260112"}]}}, "context_management.edits.[0].type"),
        ({"mcp_servers": [{}]}, "mcp_servers"),
        ({"container": "c"}, "container"),
        ({"deadline_ms": -1}, "deadline_ms"),
        ({"nonsense": 1}, "nonsense"),
        ({"n": 2}, "n"),
    ],
)
def test_what_is_wrong_is_named(asked: dict[str, Any], param: str) -> None:
    code, named = refused(**asked)

    assert code == "invalid_request_error"
    assert named is not None
    assert named == param or (param == "messages" and named.startswith("messages"))


@pytest.mark.parametrize(
    "asked",
    [
        {"mcp_servers": []},
        {"mcp_servers": None, "container": None, "speed": "standard"},
        {"context_management": {"edits": []}},
        {"context_management": None, "diagnostics": None},
        {"thinking": {"type": "disabled"}},
        {"thinking": {"type": "enabled", "budget_tokens": 1024}},
        {"cache_control": {"type": "ephemeral"}},
        {"messages": [said("assistant", {**call(), "caller": {"type": "direct"}, "toolset_name": None}), HELLO]},
        {"messages": [{"role": "user", "content": [{**text("x"), "citations": None}]}]},
    ],
)
def test_what_asks_for_nothing_more_is_taken(asked: dict[str, Any]) -> None:
    assert parsed(**asked).model == "tiny"


LEAVES = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.sampled_from(["a", "\ud800"])
)
JSON = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
)
BLOCKS = st.lists(
    st.builds(
        lambda block, more: {**block, **more},
        st.sampled_from([text("x"), thought("x"), call(city="Köln"), result(content="x"), IMAGE, {"type": "text"}, {}])
        | st.sampled_from([{**call(), "type": "server_tool_use"}, {**result(content="x"), "type": "a_tool_result"}])
        | st.sampled_from([{"type": "document", "source": {"type": "text", "data": "x"}}, result(content=[IMAGE])]),
        st.dictionaries(
            st.sampled_from(["type", "text", "input", "content", "id", "is_error", "caller"]), JSON, max_size=1
        ),
    ),
    max_size=3,
)
MESSAGES = st.lists(
    st.fixed_dictionaries({"role": st.sampled_from(["user", "assistant", "system", "tool"]), "content": BLOCKS | JSON}),
    max_size=4,
)
FIELDS = ["system", "tools", "tool_choice", "thinking", "output_config", "context_management", "metadata", "stream"]
FIELDS += ["stop_sequences", "max_tokens", "temperature", "top_k", "service_tier", "mcp_servers", "model"]


def status_of(parse: Callable[[bytes], MessagesRequest], body: bytes) -> int:
    try:
        request = parse(body)
        MODEL.chat_prompt(request.messages, request.offered_tools)
    except ApiError as error:
        return error.status
    return 200


@settings(max_examples=200, deadline=None)
@given(messages=MESSAGES | JSON, more=st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=2))
def test_whatever_comes_is_a_prompt_or_refused_by_name(messages: Any, more: dict[str, Any]) -> None:
    body = json.dumps({"model": "tiny", "messages": messages, **more}).encode()

    for parse in (parse_messages, parse_count):
        with suppress(PromptTooLong):
            assert 200 <= status_of(parse, body) < 500


def test_a_large_body_is_read_like_a_small_one() -> None:
    numbers: dict[str, Any] = {"ids": list(range(100)), "places": [0.5, -1, None, True] * 25}
    answer = said("assistant", call(**numbers, words="x" * 20_000))

    request = parse_messages(json.dumps({"model": "tiny", "messages": [HELLO, answer, HELLO]}).encode(), Reading(1_000))

    [spoken] = request.messages[1].tool_calls
    assert json.loads(spoken.arguments) == {**numbers, "words": "x" * 20_000}


def test_many_messages_of_one_role_become_one_turn_at_once_and_not_one_after_the_other() -> None:
    assert calls_of(replace, lambda: parsed(messages=[HELLO] * 500)) == 1
    [turn] = parsed(messages=[HELLO] * 500).messages
    assert turn == Turn(role="user", content="\n".join(["Hello"] * 500))


@pytest.mark.parametrize("block", ["x", {**result(), "content": ["x"]}])
def test_what_is_no_block_is_named(block: object) -> None:
    with pytest.raises(ApiError, match=r"content\.\[0\]` must be an object with a type\.$"):
        parsed(messages=[{"role": "user", "content": [block]}])


def test_a_long_stop_sequence_is_too_long_in_characters() -> None:
    with pytest.raises(ApiError, match="must have at most 1024 characters"):
        parsed(stop_sequences=["x" * 1_025])


def test_an_empty_stop_sequence_asks_for_nothing() -> None:
    assert parsed(stop_sequences=["", "END"]).stop == ("END",)
