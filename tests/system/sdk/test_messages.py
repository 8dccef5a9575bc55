"""Anthropic's SDK: every field that its own types know, streams, forms, tools, counts, and its classes of errors."""

import json
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Literal, get_type_hints

import anthropic
import pytest
from anthropic.types import Message, message_count_tokens_params, message_create_params
from pydantic import BaseModel

from tests.support.system.harness import MODEL, Server
from tests.support.system.sdk import BANANAS, CITY, QUESTION, SAID, OfField, answers_to
from tests.system.sdk.conftest import NewKey, NewTenant

pytestmark = [pytest.mark.system, pytest.mark.anyio]

LIKELIEST: OfField = {"temperature": 0}
"""Of what is no field of the SDK's any more, its callers send this."""
ASKED: OfField = {"model": MODEL, "messages": [QUESTION], "max_tokens": 8, "extra_body": LIKELIEST}
WEATHER: OfField = {"name": "weather", "description": "The weather of a city.", "input_schema": CITY}
TIME: OfField = {**WEATHER, "name": "time"}
EPHEMERAL = {"type": "ephemeral"}
CALL: OfField = {"tools": [WEATHER], "tool_choice": {"type": "any"}, "max_tokens": 60}
FORM: OfField = {"output_config": {"format": {"type": "json_schema", "schema": CITY}}, "max_tokens": 24}
USED = {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Paris"}}


class Place(BaseModel):
    city: Literal["Paris", "Rome"]


@pytest.fixture(scope="module")
def claude(server: Server, key: str) -> Iterator[anthropic.Anthropic]:
    with server.anthropic_sdk(key, max_retries=0, timeout=60) as opened:
        yield opened


def ask(client: anthropic.Anthropic, **fields: Any) -> Message:
    answer: Message = client.messages.create(**{**ASKED, **fields})
    return answer


def refused(call: Callable[..., object], *arguments: Any, **fields: Any) -> anthropic.APIStatusError:
    with pytest.raises(anthropic.APIStatusError) as caught:
        call(*arguments, **fields)
    return caught.value


def error_of(error: anthropic.APIStatusError) -> OfField:
    body: Any = error.body
    assert body["type"] == "error"
    assert body["request_id"] == error.request_id
    told: OfField = body["error"]
    return told


def text(answer: Message) -> str:
    return "".join(block.text for block in answer.content if block.type == "text")


def called(answer: Message) -> list[str]:
    """The tools that are called, each for a city that its schema knows."""
    calls = [block for block in answer.content if block.type == "tool_use"]
    assert {block.input["city"] for block in calls} <= {"Paris", "Rome"}
    return [block.name for block in calls]


def talk(*contents: Any) -> OfField:
    """A conversation of these contents, the user's first."""
    roles = ("user", "assistant")
    return {"messages": [{"role": roles[n % 2], "content": content} for n, content in enumerate(contents)]}


NEUTRAL: list[OfField] = [
    {"cache_control": EPHEMERAL},
    {"container": None},
    {"diagnostics": {"previous_message_id": None}},
    {"inference_geo": "global"},
    {"metadata": {"user_id": "someone"}},
    {"output_config": {"effort": "low"}},
    {"service_tier": "standard_only"},
    {"speed": "standard"},
    {"stop_sequences": []},
    {"stop_sequences": [""]},
    {"stream": False},
    {"system": ""},
    {"thinking": {"type": "disabled"}},
    {"tools": []},
    {"tools": [WEATHER], "tool_choice": {"type": "none"}},
    {"user_profile_id": "someone", "workspace_id": "somewhere"},
    talk([{"type": "text", "text": QUESTION["content"], "cache_control": EPHEMERAL}]),
    {"inference_geo": "mars"},
    {"speed": "fast"},
    {"extra_body": {**LIKELIEST, "flavour": "mint"}},
]
"""They leave the answer as it is."""

HONOURED: list[tuple[OfField, Callable[[Message], bool]]] = [
    ({"max_tokens": 3}, lambda answer: (answer.stop_reason, answer.usage.output_tokens) == ("max_tokens", 3)),
    ({"stop_sequences": ["nowhere", "France"]}, lambda a: (a.stop_sequence, text(a)) == ("France", "The capital of ")),
    ({"system": "Answer in one sentence."}, lambda answer: "Paris" in text(answer)),
    (
        {"system": [{"type": "text", "text": "Answer in one sentence.", "cache_control": EPHEMERAL}]},
        lambda answer: "Paris" in text(answer),
    ),
    ({"extra_body": {"temperature": 2, "top_k": 1}}, lambda answer: text(answer) == SAID),
    ({"extra_body": {"temperature": 2, "top_p": 0}}, lambda answer: text(answer) == SAID),
    ({"service_tier": "auto"}, lambda answer: answer.usage.service_tier == "standard"),
    (FORM, lambda answer: json.loads(text(answer)).keys() == {"city"}),
    (CALL, lambda answer: {*called(answer)} == {"weather"}),
    (
        {
            "tools": [WEATHER, {**TIME, "strict": True}],
            "tool_choice": {"type": "tool", "name": "time", "disable_parallel_tool_use": True},
            "max_tokens": 60,
        },
        lambda answer: (called(answer), answer.stop_reason) == (["time"], "tool_use"),
    ),
    (talk("What is the capital of France?", "Paris.", "Which country is it in?"), lambda a: "France" in text(a)),
    (
        talk(
            "Weather?", [{"type": "text", "text": "I look."}, USED], [{"type": "tool_result", "tool_use_id": "toolu_1"}]
        ),
        lambda answer: answer.usage.output_tokens > 1,
    ),
]
"""They change the answer: what it then is."""

WRONG: list[tuple[str, OfField]] = [
    ("container", {"container": "c"}),
    ("max_tokens", {"max_tokens": 0}),
    ("messages", {"messages": []}),
    ("messages.[0].role", {"messages": [{"role": "king", "content": "Hello"}]}),
    ("messages.[0].content.[0]", talk([{"type": "image", "source": {"type": "url", "url": "https://example.org"}}])),
    ("messages.[0].content.[0]", talk([USED])),
    ("output_config.format.schema", {"output_config": {"format": {"type": "json_schema", "schema": {"not": {}}}}}),
    ("service_tier", {"service_tier": "free"}),
    ("temperature", {"extra_body": {"temperature": 3}}),
    ("tool_choice", {"tool_choice": {"type": "any"}}),
    ("tool_choice", {"tools": [WEATHER], "tool_choice": {"type": "tool", "name": "time"}}),
    ("tools.[0]", {"tools": [{"type": "web_search_20250305", "name": "web_search"}]}),
    ("tools.[1].name", {"tools": [WEATHER, WEATHER]}),
]
"""Not served, or not so: the field that the refusal names."""


def named(case: Any) -> str:
    return json.dumps(case)[:60] if isinstance(case, dict) else ""


def test_no_field_is_left_out() -> None:
    known = {
        *get_type_hints(message_create_params.MessageCreateParamsNonStreaming),
        *get_type_hints(message_count_tokens_params.MessageCountTokensParams),
    }
    cases = [ASKED, *NEUTRAL, *(fields for fields, _ in HONOURED), *(fields for _, fields in WRONG)]

    assert known - set().union(*cases) == set()


@pytest.fixture(scope="module")
def answer_to(claude: anthropic.Anthropic) -> Iterator[Callable[[OfField], Message]]:
    with answers_to([*NEUTRAL, *(fields for fields, _ in HONOURED)], partial(ask, claude)) as asked:
        yield asked


@pytest.mark.parametrize("fields", NEUTRAL, ids=named)
def test_a_field_that_asks_for_nothing_changes_nothing(
    answer_to: Callable[[OfField], Message], fields: OfField
) -> None:
    answer = answer_to(fields)

    assert (text(answer), answer.stop_reason) == (SAID, "end_turn")


@pytest.mark.parametrize(("fields", "says"), HONOURED, ids=named)
def test_a_field_is_honoured(
    answer_to: Callable[[OfField], Message], fields: OfField, says: Callable[[Message], bool]
) -> None:
    answer = answer_to(fields)

    assert says(answer), answer


@pytest.mark.parametrize(("param", "fields"), WRONG, ids=named)
def test_a_field_is_refused_by_its_name(claude: anthropic.Anthropic, param: str, fields: OfField) -> None:
    error = refused(ask, claude, **fields)

    assert isinstance(error, anthropic.BadRequestError)
    assert (error_of(error)["type"], error_of(error)["param"]) == ("invalid_request_error", param)
    assert error.response.headers["x-should-retry"] == "false"


def test_a_message_is_what_its_type_says(claude: anthropic.Anthropic) -> None:
    answer = ask(claude)

    read = Message.model_validate(answer.model_dump(by_alias=True), strict=True)
    assert (read.type, read.role, read.model, read.id[:4]) == ("message", "assistant", MODEL, "msg_")


KINDS = ["message_start", "content_block_start", "content_block_stop", "message_delta", "message_stop"]
STREAMS: dict[str, OfField] = {"text": {}, "cut": {"max_tokens": 2}, "call": CALL, "form": FORM}


@pytest.mark.parametrize("fields", STREAMS.values(), ids=STREAMS.keys())
def test_the_stream_helper_gathers_the_plain_answer(claude: anthropic.Anthropic, fields: OfField) -> None:
    plain = ask(claude, **fields)
    with claude.messages.stream(**{**ASKED, **fields}) as stream:
        kinds = [event.type for event in stream]
        gathered = stream.get_final_message()

    assert (kinds[0], kinds[-1]) == ("message_start", "message_stop")
    assert {*KINDS} <= {*kinds}
    assert without_ids(gathered) == without_ids(plain)


def without_ids(answer: Message) -> OfField:
    blocks = [block.model_dump(exclude={"id"}, exclude_none=True) for block in answer.content]
    return {"content": blocks, "stop": answer.stop_reason, "out": answer.usage.output_tokens}


async def test_the_asynchronous_client_gives_the_same(server: Server, key: str) -> None:
    async with server.async_anthropic_sdk(key, max_retries=0) as client:
        plain = await client.messages.create(**ASKED)
        async with client.messages.stream(**ASKED) as stream:
            pieces = [piece async for piece in stream.text_stream]
        raw = [event.type async for event in await client.messages.create(**ASKED, stream=True)]
        counted = await client.messages.count_tokens(model=MODEL, messages=ASKED["messages"])

    assert text(plain) == "".join(pieces) == SAID
    assert (raw[0], raw[-1]) == ("message_start", "message_stop")
    assert counted.input_tokens == prompt_tokens(plain)


def prompt_tokens(answer: Message) -> int:
    """All of it: this API counts what came from the cache apart."""
    return answer.usage.input_tokens + (answer.usage.cache_read_input_tokens or 0)


@pytest.mark.parametrize("fields", [{"system": "Be kind."}, {"tools": [WEATHER]}, talk("Hi", "Ho", "Hi")], ids=named)
def test_a_prompt_is_counted_as_it_is_charged(claude: anthropic.Anthropic, fields: OfField) -> None:
    counted = claude.messages.count_tokens(**{"model": MODEL, "messages": [QUESTION], **fields})

    assert counted.input_tokens == prompt_tokens(ask(claude, **fields, max_tokens=1))


def test_an_answer_is_parsed_into_a_model(claude: anthropic.Anthropic) -> None:
    answer = claude.messages.parse(**{**ASKED, "max_tokens": 24}, output_format=Place)

    assert isinstance(answer.parsed_output, Place)


def test_a_call_is_answered_and_the_model_goes_on(claude: anthropic.Anthropic) -> None:
    asked: OfField = {"tools": [WEATHER], "max_tokens": 60}
    messages: list[OfField] = [QUESTION]
    for _ in range(2):
        answer = ask(claude, **asked, messages=messages, tool_choice={"type": "any"})
        calls = [block for block in answer.content if block.type == "tool_use"]
        assert calls
        assert len({block.id for block in calls}) == len(calls)
        results = [{"type": "tool_result", "tool_use_id": block.id, "content": "It rains."} for block in calls]
        messages = [*messages, {"role": "assistant", "content": answer.content}, {"role": "user", "content": results}]
    end = ask(claude, **asked, messages=messages, tool_choice={"type": "none"})

    assert text(end)
    assert called(end) == []


ERRORS: list[tuple[OfField, OfField, type[Exception], str, str]] = [
    ({}, {"model": "claude"}, anthropic.NotFoundError, "not_found_error", "model_not_found"),
    ({"models": ["another"]}, {}, anthropic.PermissionDeniedError, "permission_error", "model_not_allowed"),
    (
        {"limits": {"max_prompt_tokens": 3}},
        {},
        anthropic.BadRequestError,
        "invalid_request_error",
        "request_exceeds_limit",
    ),
    (
        {"lanes": ["latency"]},
        {"extra_headers": {"x-fairlane-lane": "throughput"}},
        anthropic.PermissionDeniedError,
        "permission_error",
        "lane_not_allowed",
    ),
]


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "streamed"])
@pytest.mark.parametrize(("tenant", "fields", "kind", "name", "code"), ERRORS, ids=[code for *_, code in ERRORS])
def test_an_error_is_the_sdks_own(
    server: Server,
    new_key: NewKey,
    tenant: OfField,
    fields: OfField,
    kind: type[Exception],
    name: str,
    code: str,
    stream: bool,
) -> None:
    with server.anthropic_sdk(new_key(**tenant), max_retries=0) as client:
        error = refused(ask, client, **fields, stream=stream)

    told = error_of(error)
    assert (type(error), told["type"], told["code"]) == (kind, name, code)


def test_a_key_that_does_not_work_is_an_authentication_error(server: Server) -> None:
    with server.anthropic_sdk("sk-ant-of-another-house", max_retries=0) as stranger:
        for asked in (lambda: ask(stranger), lambda: stranger.models.list()):
            assert isinstance(refused(asked), anthropic.AuthenticationError)


def test_a_key_is_taken_as_a_token_too(server: Server, key: str) -> None:
    with server.anthropic_sdk(None, auth_token=key, max_retries=0) as client:
        assert text(ask(client)) == SAID


def test_a_spent_minute_is_a_rate_limit_and_is_told_in_headers(server: Server, new_tenant: NewTenant) -> None:
    with server.anthropic_sdk(new_tenant(limits={"requests_per_minute": 1}).key, max_retries=0) as client:
        raw = client.messages.with_raw_response.create(**ASKED)
        error = refused(ask, client)

    assert raw.headers["anthropic-ratelimit-requests-remaining"] == "0"
    assert isinstance(error, anthropic.RateLimitError)
    assert error_of(error)["code"] == "rate_limit_exceeded"
    assert int(error.response.headers["retry-after"]) >= 1


def test_a_passed_deadline_ends_a_stream_with_the_sdks_error(claude: anthropic.Anthropic) -> None:
    late: OfField = {"messages": BANANAS, "max_tokens": 4_000, "extra_body": {"deadline_ms": 50}}
    with pytest.raises(anthropic.APIStatusError) as caught:
        list(claude.messages.create(**{**ASKED, **late}, stream=True))

    assert error_of(caught.value)["code"] in ("deadline_exceeded", "deadline_unattainable")


def test_models_are_listed_in_its_words(claude: anthropic.Anthropic) -> None:
    (model,) = claude.models.list()

    assert (model.type, model.id) == ("model", MODEL)
    assert claude.models.retrieve(MODEL) == model
