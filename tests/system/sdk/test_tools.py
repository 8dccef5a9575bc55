"""Calls of tools, which the grammar makes sure of: whole, streamed, parsed, and answered."""

import json
from typing import Any, Literal

import openai
import pytest
from openai.types.chat import ChatCompletion, ChatCompletionMessageFunctionToolCall
from pydantic import BaseModel

from tests.support.system.harness import Server
from tests.support.system.sdk import ASKED, OfField, chat, chat_chunks, content, function, refused, texts

pytestmark = [pytest.mark.system, pytest.mark.anyio]

WEATHER, TIME = function("weather"), function("time")
LONG = 60
"""Tokens: a call of these tools is over before."""


class Weather(BaseModel):
    """What the weather is like."""

    city: Literal["Paris", "Rome"]
    celsius: bool


def calls(answer: ChatCompletion, index: int = 0) -> list[ChatCompletionMessageFunctionToolCall]:
    found = answer.choices[index].message.tool_calls or []
    return [call for call in found if isinstance(call, ChatCompletionMessageFunctionToolCall)]


def forced(client: openai.OpenAI, *tools: OfField, **fields: Any) -> ChatCompletion:
    return chat(client, tools=list(tools), max_tokens=LONG, **{"tool_choice": "required", **fields})


def names(answer: ChatCompletion) -> list[str]:
    return [call.function.name for call in calls(answer)]


@pytest.fixture(scope="module")
def called(client: openai.OpenAI) -> ChatCompletion:
    return forced(client, WEATHER)


def test_a_forced_call_keeps_to_its_schema(called: ChatCompletion) -> None:
    (call,) = calls(called)

    assert call.type == "function"
    assert call.id.startswith("call_")
    assert call.function.name == "weather"
    assert json.loads(call.function.arguments)["city"] in ("Paris", "Rome")


def test_an_answer_of_calls_has_no_content_and_says_why_it_ended(called: ChatCompletion) -> None:
    assert called.choices[0].message.content is None
    assert called.choices[0].finish_reason == "tool_calls"


def test_a_named_function_is_called(client: openai.OpenAI) -> None:
    named = {"type": "function", "function": {"name": "time"}}

    assert names(forced(client, WEATHER, TIME, tool_choice=named)) == ["time"]


def test_one_call_at_a_time_where_no_more_are_wanted(client: openai.OpenAI) -> None:
    answer = forced(client, WEATHER, TIME, parallel_tool_calls=False)

    assert len(calls(answer)) == 1
    assert answer.choices[0].finish_reason == "tool_calls"


def test_calls_in_parallel_each_have_an_id(client: openai.OpenAI) -> None:
    answer = forced(client, WEATHER, TIME, messages=[{"role": "user", "content": "Weather and time in Paris and Rome"}])

    assert {*names(answer)} <= {"weather", "time"}
    assert len(calls(answer)) >= 2
    assert len({call.id for call in calls(answer)}) == len(calls(answer))


def test_only_allowed_tools_are_called(client: openai.OpenAI) -> None:
    allowed = {"mode": "required", "tools": [{"type": "function", "function": {"name": "time"}}]}
    answer = forced(client, WEATHER, TIME, tool_choice={"type": "allowed_tools", "allowed_tools": allowed})

    assert {*names(answer)} == {"time"}


def test_none_means_none(client: openai.OpenAI) -> None:
    answer = chat(client, tools=[WEATHER], tool_choice="none")

    assert calls(answer) == []
    assert "Paris" in content(answer)


@pytest.mark.parametrize("strict", [True, False])
def test_the_model_may_choose(client: openai.OpenAI, strict: bool) -> None:
    answer = chat(client, tools=[function("weather", strict=strict)], tool_choice="auto", max_tokens=LONG)

    assert answer.choices[0].finish_reason in ("tool_calls", "stop", "length")
    if strict:
        assert all(json.loads(call.function.arguments)["city"] in ("Paris", "Rome") for call in calls(answer))


def test_every_choice_calls(client: openai.OpenAI) -> None:
    answer = forced(client, WEATHER, n=3, temperature=1, seed=4)

    assert [len(calls(answer, index)) for index in range(3)] == [1, 1, 1]
    assert len({call.id for index in range(3) for call in calls(answer, index)}) == 3


def closed(**properties: Any) -> dict[str, Any]:
    """The schema of an object with exactly these."""
    names = [*properties]
    return {"type": "object", "properties": properties, "required": names, "additionalProperties": False}


TRUTHS = {"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 1}
REFERRING = {**closed(to={"$ref": "#/$defs/city"}), "$defs": {"city": {"enum": ["Paris", "Rome"]}}}


@pytest.mark.parametrize(
    ("schema", "arguments"),
    [
        pytest.param(closed(), [{}], marks=pytest.mark.thorough),
        pytest.param(closed(n={"const": 3}), [{"n": 3}], marks=pytest.mark.thorough),
        (REFERRING, [{"to": "Paris"}, {"to": "Rome"}]),
        pytest.param(closed(list=TRUTHS), [{"list": [True]}, {"list": [False]}], marks=pytest.mark.thorough),
    ],
    ids=["none", "a number", "a reference", "a list"],
)
def test_arguments_of_any_schema(client: openai.OpenAI, schema: dict[str, Any], arguments: list[Any]) -> None:
    (call,) = calls(forced(client, function("any", schema)))

    assert json.loads(call.function.arguments) in arguments


def test_a_function_without_parameters_is_called_with_none(client: openai.OpenAI) -> None:
    (call,) = calls(forced(client, {"type": "function", "function": {"name": "now"}}))

    assert json.loads(call.function.arguments) == {}


def test_a_function_that_lists_its_arguments_is_called_with_these(client: openai.OpenAI) -> None:
    listed = {"type": "object", "properties": {"n": {"const": 3}}, "required": ["n"]}
    (call,) = calls(forced(client, function("count", listed)))

    assert json.loads(call.function.arguments) == {"n": 3}


def test_a_strict_function_whose_schema_cannot_be_kept_to_is_refused(client: openai.OpenAI) -> None:
    schema = {"type": "object", "properties": {"x": {"not": {"type": "string"}}}}
    error = refused(chat, client, tools=[function("weather", schema, strict=True)])

    assert (error.status_code, error.param) == (400, "tools.[0].function.parameters.properties.x.not")


def test_a_stream_tells_a_call_piece_by_piece(client: openai.OpenAI, called: ChatCompletion) -> None:
    chunks = chat_chunks(client, tools=[WEATHER], tool_choice="required", max_tokens=LONG)
    deltas = [call for chunk in chunks for choice in chunk.choices for call in choice.delta.tool_calls or ()]

    assert {delta.index for delta in deltas} == {0}
    assert [delta.id is not None for delta in deltas] == [True] + [False] * (len(deltas) - 1)
    arguments = "".join(delta.function.arguments or "" for delta in deltas if delta.function)
    assert arguments == calls(called)[0].function.arguments
    assert texts(chunks) == ""
    assert chunks[-1].choices[0].finish_reason == "tool_calls"


def test_the_helper_tells_arguments_as_events(client: openai.OpenAI) -> None:
    asked = {**ASKED, "max_tokens": LONG, "tool_choice": "required"}
    tool = openai.pydantic_function_tool(Weather)
    with client.chat.completions.stream(**asked, tools=[tool]) as stream:
        events = list(stream)
        final = stream.get_final_completion()

    pieces = [event for event in events if event.type == "tool_calls.function.arguments.delta"]
    done = [event for event in events if event.type == "tool_calls.function.arguments.done"]
    assert "".join(event.arguments_delta for event in pieces) == done[0].arguments
    assert isinstance(done[0].parsed_arguments, Weather)
    parsed = final.choices[0].message.tool_calls
    assert parsed is not None
    assert parsed[0].function.parsed_arguments == done[0].parsed_arguments


def test_calls_are_parsed_into_models(client: openai.OpenAI) -> None:
    asked = {**ASKED, "max_tokens": LONG, "tool_choice": "required"}
    answer = client.chat.completions.parse(**asked, tools=[openai.pydantic_function_tool(Weather)])

    found = answer.choices[0].message.tool_calls
    assert found is not None
    assert found[0].function.name == "Weather"
    assert isinstance(found[0].function.parsed_arguments, Weather)


async def test_the_asynchronous_client_parses_calls(server: Server, key: str) -> None:
    asked = {**ASKED, "max_tokens": LONG, "tool_choice": "required"}
    async with server.async_sdk(key, max_retries=0) as client:
        answer = await client.chat.completions.parse(**asked, tools=[openai.pydantic_function_tool(Weather)])

    found = answer.choices[0].message.tool_calls
    assert found is not None
    assert isinstance(found[0].function.parsed_arguments, Weather)


def test_a_model_for_answers_beside_one_for_calls(client: openai.OpenAI) -> None:
    asked = {**ASKED, "max_tokens": LONG, "tools": [openai.pydantic_function_tool(Weather)]}
    answer = client.chat.completions.parse(**asked, response_format=Weather, parallel_tool_calls=False)

    message = answer.choices[0].message
    told = message.parsed or (message.tool_calls or [])[0].function.parsed_arguments
    assert isinstance(told, Weather)


def test_a_call_is_answered_and_the_model_goes_on(client: openai.OpenAI, called: ChatCompletion) -> None:
    message = called.choices[0].message
    result = {"role": "tool", "tool_call_id": calls(called)[0].id, "content": json.dumps({"sky": "clear"})}
    answer = chat(client, messages=[*ASKED["messages"], message, result], tools=[WEATHER], max_tokens=16)

    assert answer.choices[0].finish_reason in ("stop", "length", "tool_calls")
    assert answer.usage is not None
    assert called.usage is not None
    assert answer.usage.prompt_tokens > called.usage.prompt_tokens


def test_a_call_that_is_answered_can_be_followed_by_another(client: openai.OpenAI, called: ChatCompletion) -> None:
    messages = [*ASKED["messages"]]
    answer = called
    for _ in range(2):
        messages.append(answer.choices[0].message.model_dump(exclude_none=True))
        messages += [{"role": "tool", "tool_call_id": call.id, "content": "clear"} for call in calls(answer)]
        answer = forced(client, WEATHER, messages=messages)

    assert len(calls(answer)) == 1


def test_a_cut_call_says_so_and_tells_no_mark_of_the_model(client: openai.OpenAI) -> None:
    """Wherever it is cut: nothing but the call is told, once its name is."""
    for most in (22, 24, 26):
        answer = chat(client, tools=[WEATHER], tool_choice="required", max_tokens=most)

        if calls(answer):
            assert answer.choices[0].message.content is None, most


def test_a_cut_call_cannot_be_parsed(client: openai.OpenAI) -> None:
    asked = {**ASKED, "max_tokens": 18, "tool_choice": "required"}
    with pytest.raises(openai.LengthFinishReasonError):
        client.chat.completions.parse(**asked, tools=[openai.pydantic_function_tool(Weather)])


def test_logprobs_beside_calls(client: openai.OpenAI) -> None:
    answer = forced(client, WEATHER, logprobs=True)

    assert answer.choices[0].logprobs is not None
    assert answer.usage is not None
    assert len(answer.choices[0].logprobs.content or ()) == answer.usage.completion_tokens


def test_a_tool_is_called_by_its_schema_and_no_other(client: openai.OpenAI) -> None:
    other = function("time", closed(town={"const": "Oslo"}))
    answer = forced(client, WEATHER, other, parallel_tool_calls=False, temperature=1, seed=5)

    (call,) = calls(answer)
    assert json.loads(call.function.arguments).keys() == ({"city"} if call.function.name == "weather" else {"town"})
