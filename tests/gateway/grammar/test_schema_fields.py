"""Schemas through every field that takes one: served as libraries write them, or refused with the keyword's path."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.support.gateway.served import CHAT, COMPLETIONS, Served, serving, settings
from tests.support.gateway.tool_models import tool_card

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

SAID = [{"role": "user", "content": "What?"}]
CALLED = {"messages": SAID, "tool_choice": "required"}


def _function(schema: object) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "f", "parameters": schema, "strict": True}}


# A path, a body with a schema in it, and the schema's field.
FIELDS: dict[str, tuple[str, Any, str]] = {
    "response_format": (
        CHAT,
        lambda s: {
            "messages": SAID,
            "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": s}},
        },
        "response_format.json_schema.schema",
    ),
    "guided_json": (COMPLETIONS, lambda s: {"prompt": "a", "guided_json": s}, "guided_json"),
    "structured_outputs": (
        COMPLETIONS,
        lambda s: {"prompt": "a", "structured_outputs": {"json": s}},
        "structured_outputs.json",
    ),
    "tools": (CHAT, lambda s: {**CALLED, "tools": [_function(s)]}, "tools.[0].function.parameters"),
    "a strict tool": (CHAT, lambda s: {"messages": SAID, "tools": [_function(s)]}, "tools.[0].function.parameters"),
    "text.format": (
        "/v1/responses",
        lambda s: {"input": "a", "text": {"format": {"type": "json_schema", "name": "a", "schema": s}}},
        "text.format.schema",
    ),
    "Responses' tools": (
        "/v1/responses",
        lambda s: {"input": "a", "tools": [{"type": "function", "name": "f", "parameters": s, "strict": True}]},
        "tools.[0].parameters",
    ),
    "output_config": (
        "/v1/messages",
        lambda s: {
            "max_tokens": 9,
            "messages": SAID,
            "output_config": {"format": {"type": "json_schema", "schema": s}},
        },
        "output_config.format.schema",
    ),
    "Messages' tools": (
        "/v1/messages",
        lambda s: {
            "max_tokens": 9,
            "messages": SAID,
            "tools": [{"name": "f", "input_schema": s}],
            "tool_choice": {"type": "any"},
        },
        "tools.[0].input_schema",
    ),
}
# As Zod 4, pydantic and generators of OpenAPI documents write them.
SERVED = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "$id": "A schema",
    "type": "object",
    "properties": {
        "labels": {"type": "object", "propertyNames": {"type": "string"}, "additionalProperties": {"type": "string"}},
        "tags": {"type": "array", "items": {"type": "string", "format": "password"}, "uniqueItems": False},
        "price": {"anyOf": [{"type": "number"}, {"type": "string", "pattern": "^(?!^[-+.]*$)[+-]?0*\\d*\\.?\\d*$"}]},
        "note": {"type": "string", "not": False, "default": None, "nullable": True, "x-order": 3},
        "never": {"not": {}},
    },
    "required": ["labels"],
    "dependentRequired": {},
    "unevaluatedProperties": False,
}
REFUSED = {"type": "object", "properties": {"a": {"type": "string", "not": {"const": "x"}}}, "required": ["a"]}


@pytest.fixture
async def served(valkey_url: str) -> AsyncIterator[Served]:
    async with serving(settings(valkey_url), card=tool_card("Hermes")) as opened:
        await opened.tenant()
        yield opened


@pytest.mark.parametrize(("path", "body", "param"), FIELDS.values(), ids=FIELDS)
async def test_a_schema_is_served_or_refused_with_the_keywords_path(
    served: Served, path: str, body: Any, param: str
) -> None:
    answer = await served.post(path, {"model": "Hermes", **body(SERVED)})
    refused = await served.post(path, {"model": "Hermes", **body(REFUSED)})

    assert answer.status_code == 200, answer.text
    (lease,) = served.worker.seen
    assert '"labels"' in lease.job.grammar
    assert "uniqueItems" not in lease.job.grammar
    assert refused.status_code == 400
    error = refused.json()["error"]
    assert f"`{param}.properties.a.not` cannot be served: this keyword cannot be enforced" in error["message"]
    assert error.get("param", f"{param}.properties.a.not") == f"{param}.properties.a.not"
