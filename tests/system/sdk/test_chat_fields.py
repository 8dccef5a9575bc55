"""Every field of a chat request that the SDK's own types know: honoured, or refused by its name.

A field that a new SDK brings is in no table here, and `test_no_field_is_left_out` says so.
"""

import json
import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletion, ChatCompletionMessageCustomToolCall, completion_create_params

from tests.support.system.sdk import (
    ASKED,
    BANANAS,
    CITY,
    QUESTION,
    SAID,
    OfField,
    answers_to,
    chat,
    chat_chunks,
    content,
    function,
    known_paths,
    output_tokens,
    refused,
    used_paths,
)

pytestmark = pytest.mark.system

CACHED = {"mode": "explicit", "ttl": "30m"}

NEUTRAL: list[OfField] = [
    {"audio": None},
    {"frequency_penalty": 0},
    {"function_call": "none"},
    {"functions": []},
    {"logit_bias": {}},
    {"logprobs": False},
    {"max_tokens": None, "max_completion_tokens": 8},
    {"metadata": {"trace": "7"}},
    {"metadata": {str(number): "" for number in range(17)}},
    {"modalities": ["text"]},
    {"moderation": None},
    {"n": 1},
    {"parallel_tool_calls": False},
    {"prediction": None},
    {"presence_penalty": 0},
    {"prompt_cache_key": "chapter-1"},
    {"prompt_cache_retention": "24h"},
    {"reasoning_effort": "none"},
    {"reasoning_effort": "high"},
    {"response_format": {"type": "text"}},
    {"safety_identifier": "someone"},
    {"seed": 7},
    {"stop": []},
    {"stop": ""},
    {"top_logprobs": 0},
    {"store": False},
    {"stream": False},
    {"tools": [], "tool_choice": "none"},
    {"top_p": 1},
    {"user": "someone"},
    {"verbosity": "medium"},
    {"web_search_options": None},
    {
        "messages": [
            {
                "role": "user",
                "name": "someone",
                "content": [{"type": "text", "text": QUESTION["content"], "prompt_cache_breakpoint": CACHED}],
            }
        ]
    },
    {"tools": [function("weather")], "tool_choice": "none"},
    {
        "prediction": {
            "type": "content",
            "content": [{"type": "text", "text": "Paris", "prompt_cache_breakpoint": CACHED}],
        }
    },
    {"prompt_cache_options": CACHED},
    {"store": True},
    {"verbosity": "low"},
    {"extra_body": {"flavour": "mint"}},
]
"""They leave the answer as it is."""


def of_one_token(answer: ChatCompletion) -> bool:
    logprobs = answer.choices[0].logprobs
    return logprobs is not None and len({entry.token for entry in logprobs.content or ()}) == 1


def of_calls(*names: str) -> Callable[[ChatCompletion], bool]:
    """Exactly these functions are called, for a city that their schema knows."""

    def says(answer: ChatCompletion) -> bool:
        calls = [call for call in answer.choices[0].message.tool_calls or () if call.type == "function"]
        cities = [json.loads(call.function.arguments)["city"] for call in calls]
        return tuple(call.function.name for call in calls) == names and set(cities) <= {"Paris", "Rome"}

    return says


def history(*turns: OfField) -> list[OfField]:
    return [QUESTION, *turns, {"role": "user", "content": "Which country is it in?"}]


CALLED = {"id": "call_1", "type": "function", "function": {"name": "capital", "arguments": '{"city": "Paris"}'}}
WEATHER, TIME = function("weather"), function("time")
NAMED = {"type": "function", "function": {"name": "time"}}
LOOK_UP = {"type": "custom", "custom": {"name": "look_up"}}
LETTERS = {"type": "grammar", "grammar": {"definition": "[a-c]{3}", "syntax": "regex"}}


def of_letters(answer: ChatCompletion) -> bool:
    calls = answer.choices[0].message.tool_calls or []
    inputs = [call.custom.input for call in calls if isinstance(call, ChatCompletionMessageCustomToolCall)]
    return len(inputs) == len(calls) == 1 and re.fullmatch("[a-c]{3}", inputs[0]) is not None


HONOURED: list[tuple[OfField, Callable[[ChatCompletion], bool]]] = [
    ({"max_tokens": 3}, lambda answer: output_tokens(answer) == 3),
    ({"max_tokens": None, "max_completion_tokens": 3}, lambda answer: output_tokens(answer) == 3),
    ({"n": 3}, lambda answer: [choice.index for choice in answer.choices] == [0, 1, 2]),
    ({"stop": "Paris"}, lambda answer: content(answer) == "The capital of France is "),
    ({"stop": ["nowhere", "France"]}, lambda answer: content(answer) == "The capital of "),
    ({"logit_bias": {"260": 100}, "logprobs": True}, of_one_token),
    ({"messages": BANANAS, "max_tokens": 16, "frequency_penalty": 2}, lambda answer: output_tokens(answer) < 16),
    (
        {"logit_bias": {"260": 10}, "presence_penalty": 2, "max_tokens": 12},
        lambda answer: "the the" not in content(answer),
    ),
    ({"temperature": 2, "seed": 1}, lambda answer: content(answer) != SAID),
    ({"temperature": 2, "top_p": 0}, lambda answer: content(answer) == SAID),
    ({"logprobs": True, "top_logprobs": 2}, lambda answer: answer.choices[0].logprobs is not None),
    ({"service_tier": "flex"}, lambda answer: answer.service_tier == "flex"),
    ({"service_tier": "priority"}, lambda answer: answer.service_tier == "priority"),
    ({"service_tier": "fast"}, lambda answer: answer.service_tier == "priority"),
    ({"service_tier": "auto"}, lambda answer: answer.service_tier == "default"),
    ({"service_tier": "default"}, lambda answer: answer.service_tier == "default"),
    ({"service_tier": "scale"}, lambda answer: answer.service_tier == "default"),
    ({"response_format": {"type": "json_object"}, "max_tokens": 2}, lambda answer: content(answer).startswith("{")),
    (
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "place", "description": "Of a city.", "schema": CITY, "strict": True},
            },
            "max_tokens": 24,
        },
        lambda answer: json.loads(content(answer)).keys() == {"city"},
    ),
    ({"tools": [WEATHER], "tool_choice": "required", "max_tokens": 60}, of_calls("weather")),
    ({"tools": [WEATHER, TIME], "tool_choice": NAMED, "max_tokens": 60}, of_calls("time")),
    (
        {
            "tools": [{"type": "custom", "custom": {"name": "look_up", "description": "x", "format": LETTERS}}],
            "tool_choice": LOOK_UP,
            "max_tokens": 60,
        },
        of_letters,
    ),
    (
        {
            "functions": [{"name": "capital", "description": "Of a country.", "parameters": CITY}],
            "function_call": {"name": "capital"},
            "max_tokens": 60,
        },
        lambda answer: (call := answer.choices[0].message.function_call) is not None and call.name == "capital",
    ),
    (
        {
            "tools": [WEATHER, function("time", strict=True)],
            "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [NAMED]}},
            "parallel_tool_calls": False,
            "max_tokens": 60,
        },
        of_calls("time"),
    ),
    (
        {
            "messages": [
                {"role": "developer", "name": "house", "content": "Answer in one sentence."},
                {"role": "system", "name": "house", "content": [{"type": "text", "text": "Be kind."}]},
                QUESTION,
            ]
        },
        lambda answer: "Paris" in content(answer),
    ),
    (
        {"messages": history({"role": "assistant", "name": "guide", "content": "Paris."})},
        lambda answer: "France" in content(answer),
    ),
    (
        {"messages": history({"role": "assistant", "content": [{"type": "refusal", "refusal": "I will not."}]})},
        lambda answer: bool(content(answer)),
    ),
    (
        {"messages": history({"role": "assistant", "content": None, "refusal": "I will not."})},
        lambda answer: bool(content(answer)),
    ),
    (
        {
            "messages": [
                QUESTION,
                {"role": "assistant", "tool_calls": [CALLED]},
                {"role": "tool", "tool_call_id": "call_1", "content": [{"type": "text", "text": "Paris"}]},
            ]
        },
        lambda answer: bool(content(answer)),
    ),
    (
        {
            "messages": [
                QUESTION,
                {"role": "assistant", "content": None, "function_call": CALLED["function"]},
                {"role": "function", "name": "capital", "content": "Paris"},
            ]
        },
        lambda answer: "Paris" in content(answer),
    ),
    (
        {
            "messages": history(
                {
                    "role": "assistant",
                    "tool_calls": [{"id": "c", "type": "custom", "custom": {"name": "look_up", "input": "x"}}],
                }
            )
        },
        lambda answer: answer.usage is not None and answer.usage.prompt_tokens > 50,
    ),
    ({"messages": [{"role": "user", "content": None}]}, lambda answer: content(answer) != SAID),
]
"""They change the answer: what it then is."""


def part(kind: str, value: object) -> OfField:
    return {"type": kind, kind: value, "prompt_cache_breakpoint": CACHED}


def told(*parts: OfField) -> OfField:
    return {"messages": [{"role": "user", "content": [*parts]}]}


REFUSED: list[tuple[str, OfField]] = [
    ("audio", {"audio": {"format": "mp3", "voice": {"id": "alloy"}}}),
    ("function_call", {"function_call": {"name": "capital"}}),
    ("modalities", {"modalities": ["text", "audio"]}),
    ("moderation", {"moderation": {"model": "m", "policy": {"input": {"mode": "b"}, "output": {"mode": "b"}}}}),
    (
        "web_search_options",
        {
            "web_search_options": {
                "search_context_size": "low",
                "user_location": {
                    "type": "approximate",
                    "approximate": {"city": "Paris", "country": "FR", "region": "Paris", "timezone": "Europe/Paris"},
                },
            }
        },
    ),
    ("messages.[0].content", told(part("image_url", {"url": "data:image/png;base64,AA==", "detail": "low"}))),
    ("messages.[0].content", told(part("input_audio", {"data": "AA==", "format": "wav"}))),
    ("messages.[0].content", told(part("file", {"file_data": "AA==", "file_id": "f", "filename": "a.pdf"}))),
    ("messages.[1].audio", {"messages": history({"role": "assistant", "audio": {"id": "a"}})}),
    ("tool_choice", {"tools": [WEATHER], "tool_choice": LOOK_UP}),
]
"""They ask for what is not served: the field that the refusal names."""

WRONG: list[tuple[str, OfField]] = [
    ("frequency_penalty", {"frequency_penalty": 2.1}),
    ("logit_bias", {"logit_bias": {"Paris": 1}}),
    ("logit_bias", {"logit_bias": {"999999": 1}}),
    ("max_tokens", {"max_tokens": 0}),
    ("max_tokens", {"max_tokens": 4, "max_completion_tokens": 5}),
    ("messages", {"messages": []}),
    ("messages.[0].role", {"messages": [{"role": "king", "content": "Hello"}]}),
    ("messages.[0].content", {"messages": [{"role": "user"}]}),
    ("n", {"n": 0}),
    ("n", {"n": 17}),
    ("presence_penalty", {"presence_penalty": "high"}),
    ("response_format.json_schema", {"response_format": {"type": "json_schema"}}),
    ("response_format.type", {"response_format": {"type": "xml"}}),
    ("seed", {"seed": 0.5}),
    ("service_tier", {"service_tier": "free"}),
    ("stop", {"stop": ["a"] * 17}),
    ("stream_options", {"stream_options": {"include_obfuscation": True, "include_usage": True}}),
    ("temperature", {"temperature": -0.1}),
    ("tool_choice", {"tool_choice": "required"}),
    ("tool_choice", {"tools": [WEATHER], "tool_choice": NAMED}),
    ("tools.[1].function.name", {"tools": [WEATHER, WEATHER]}),
    ("tools.[0].function.name", {"tools": [function("what is it?")]}),
    ("tools.[0].function.parameters", {"tools": [function("weather", {"type": "array"})]}),
    ("top_logprobs", {"top_logprobs": 2}),
    ("top_logprobs", {"logprobs": True, "top_logprobs": 21}),
    ("top_p", {"top_p": 1.5}),
]
"""They are served, but not so: the field that the refusal names."""


def named(case: Any) -> str:
    return json.dumps(case)[:60] if isinstance(case, dict) else ""


def test_no_field_is_left_out() -> None:
    kinds = completion_create_params
    known = known_paths(kinds.CompletionCreateParamsNonStreaming) | known_paths(kinds.CompletionCreateParamsStreaming)
    cases = [ASKED, *NEUTRAL, *(fields for fields, _ in HONOURED), *(fields for _, fields in (*REFUSED, *WRONG))]

    assert known - set().union(*map(used_paths, cases)) == set()


@pytest.fixture(scope="module")
def answer_to(client: openai.OpenAI) -> Iterator[Callable[[OfField], ChatCompletion]]:
    with answers_to([*NEUTRAL, *(fields for fields, _ in HONOURED)], partial(chat, client)) as asked:
        yield asked


@pytest.mark.parametrize("fields", NEUTRAL, ids=named)
def test_a_field_that_asks_for_nothing_changes_nothing(
    answer_to: Callable[[OfField], ChatCompletion], fields: OfField
) -> None:
    assert content(answer_to(fields)) == SAID


@pytest.mark.parametrize(("fields", "says"), HONOURED, ids=named)
def test_a_field_is_honoured(
    answer_to: Callable[[OfField], ChatCompletion], fields: OfField, says: Callable[[ChatCompletion], bool]
) -> None:
    answer = answer_to(fields)

    assert says(answer), answer


@pytest.mark.parametrize(("param", "fields"), [*REFUSED, *WRONG], ids=named)
def test_a_field_is_refused_by_its_name(client: openai.OpenAI, param: str, fields: OfField) -> None:
    error = refused(chat, client, **fields)

    assert (error.status_code, error.param) == (400, param)
    assert isinstance(error, openai.BadRequestError)
    assert error.response.headers["x-should-retry"] == "false"


@pytest.mark.parametrize("obfuscates", [True, False])
def test_a_stream_can_be_asked_for_its_usage_and_for_no_obfuscation(client: openai.OpenAI, obfuscates: bool) -> None:
    chunks = chat_chunks(client, stream_options={"include_usage": True, "include_obfuscation": obfuscates})

    assert chunks[-1].usage is not None
