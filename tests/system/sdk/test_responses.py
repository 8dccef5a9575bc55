"""Responses: every field that the SDK knows, forms, conversations that go on from what was kept, and errors."""

import json
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Literal, get_type_hints

import openai
import pytest
from openai.types.responses import Response, response_create_params
from pydantic import BaseModel

from tests.support.system.harness import MODEL, Server
from tests.support.system.sdk import CITY, QUESTION, RESPONDED, SAID, OfField, answers_to, chat, refused, respond
from tests.system.sdk.conftest import NewKey, NewTenant

pytestmark = [pytest.mark.system, pytest.mark.anyio]

WEATHER: OfField = {"type": "function", "name": "weather", "parameters": CITY}
TIME: OfField = {"type": "function", "name": "time", "parameters": CITY}
NAMED = {"type": "function", "name": "time"}
WHERE = "Which country is it in?"


class Place(BaseModel):
    city: Literal["Paris", "Rome"]
    large: bool


def tokens(answer: Response) -> tuple[int, int]:
    """In and out; how many of the prompt's came from the cache is chance."""
    assert answer.usage is not None
    return answer.usage.input_tokens, answer.usage.output_tokens


def called(answer: Response) -> list[str]:
    """The names of the functions that are called, each for a city that their schema knows."""
    calls = [item for item in answer.output if item.type == "function_call"]
    assert {json.loads(call.arguments)["city"] for call in calls} <= {"Paris", "Rome"}
    return [call.name for call in calls]


def form(**more: Any) -> OfField:
    return {
        "text": {"format": {"type": "json_schema", "name": "place", "schema": CITY, **more}},
        "max_output_tokens": 24,
    }


def said(*items: Any) -> OfField:
    """A conversation of these items between two questions."""
    return {"input": [QUESTION, *items, {"role": "user", "content": WHERE}]}


NEUTRAL: list[OfField] = [
    {"background": False},
    {"context_management": []},
    {"include": []},
    {"include": ["file_search_call.results", "reasoning.encrypted_content"]},
    {"input": [QUESTION]},
    {"input": [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": QUESTION["content"]}]}]},
    {"max_tool_calls": 3},
    {"metadata": {"trace": "7"}},
    {"metadata": {str(number): "" for number in range(17)}},
    {"text": {"verbosity": "low"}},
    {"parallel_tool_calls": False},
    {"prompt_cache_key": "chapter-1", "prompt_cache_retention": "24h"},
    {"reasoning": {"effort": "none"}},
    {"reasoning": {"effort": "high"}},
    {"safety_identifier": "someone", "user": "someone"},
    {"store": False, "stream": False},
    {"text": {"format": {"type": "text"}, "verbosity": "medium"}},
    {"tools": [], "tool_choice": "auto"},
    {"tools": [WEATHER], "tool_choice": "none"},
    {"top_p": 1, "top_logprobs": 0},
    {"truncation": "disabled"},
    {"truncation": "auto"},
    {
        **dict.fromkeys(("access_programs", "conversation", "image", "moderation", "prompt", "prompt_cache_options")),
        **dict.fromkeys(("instructions", "previous_response_id", "stream_options")),
    },
    {"prompt_cache_options": {"mode": "explicit"}},
    {"extra_body": {"flavour": "mint"}},
]
"""They leave the answer as it is."""

HONOURED: list[tuple[OfField, Callable[[Response], bool]]] = [
    ({"max_output_tokens": 3}, lambda answer: (answer.status, tokens(answer)[1]) == ("incomplete", 3)),
    ({"temperature": 2, "extra_body": {"seed": 1}}, lambda answer: answer.output_text != SAID),
    ({"temperature": 2, "top_p": 0}, lambda answer: answer.output_text == SAID),
    ({"service_tier": "flex"}, lambda answer: answer.service_tier == "flex"),
    ({"service_tier": "priority"}, lambda answer: answer.service_tier == "priority"),
    ({"instructions": "Answer in one sentence."}, lambda answer: "Paris" in answer.output_text),
    (form(strict=True), lambda answer: json.loads(answer.output_text).keys() == {"city"}),
    (form(), lambda answer: json.loads(answer.output_text).keys() == {"city"}),
    ({"text": {"format": {"type": "json_object"}}}, lambda answer: answer.output_text.startswith("{")),
    ({"tools": [WEATHER], "tool_choice": "required", "max_output_tokens": 60}, lambda a: {*called(a)} == {"weather"}),
    ({"tools": [WEATHER, TIME], "tool_choice": NAMED, "max_output_tokens": 60}, lambda a: {*called(a)} == {"time"}),
    (
        {
            "tools": [WEATHER, {**TIME, "strict": True}],
            "tool_choice": {"type": "allowed_tools", "mode": "required", "tools": [NAMED]},
            "parallel_tool_calls": False,
            "max_output_tokens": 60,
        },
        lambda answer: called(answer) == ["time"],
    ),
    (said({"role": "assistant", "content": "Paris."}), lambda answer: "France" in answer.output_text),
    (
        {"input": [{"role": "developer", "content": "Answer in one sentence."}, QUESTION]},
        lambda answer: "Paris" in answer.output_text,
    ),
]
"""They change the answer: what it then is."""

REFUSED: list[tuple[str, OfField]] = [
    ("access_programs", {"access_programs": ["research"]}),
    ("background", {"background": True}),
    ("context_management", {"context_management": [{"type": "compaction"}]}),
    ("image", {"image": {"size": "large"}}),
    ("input.[0].content", {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "data:,"}]}]}),
    ("moderation", {"moderation": {"model": "m"}}),
    ("prompt", {"prompt": {"id": "pmpt_1"}}),
    ("tools.[0]", {"tools": [{"type": "web_search"}]}),
]
"""They ask for what is not served: the field that the refusal names."""

WRONG: list[tuple[str, OfField]] = [
    ("input", {"input": []}),
    ("input", {"input": openai.omit}),
    ("input", {"input": "word " * 9_000, "max_output_tokens": openai.omit}),
    ("max_output_tokens", {"max_output_tokens": 0}),
    ("temperature", {"temperature": 3}),
    ("text.format.schema", {"text": {"format": {"type": "json_schema", "name": "x", "schema": {"not": {}}}}}),
    ("tool_choice", {"tool_choice": "required"}),
    ("tool_choice", {"tools": [WEATHER], "tool_choice": NAMED}),
    ("top_logprobs", {"top_logprobs": 21}),
    ("top_p", {"top_p": 1.5}),
]
"""They are served, but not so: the field that the refusal names."""


def named(case: Any) -> str:
    return json.dumps(case, default=lambda _: "omitted")[:60] if isinstance(case, dict) else ""


def test_no_field_is_left_out() -> None:
    known = get_type_hints(response_create_params.ResponseCreateParamsNonStreaming)
    cases = [RESPONDED, *NEUTRAL, *(fields for fields, _ in HONOURED), *(fields for _, fields in (*REFUSED, *WRONG))]

    assert known.keys() - set().union(*cases) == set()


@pytest.fixture(scope="module")
def answer_to(client: openai.OpenAI) -> Iterator[Callable[[OfField], Response]]:
    with answers_to([*NEUTRAL, *(fields for fields, _ in HONOURED)], partial(respond, client)) as asked:
        yield asked


@pytest.mark.parametrize("fields", NEUTRAL, ids=named)
def test_a_field_that_asks_for_nothing_changes_nothing(
    answer_to: Callable[[OfField], Response], fields: OfField
) -> None:
    answer = answer_to(fields)

    assert (answer.status, answer.output_text) == ("completed", SAID)


@pytest.mark.parametrize(("fields", "says"), HONOURED, ids=named)
def test_a_field_is_honoured(
    answer_to: Callable[[OfField], Response], fields: OfField, says: Callable[[Response], bool]
) -> None:
    answer = answer_to(fields)

    assert says(answer), answer


@pytest.mark.parametrize(("param", "fields"), [*REFUSED, *WRONG], ids=named)
def test_a_field_is_refused_by_its_name(client: openai.OpenAI, param: str, fields: OfField) -> None:
    error = refused(respond, client, **fields)

    assert isinstance(error, openai.BadRequestError)
    assert (error.param, error.response.headers["x-should-retry"]) == (param, "false")


def test_a_response_is_what_its_type_says(client: openai.OpenAI) -> None:
    answer = respond(client, metadata={"a": "b"}, instructions="")

    read = Response.model_validate(answer.model_dump(by_alias=True), strict=True)
    (message,) = read.output
    assert (read.object, read.model, read.metadata, message.type) == ("response", MODEL, {"a": "b"}, "message")
    assert read.usage is not None
    assert read.usage.total_tokens == read.usage.input_tokens + read.usage.output_tokens


def test_logprobs_are_those_of_a_chat(client: openai.OpenAI) -> None:
    answer = respond(client, include=["message.output_text.logprobs"], top_logprobs=2)
    chosen: Any = chat(client, logprobs=True, top_logprobs=2)

    told: Any = answer.output[0]
    here = [(each.token, each.logprob, len(each.top_logprobs)) for each in told.content[0].logprobs]
    there = [(each.token, each.logprob, len(each.top_logprobs)) for each in chosen.choices[0].logprobs.content]
    assert here == there


def test_an_answer_is_parsed_into_a_model(client: openai.OpenAI) -> None:
    answer = client.responses.parse(**{**RESPONDED, "max_output_tokens": 40}, text_format=Place)

    assert isinstance(answer.output_parsed, Place)


async def test_the_asynchronous_client_parses_too(server: Server, key: str) -> None:
    asked = {**RESPONDED, "max_output_tokens": 40}
    async with server.async_sdk(key, max_retries=0) as client:
        answer = await client.responses.parse(**asked, text_format=Place)
        async with client.responses.stream(**asked, text_format=Place) as stream:
            streamed = await stream.get_final_response()

    assert isinstance(answer.output_parsed, Place)
    assert streamed.output_parsed == answer.output_parsed


def test_a_call_is_answered_and_the_model_goes_on(client: openai.OpenAI) -> None:
    """By its items, and by the id of the response that called."""
    asked: OfField = {"tools": [WEATHER], "max_output_tokens": 60}
    first = respond(client, **asked, tool_choice="required", parallel_tool_calls=False)
    (call,) = first.output
    assert call.type == "function_call"
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "It rains."}
    items = [QUESTION, call.model_dump(exclude_none=True), result]

    by_items = respond(client, **asked, input=items)
    by_id = respond(client, **asked, input=[result], previous_response_id=first.id)

    assert (by_items.output_text, tokens(by_items)) == (by_id.output_text, tokens(by_id))


def test_tools_of_a_model_are_called_with_it(client: openai.OpenAI) -> None:
    asked = {**RESPONDED, "max_output_tokens": 60, "tool_choice": "required"}
    answer = client.responses.parse(**asked, tools=[openai.pydantic_function_tool(Place)])

    calls = [item for item in answer.output if item.type == "function_call"]
    assert calls
    assert all(isinstance(call.parsed_arguments, Place) for call in calls)


def test_a_conversation_goes_on_from_what_was_kept_until_that_is_deleted(client: openai.OpenAI) -> None:
    first = respond(client)
    second = respond(client, input=WHERE, previous_response_id=first.id)
    whole = respond(client, **said({"role": "assistant", "content": SAID}))
    listed = [item.type for item in client.responses.input_items.list(second.id, order="asc")]

    assert (second.output_text, tokens(second)) == (whole.output_text, tokens(whole))
    assert listed == ["message"] * 3
    assert client.responses.retrieve(first.id) == first
    client.responses.delete(first.id)
    for call in (
        lambda: client.responses.retrieve(first.id),
        lambda: client.responses.delete(first.id),
        lambda: respond(client, previous_response_id=first.id),
    ):
        assert isinstance(refused(call), openai.NotFoundError)
    assert client.responses.retrieve(second.id) == second


def test_what_is_not_to_be_kept_or_is_anothers_is_not_found(
    server: Server, client: openai.OpenAI, new_key: NewKey
) -> None:
    passing, kept = respond(client, store=False, max_output_tokens=1), respond(client, max_output_tokens=1)

    assert isinstance(refused(client.responses.retrieve, passing.id), openai.NotFoundError)
    with server.sdk(new_key(), max_retries=0) as stranger:
        assert isinstance(refused(stranger.responses.retrieve, kept.id), openai.NotFoundError)


def test_what_cannot_be_done_with_a_response_is_refused(client: openai.OpenAI) -> None:
    kept = respond(client, max_output_tokens=1)

    assert refused(client.responses.cancel, kept.id).status_code == 404
    assert refused(client.responses.retrieve, kept.id, stream=True).param == "stream"


ERRORS: list[tuple[OfField, OfField, type[openai.APIStatusError], str]] = [
    ({}, {"model": "gpt-4"}, openai.NotFoundError, "model_not_found"),
    ({}, {"input": "word " * 9_000}, openai.BadRequestError, "context_length_exceeded"),
    ({"models": ["another"]}, {}, openai.PermissionDeniedError, "model_not_allowed"),
    ({"limits": {"max_prompt_tokens": 3}}, {}, openai.BadRequestError, "request_exceeds_limit"),
    ({"limits": {"tokens_per_day": 3}}, {}, openai.BadRequestError, "request_exceeds_limit"),
]


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "streamed"])
@pytest.mark.parametrize(("tenant", "fields", "kind", "code"), ERRORS, ids=[code for *_, code in ERRORS])
def test_an_error_is_the_sdks_own(
    server: Server, new_key: NewKey, tenant: OfField, fields: OfField, kind: type[Exception], code: str, stream: bool
) -> None:
    with server.sdk(new_key(**tenant), max_retries=0) as client:
        error = refused(respond, client, **fields, stream=stream)

    assert (type(error), error.code) == (kind, code)


def test_a_full_minute_says_when_it_has_room(server: Server, new_tenant: NewTenant) -> None:
    with server.sdk(new_tenant(limits={"requests_per_minute": 1}).key, max_retries=0) as client:
        raw = client.responses.with_raw_response.create(**RESPONDED)
        error = refused(respond, client)

    assert raw.headers["x-ratelimit-remaining-requests"] == "0"
    assert isinstance(error, openai.RateLimitError)
    assert error.code == "rate_limit_exceeded"
    assert int(error.response.headers["retry-after"]) >= 1
