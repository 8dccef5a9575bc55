"""What form an answer shall have: OpenAI's and vLLM's fields come to one structure, or are refused by name."""

import json
from typing import Any

import pytest

from fairlane.gateway.dialects.grammar.structure import ANY_OBJECT, Structure
from fairlane.gateway.dialects.openai.chat_requests import parse_chat
from fairlane.gateway.dialects.openai.request_bodies import MAX_BIASES
from fairlane.gateway.dialects.openai.requests import parse_completion
from fairlane.gateway.dialects.openai.structures import MAX_STRUCTURE_CHARS, MAX_STRUCTURE_CHOICES
from fairlane.gateway.errors import ApiError

CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}]}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}


def structure(**fields: object) -> Structure | None:
    body = json.dumps({**CHAT, **fields}).encode()
    same = parse_completion(json.dumps({"model": "tiny", "prompt": "hello", **fields}).encode()).structure
    assert parse_chat(body).structure == same
    return same


def param(**fields: object) -> str | None:
    with pytest.raises(ApiError) as refused:
        parse_chat(json.dumps({**CHAT, **fields}).encode())
    assert refused.value.code == "invalid_request_error"
    return refused.value.param


def named(schema: object, **fields: object) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, **fields}}


@pytest.mark.parametrize(
    ("fields", "kind", "text", "said_by"),
    [
        ({"response_format": {"type": "json_object"}}, "json_schema", ANY_OBJECT, "response_format"),
        ({"response_format": named(SCHEMA)}, "json_schema", SCHEMA, "response_format.json_schema.schema"),
        ({"response_format": named(SCHEMA, name="Answer[int]")}, "json_schema", SCHEMA,
         "response_format.json_schema.schema"),
        ({"response_format": named(SCHEMA, strict=True, description="d")}, "json_schema", SCHEMA,
         "response_format.json_schema.schema"),
        ({"response_format": named(None)}, "json_schema", ANY_OBJECT, "response_format.json_schema.schema"),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}}}, "json_schema", SCHEMA,
         "response_format.json_schema.schema"),
        ({"response_format": {"type": "json_object", "schema": SCHEMA}}, "json_schema", SCHEMA,
         "response_format.schema"),
        ({"response_format": {"type": "json_schema", "schema": SCHEMA}}, "json_schema", SCHEMA,
         "response_format.schema"),
        ({"response_format": {"type": "json_object", "schema": None}}, "json_schema", ANY_OBJECT, "response_format"),
        ({"guided_json": SCHEMA}, "json_schema", SCHEMA, "guided_json"),
        ({"guided_json": json.dumps(SCHEMA)}, "json_schema", SCHEMA, "guided_json"),
        ({"guided_regex": "a+"}, "regex", "a+", "guided_regex"),
        ({"guided_choice": ["a", "ü"]}, "choice", ["a", "ü"], "guided_choice"),
        ({"guided_grammar": 'start: "a"'}, "grammar", 'start: "a"', "guided_grammar"),
        ({"structured_outputs": {"json": SCHEMA}}, "json_schema", SCHEMA, "structured_outputs.json"),
        ({"structured_outputs": {"json_object": True}}, "json_schema", ANY_OBJECT, "structured_outputs.json_object"),
        ({"structured_outputs": {"regex": "a+"}}, "regex", "a+", "structured_outputs.regex"),
        ({"structured_outputs": {"choice": ["a"]}}, "choice", ["a"], "structured_outputs.choice"),
        ({"structured_outputs": {"grammar": "root ::= a"}}, "grammar", "root ::= a", "structured_outputs.grammar"),
    ],
)  # fmt: skip
def test_each_way_to_ask_comes_to_a_structure(fields: dict[str, object], kind: str, text: object, said_by: str) -> None:
    found = structure(**fields)

    assert found is not None
    assert (found.kind, found.param) == (kind, said_by)
    assert (found.text if isinstance(text, str) else json.loads(found.text)) == text
    assert str(text) not in repr(found)


@pytest.mark.parametrize("fields", [{}, {"response_format": {"type": "text"}}, {"structured_outputs": {}}])
def test_any_text_is_no_structure(fields: dict[str, object]) -> None:
    assert structure(**fields) is None


@pytest.mark.parametrize(
    ("fields", "said_by"),
    [
        ({"response_format": {"type": "yaml"}}, "response_format.type"),
        ({"response_format": "json_object"}, "response_format"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"response_format": {"type": "text", "json_schema": {"name": "a"}}}, "response_format.json_schema"),
        ({"response_format": {"type": "text", "schema": SCHEMA}}, "response_format.schema"),
        ({"response_format": {**named(SCHEMA), "schema": SCHEMA}}, "response_format.schema"),
        ({"response_format": named([1])}, "response_format.json_schema.schema"),
        ({"response_format": named({"a": "x" * MAX_STRUCTURE_CHARS})}, "response_format.json_schema.schema"),
        ({"response_format": named(SCHEMA, name=5)}, "response_format.json_schema.name"),
        ({"guided_json": "{"}, "guided_json"),
        ({"guided_json": "[" * 100_000}, "guided_json"),
        ({"guided_regex": ""}, "guided_regex"),
        ({"guided_choice": []}, "guided_choice"),
        ({"guided_choice": ["a"] * (MAX_STRUCTURE_CHOICES + 1)}, "guided_choice"),
        ({"guided_choice": [1]}, "guided_choice.[0]"),
        ({"structured_outputs": {"structural_tag": "a"}}, "structured_outputs.structural_tag"),
        ({"guided_json": SCHEMA, "guided_regex": "a"}, "guided_regex"),
        ({"guided_json": SCHEMA, "response_format": {"type": "json_object"}}, "guided_json"),
        ({"guided_json": SCHEMA, "ignore_eos": True}, "ignore_eos"),
        ({"logit_bias": {"a": 1}}, "logit_bias"),
        ({"logit_bias": {"-1": 1}}, "logit_bias"),
        ({"logit_bias": {"1": 101}}, "logit_bias"),
        ({"logit_bias": {"1": True}}, "logit_bias"),
        ({"logit_bias": {str(number): 1 for number in range(MAX_BIASES + 1)}}, "logit_bias"),
        ({"stop_token_ids": [-1]}, "stop_token_ids.[0]"),
        ({"cache_salt": ""}, "cache_salt"),
    ],
)
def test_what_is_wrong_is_named(fields: dict[str, object], said_by: str) -> None:
    assert param(**fields) == said_by
