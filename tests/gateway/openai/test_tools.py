"""Tools in a chat's body: what is valid, what it becomes, and the field that is named where it is not."""

import json
from typing import Any

import pytest

from fairlane.gateway.dialects.openai.chat_requests import parse_chat
from fairlane.gateway.dialects.openai.reading import Reading
from fairlane.gateway.dialects.openai.requests import ChatRequest, Turn
from fairlane.gateway.dialects.openai.tools import (
    MAX_CALLS,
    MAX_TOOLS,
    MAX_TOOLS_CHARS,
    NO_PARAMETERS,
    Tool,
    ToolCall,
    ToolChoice,
)
from fairlane.gateway.errors import ApiError

SECRET = "what nobody may read"
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER = {"type": "function", "function": {"name": "weather", "description": "d", "parameters": PARAMETERS}}
TIME = {"type": "function", "function": {"name": "time"}}
CALL = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Köln"}'}}


def chat(**fields: Any) -> ChatRequest:
    body = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], **fields}
    return parse_chat(json.dumps(body).encode(), Reading(1000, refuses_unknown=True))


def refused(**fields: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        chat(**fields)
    error = caught.value
    assert (error.status, error.code) == (400, "invalid_request_error")
    assert SECRET not in error.message
    assert error.__context__ is None  # a logged traceback would quote the body
    return error


def tool(**function: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "f", **function}}


def chose(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


def test_tools_arrive_with_their_schemas() -> None:
    asked = chat(tools=[WEATHER, {"type": "function", "function": {"name": "time", "strict": True}}])

    assert asked.tools == (
        Tool(name="weather", description="d", parameters=PARAMETERS),
        Tool(name="time", parameters=NO_PARAMETERS, strict=True),
    )
    assert asked.offered_tools == asked.tools
    assert asked.tool_choice == ToolChoice("auto")
    assert asked.parallel_tool_calls


def test_no_tool_shows_in_a_repr() -> None:
    asked = chat(tools=[tool(description=SECRET)], messages=[{"role": "assistant", "tool_calls": [CALL]}])

    for shown in (asked, *asked.tools, *asked.messages, *asked.messages[0].tool_calls, asked.tool_choice):
        assert SECRET not in repr(shown)
        assert "Köln" not in repr(shown)


@pytest.mark.parametrize(
    ("choice", "expected", "offered"),
    [
        (None, ToolChoice("auto"), ["weather", "time"]),
        ("auto", ToolChoice("auto"), ["weather", "time"]),
        ("none", ToolChoice("none"), []),
        ("required", ToolChoice("required"), ["weather", "time"]),
        ({}, ToolChoice("auto"), ["weather", "time"]),
        ("any", ToolChoice("required"), ["weather", "time"]),
        ({"type": "any"}, ToolChoice("required"), ["weather", "time"]),
        ({"type": "none"}, ToolChoice("none"), []),
        ({"type": "function", "name": "time"}, ToolChoice("required", ("time",)), ["time"]),
        ({"type": "tool", "name": "time"}, ToolChoice("required", ("time",)), ["time"]),
        (chose("time"), ToolChoice("required", ("time",)), ["time"]),
        (
            {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [chose("weather")]}},
            ToolChoice("auto", ("weather",)),
            ["weather"],
        ),
        (
            {
                "type": "allowed_tools",
                "allowed_tools": {"mode": "required", "tools": [chose("time"), chose("weather")]},
            },
            ToolChoice("required", ("time", "weather")),
            ["weather", "time"],
        ),
    ],
)
def test_every_form_of_a_choice_comes_to_one(choice: object, expected: ToolChoice, offered: list[str]) -> None:
    asked = chat(tools=[WEATHER, TIME], tool_choice=choice)

    assert asked.tool_choice == expected
    assert [tool.name for tool in asked.offered_tools] == offered


def test_a_request_without_tools_may_say_that_it_has_none() -> None:
    asked = chat(tools=[], tool_choice="auto", parallel_tool_calls=False)

    assert (asked.tools, asked.offered_tools, asked.parallel_tool_calls) == ((), (), False)


LONG_NUMBERS = {"type": "object", "properties": {"n": {"enum": list(range(50))}}}
AT_FAULT: dict[str, tuple[dict[str, Any], str]] = {
    "no list": ({"tools": {}}, "tools"),
    "an empty tool": ({"tools": [{}]}, "tools.[0].function"),
    "no function": ({"tools": [{"type": "function"}]}, "tools.[0].function"),
    "another kind": ({"tools": [{"type": "web_search"}]}, "tools.[0].type"),
    "a field too many": ({"tools": [{**WEATHER, "x": 1}]}, "tools.[0].x"),
    "no name": ({"tools": [{"type": "function", "function": {}}]}, "tools.[0].function.name"),
    "an empty name": ({"tools": [tool(name="")]}, "tools.[0].function.name"),
    "a long name": ({"tools": [tool(name="f" * 129)]}, "tools.[0].function.name"),
    "a name with a space": ({"tools": [tool(name="a b")]}, "tools.[0].function.name"),
    "a name with a line": ({"tools": [tool(name="ab\n")]}, "tools.[0].function.name"),
    "a name with a mark": ({"tools": [tool(name="</tool_call>")]}, "tools.[0].function.name"),
    "a name beyond ASCII": ({"tools": [tool(name="é")]}, "tools.[0].function.name"),
    "a name that is none": ({"tools": [tool(name=5)]}, "tools.[0].function.name"),
    "a schema that is none": ({"tools": [tool(parameters=[1])]}, "tools.[0].function.parameters"),
    "a schema of text": ({"tools": [tool(parameters={"type": "string"})]}, "tools.[0].function.parameters"),
    "a surrogate": ({"tools": [tool(parameters={"title": "\ud800"})]}, "tools.[0].function.parameters"),
    "a surrogate in words": ({"tools": [tool(description="\udc00")]}, "tools.[0].function.description"),
    "infinity": ({"tools": [tool(parameters={"default": float("inf")})]}, "tools.[0].function.parameters"),
    "a strict that is none": ({"tools": [tool(strict="yes")]}, "tools.[0].function.strict"),
    "two of a name": ({"tools": [WEATHER, TIME, WEATHER]}, "tools.[2].function.name"),
    "too many": ({"tools": [tool(name=f"f{number}") for number in range(MAX_TOOLS + 1)]}, "tools"),
    "a thousand": ({"tools": [tool(name=f"f{number}") for number in range(2000)]}, "tools"),
    "too much": ({"tools": [tool(description=SECRET * (MAX_TOOLS_CHARS // len(SECRET)))]}, "tools"),
    "a choice without tools": ({"tool_choice": "required"}, "tool_choice"),
    "a chosen one without tools": ({"tool_choice": chose("f")}, "tool_choice"),
    "an unknown choice": ({"tools": [WEATHER], "tool_choice": "some"}, "tool_choice"),
    "a choice of no name": ({"tools": [WEATHER], "tool_choice": {"type": "function"}}, "tool_choice"),
    "a choice of another kind": ({"tools": [WEATHER], "tool_choice": {"type": "custom"}}, "tool_choice"),
    "a choice of what is not there": ({"tools": [WEATHER], "tool_choice": chose(SECRET)}, "tool_choice"),
    "allowed: none": (
        {"tools": [WEATHER], "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": []}}},
        "tool_choice",
    ),
    "allowed: what is not there": (
        {
            "tools": [WEATHER],
            "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [chose("f")]}},
        },
        "tool_choice",
    ),
    "allowed: too many": (
        {
            "tools": [WEATHER],
            "tool_choice": {
                "type": "allowed_tools",
                "allowed_tools": {"mode": "auto", "tools": [chose("weather")] * (MAX_TOOLS + 1)},
            },
        },
        "tool_choice",
    ),
    "parallel that is none": ({"parallel_tool_calls": "yes"}, "parallel_tool_calls"),
    "the older choice": ({"function_call": {"name": "f"}}, "function_call"),
}


@pytest.mark.parametrize("case", AT_FAULT)
def test_what_is_wrong_with_tools_is_named(case: str) -> None:
    fields, named = AT_FAULT[case]

    assert refused(**fields).param == named


def test_a_schema_in_a_large_body_keeps_its_long_lists() -> None:
    asked = chat(tools=[tool(parameters=LONG_NUMBERS)], user="u", messages=[{"role": "user", "content": "x" * 20_000}])

    assert asked.tools[0].parameters == LONG_NUMBERS


def test_calls_and_results_of_earlier_turns() -> None:
    asked = chat(
        messages=[
            {"role": "user", "content": "Weather?"},
            {"role": "assistant", "content": None, "tool_calls": [{**CALL, "index": 0}], "refusal": None},
            {"role": "tool", "tool_call_id": "call_1", "content": [{"type": "text", "text": "rain"}]},
            {"role": "assistant", "content": "", "reasoning_content": "hm", "tool_calls": [CALL]},
            {"role": "assistant", "content": "Rain.", "reasoning": "so", "tool_calls": []},
            {"role": "assistant", "function_call": {"name": "time", "arguments": ""}},
            {"role": "function", "name": "time", "content": "noon"},
            {"role": "assistant", "content": None, "refusal": "No."},
            {"role": "assistant", "content": [{"type": "refusal", "refusal": "Never."}]},
        ]
    )

    call = ToolCall(name="weather", arguments='{"city": "Köln"}', id="call_1")
    assert asked.messages == (
        Turn(role="user", content="Weather?"),
        Turn(role="assistant", content=None, tool_calls=(call,)),
        Turn(role="tool", content="rain", tool_call_id="call_1"),
        Turn(role="assistant", content=None, reasoning="hm", tool_calls=(call,)),
        Turn(role="assistant", content="Rain.", reasoning="so"),
        Turn(role="assistant", content=None, tool_calls=(ToolCall(name="time", arguments=""),)),
        Turn(role="function", name="time", content="noon"),
        Turn(role="assistant", content="No."),
        Turn(role="assistant", content="Never."),
    )


MESSAGES_AT_FAULT: dict[str, tuple[dict[str, Any], str]] = {
    "no content": ({"role": "user"}, "content"),
    "calls of a user": ({"role": "user", "content": "", "tool_calls": [CALL]}, "tool_calls"),
    "a call of a user": ({"role": "user", "function_call": {"name": "f", "arguments": ""}}, "function_call"),
    "an empty call": ({"role": "assistant", "tool_calls": [{}]}, "tool_calls.[0].function"),
    "arguments that are no text": (
        {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": [1]}}]},
        "tool_calls.[0].function.arguments",
    ),
    "a surrogate": (
        {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "\ud800"}}]},
        "tool_calls.[0].function.arguments",
    ),
    "too many calls": ({"role": "assistant", "tool_calls": [CALL] * (MAX_CALLS + 1)}, "tool_calls"),
    "another kind of call": ({"role": "assistant", "tool_calls": [{**CALL, "type": "mcp"}]}, "tool_calls.[0].type"),
}


@pytest.mark.parametrize("case", MESSAGES_AT_FAULT)
def test_what_is_wrong_with_calls_is_named(case: str) -> None:
    message, named = MESSAGES_AT_FAULT[case]

    assert refused(messages=[message]).param == f"messages.[0].{named}"


@pytest.mark.parametrize(
    ("arguments", "parsed"),
    [
        ('{"city": "Köln", "n": [1, {"a": null}]}', {"city": "Köln", "n": [1, {"a": None}]}),
        ("", {}),
        (" \n", {}),
        ("[1]", "[1]"),
        ('{"city": "Kö', '{"city": "Kö'),
        ('{"a": "\\ud800"}', '{"a": "\\ud800"}'),
        ('{"a": NaN}', '{"a": NaN}'),
        ("[" * 10_000, "[" * 10_000),
    ],
)
def test_arguments_are_an_object_where_they_spell_one(arguments: str, parsed: object) -> None:
    assert ToolCall(name="f", arguments=arguments).parsed_arguments() == parsed
