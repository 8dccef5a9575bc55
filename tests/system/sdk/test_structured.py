"""Answers that keep to a form, which the SDK parses."""

import json
import re
from enum import Enum
from typing import Annotated, Any

import openai
import pytest
from openai.types.chat import ChatCompletionMessageFunctionToolCall
from pydantic import BaseModel, Field

from tests.support import vllm
from tests.support.system.harness import Server
from tests.support.system.sdk import ASKED, CITY, PROMPT, chat, chat_chunks, complete, content, refused, texts

pytestmark = [pytest.mark.system, pytest.mark.anyio]
closes = pytest.mark.skipif(vllm.IS_BEHIND, reason="only Fairlane's own engine closes answers")


class Mood(Enum):
    GLAD = "glad"
    SAD = "sad"


class Person(BaseModel):
    mood: Mood
    old: bool


class Pair(BaseModel):
    first: Person
    second: Person | None


class Tree(BaseModel):
    leaf: bool
    below: Annotated[list["Tree"], Field(max_length=1)]


def format_of(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": True}}


@pytest.mark.parametrize("model", [Person, Pair])
def test_an_answer_is_parsed_into_a_model(client: openai.OpenAI, model: type[BaseModel]) -> None:
    asked = {**ASKED, "max_tokens": 60}
    answer = client.chat.completions.parse(**asked, response_format=model)

    assert isinstance(answer.choices[0].message.parsed, model)
    assert answer.choices[0].finish_reason == "stop"


def test_every_choice_is_parsed(client: openai.OpenAI) -> None:
    asked = {**ASKED, "max_tokens": 40, "n": 3, "temperature": 1, "seed": 2}
    answer = client.chat.completions.parse(**asked, response_format=Person)

    assert all(isinstance(choice.message.parsed, Person) for choice in answer.choices)


def test_a_cut_answer_is_the_sdks_own_error(client: openai.OpenAI) -> None:
    with pytest.raises(openai.LengthFinishReasonError) as caught:
        client.chat.completions.parse(**{**ASKED, "max_tokens": 3}, response_format=Pair)

    assert caught.value.completion.choices[0].finish_reason == "length"


ESSAY = {
    "type": "object",
    "properties": {
        "title": {"type": "string"},
        "parts": {"type": "array", "items": {"type": "object", "properties": {"text": {"type": "string"}}}},
    },
    "required": ["title", "parts"],
}


@closes
@pytest.mark.parametrize("temperature", [0, 1])
def test_an_answer_is_closed_before_its_limit(client: openai.OpenAI, temperature: int) -> None:
    asked = {"response_format": format_of(ESSAY), "max_tokens": 24, "temperature": temperature, "seed": 4, "n": 2}
    cut = chat(client, **asked)
    closed = chat(client, **asked, extra_body={"close_json": True})

    assert cut.choices[0].finish_reason == "length"
    for index, choice in enumerate(closed.choices):
        assert choice.finish_reason == "stop"
        assert json.loads(content(closed, index)).keys() >= {"title", "parts"}


@closes
def test_a_call_is_closed_before_its_limit(client: openai.OpenAI) -> None:
    tool = {"type": "function", "function": {"name": "write", "parameters": ESSAY}}
    asked = {"tools": [tool], "tool_choice": "required", "max_tokens": 40, "parallel_tool_calls": False}
    answer = chat(client, **asked, extra_body={"close_json": True})

    assert answer.choices[0].finish_reason == "tool_calls"
    called = answer.choices[0].message.tool_calls
    assert called is not None
    (call,) = called
    assert isinstance(call, ChatCompletionMessageFunctionToolCall)
    assert json.loads(call.function.arguments).keys() == {"title", "parts"}


def test_a_recursive_model_is_kept_to_as_far_as_it_goes(client: openai.OpenAI) -> None:
    answer = chat(client, response_format=format_of(Tree.model_json_schema()), max_tokens=24)

    if answer.choices[0].finish_reason == "stop":
        assert isinstance(Tree.model_validate_json(content(answer)), Tree)
    assert content(answer).startswith("{")


async def test_the_asynchronous_client_parses(server: Server, key: str) -> None:
    asked = {**ASKED, "max_tokens": 40}
    async with server.async_sdk(key, max_retries=0) as client:
        answer = await client.chat.completions.parse(**asked, response_format=Person)
        async with client.chat.completions.stream(**asked, response_format=Person) as stream:
            streamed = await stream.get_final_completion()

    assert answer.choices[0].message.parsed == streamed.choices[0].message.parsed
    assert isinstance(answer.choices[0].message.parsed, Person)


def test_a_stream_keeps_to_it_too(client: openai.OpenAI) -> None:
    chunks = chat_chunks(client, response_format=format_of(CITY), max_tokens=24)

    assert json.loads(texts(chunks))["city"] in ("Paris", "Rome")


@pytest.mark.parametrize("strict", [True, False, None])
def test_it_is_kept_to_whether_strict_or_not(client: openai.OpenAI, strict: bool | None) -> None:
    asked = {"type": "json_schema", "json_schema": {"name": "answer", "schema": CITY, "strict": strict}}

    answer = chat(client, response_format=asked, max_tokens=24, temperature=1.5, seed=3)

    assert json.loads(content(answer))["city"] in ("Paris", "Rome")


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string", "pattern": "^[ab]{2}$"},
        {"type": "integer", "minimum": 10, "maximum": 12},
        {"enum": ["one", 2, None]},
        {"const": {"fixed": 1}},
        {"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 2},
        {"anyOf": [{"type": "null"}, {"type": "boolean"}]},
        {"$defs": {"yes": {"const": "yes"}}, "$ref": "#/$defs/yes"},
        {"type": "string", "format": "date"},
        {"type": "object", "properties": {"a": {"type": "boolean"}}, "additionalProperties": False},
    ],
    ids=json.dumps,
)
def test_a_schema_is_kept_to(client: openai.OpenAI, schema: dict[str, Any]) -> None:
    jsonschema = pytest.importorskip("jsonschema")

    answer = chat(client, response_format=format_of(schema), max_tokens=24, temperature=1, seed=1)

    assert answer.choices[0].finish_reason == "stop"
    jsonschema.validate(json.loads(content(answer)), schema)


@pytest.mark.parametrize(
    ("schema", "path"),
    [
        ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, ".oneOf"),
        ({"not": {"type": "string"}}, ".not"),
        ({"type": "string", "pattern": "(?!a)"}, ".pattern"),
        ({"type": "array", "uniqueItems": True}, ".uniqueItems"),
        ({"$ref": "#/$defs/nowhere"}, ".$ref"),
        ({"$ref": "https://example.org/schema.json"}, ".$ref"),
        ({"type": "string", "minLength": 3, "maxLength": 2}, ""),
    ],
    ids=json.dumps,
)
def test_a_schema_that_cannot_be_kept_to_is_refused(client: openai.OpenAI, schema: dict[str, Any], path: str) -> None:
    error = refused(chat, client, response_format=format_of(schema))

    assert isinstance(error, openai.BadRequestError)
    assert error.param == f"response_format.json_schema.schema{path}"


FORMS: list[tuple[dict[str, Any], str]] = [
    ({"structured_outputs": {"choice": ["red", "green"]}}, "red|green"),
    ({"structured_outputs": {"regex": "[0-9]{3}"}}, "[0-9]{3}"),
    ({"structured_outputs": {"json": {"const": 7}}}, "7"),
    ({"structured_outputs": {"grammar": 'start: "x" "y"'}}, "xy"),
    ({"guided_choice": ["red", "green"]}, "red|green"),
    ({"guided_regex": "[0-9]{3}"}, "[0-9]{3}"),
    ({"guided_json": {"const": 7}}, "7"),
    ({"guided_grammar": 'root ::= "x" | "y"'}, "x|y"),
]


@pytest.mark.parametrize(("extra", "form"), FORMS, ids=str)
def test_vllms_forms_go_in_the_body(client: openai.OpenAI, extra: dict[str, Any], form: str) -> None:
    asked = {"extra_body": extra, "temperature": 1, "max_tokens": 12}
    spoken, plain = chat(client, **asked), complete(client, **asked, prompt=PROMPT)

    assert re.fullmatch(form, content(spoken))
    assert re.fullmatch(form, plain.choices[0].text)
    assert (spoken.choices[0].finish_reason, plain.choices[0].finish_reason) == ("stop", "stop")


@pytest.mark.parametrize(
    ("param", "extra"),
    [
        ("guided_regex", {"guided_regex": "(a"}),
        ("guided_choice", {"guided_choice": []}),
        ("structured_outputs.grammar", {"structured_outputs": {"grammar": "start: nowhere"}}),
        ("guided_regex", {"guided_regex": "a", "guided_json": {"const": 1}}),
        ("ignore_eos", {"guided_regex": "a", "ignore_eos": True}),
    ],
    ids=str,
)
def test_a_form_that_cannot_be_is_refused(client: openai.OpenAI, param: str, extra: dict[str, Any]) -> None:
    assert refused(chat, client, extra_body=extra).param == param
