"""Fields that have no effect: named in a header of the answer, or refused by the tenant's setting."""

from typing import Any

import pytest

from tests.support.gateway.served import Served, serving, settings

pytestmark = pytest.mark.anyio
TURNS = [{"role": "user", "content": "Hi"}]
TEXT = {"type": "text", "text": "Hi"}
TOOL = {"name": "weather", "input_schema": {"type": "object"}}
FUNCTION = {"type": "function", "name": "weather", "parameters": {"type": "object"}}
CACHE = "cache_control"
IGNORED = "x-fairlane-ignored"
BODIES = [
    ("/v1/chat/completions", {"messages": TURNS}),
    ("/v1/completions", {"prompt": "Hi"}),
    ("/v1/responses", {"input": "Hi"}),
    ("/v1/messages", {"messages": TURNS}),
]


@pytest.fixture
async def served(fresh_gateway: Served) -> Served:
    await fresh_gateway.tenant()
    return fresh_gateway


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("path", "body"), BODIES)
async def test_they_are_named_in_a_header(served: Served, path: str, body: dict[str, Any], stream: bool) -> None:
    answer = await served.post(path, {"model": "tiny", **body, "unheard_of": 1, "nothing": None, "stream": stream})

    assert answer.status_code == 200
    assert answer.headers[IGNORED] == "unheard_of"


@pytest.mark.parametrize(("path", "body"), BODIES)
async def test_a_tenant_may_have_them_refused(served: Served, path: str, body: dict[str, Any]) -> None:
    await served.tenant("strict", unknown_fields="refuse")

    refused = await served.post(path, {"model": "tiny", **body, "unheard_of": 1}, tenant="strict")
    served_plain = await served.post(path, {"model": "tiny", **body, "unheard_of": None}, tenant="strict")

    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "unheard_of")
    assert served_plain.status_code == 200
    assert IGNORED not in served_plain.headers


IMAGE = {"type": "image_url", "image_url": {"url": "data:,"}}
LOOKED = [*TURNS, {"role": "tool", "tool_call_id": "1", "content": [IMAGE]}]


async def test_an_image_that_a_tool_returned_is_named_or_refused(served: Served, valkey_url: str) -> None:
    omitted = await served.post("/v1/chat/completions", {"model": "tiny", "messages": LOOKED})
    counted = await served.post("/tokenize", {"model": "tiny", "messages": LOOKED})
    async with serving(settings(valkey_url, section={"images_in_tool_results": "refuse"})) as strict:
        await strict.tenant()
        refused = await strict.post("/v1/chat/completions", {"model": "tiny", "messages": LOOKED})

    assert omitted.headers[IGNORED] == "messages.content.image_url"
    assert counted.json()["count"] == omitted.json()["usage"]["prompt_tokens"]
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "messages.[1].content")


async def test_a_caller_may_have_them_refused(served: Served) -> None:
    body = {"model": "tiny", "messages": TURNS, "unheard_of": 1}
    refused, ignored, wrong = [
        await served.post("/v1/chat/completions", body, x_fairlane_unknown_fields=value)
        for value in ("refuse", "ignore", "whatever")
    ]

    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "unheard_of")
    assert (ignored.status_code, ignored.headers[IGNORED]) == (200, "unheard_of")
    assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "x-fairlane-unknown-fields")


async def test_the_requests_record_names_them(served: Served) -> None:
    answer = await served.post("/v1/chat/completions", {"model": "tiny", "messages": TURNS, "unheard_of": 1})
    record = await served.get(f"/v1/requests/{answer.json()['id']}")

    assert record.json()["ignored"] == ["unheard_of"]


HINTS_INSIDE: list[tuple[str, dict[str, Any], str]] = [
    ("/v1/responses", {"input": "Hi", "reasoning": {"summary": "detailed"}}, "reasoning.summary"),
    ("/v1/responses", {"input": "Hi", "text": {"verbosity": "low"}}, "text.verbosity"),
    ("/v1/responses", {"input": "Hi", "metadata": {"a": 1}}, "metadata"),
    (
        "/v1/chat/completions",
        {"messages": TURNS, "stream": True, "stream_options": {"include_obfuscation": True}},
        "stream_options.include_obfuscation",
    ),
    ("/v1/messages", {"messages": TURNS, "output_config": {"effort": "mild"}}, "output_config.effort"),
    ("/v1/messages", {"messages": TURNS, "system": [{"type": "text", "text": "Be.", "cache_control": 5}]}, CACHE),
    ("/v1/messages", {"messages": [{**TURNS[0], "content": [{**TEXT, "cache_control": {"ttl": "9h"}}]}]}, CACHE),
    ("/v1/messages", {"messages": TURNS, "tools": [{**TOOL, "cache_control": {"type": "ephemeral"}}]}, CACHE),
    ("/v1/messages", {"messages": TURNS, "tools": [{**TOOL, "input_examples": [{}]}]}, "input_examples"),
    ("/v1/responses", {"input": "Hi", "tools": [{**FUNCTION, "output_schema": {"type": "string"}}]}, "output_schema"),
]


@pytest.mark.parametrize(("path", "body", "named"), HINTS_INSIDE)
async def test_hints_inside_objects_are_known(served: Served, path: str, body: dict[str, Any], named: str) -> None:
    await served.tenant("strict", unknown_fields="refuse")

    answer = await served.post(path, {"model": "tiny", **body}, tenant="strict")

    assert (answer.status_code, answer.headers.get(IGNORED)) == (200, named), answer.text


async def test_a_prompts_tokens_are_counted_whatever_else_is_sent(served: Served) -> None:
    counted = await served.post("/v1/messages/count_tokens", {"model": "tiny", "messages": TURNS, "unheard_of": 1})
    tokenized = await served.post("/tokenize", {"model": "tiny", "messages": TURNS, "unheard_of": 1})

    assert (counted.status_code, tokenized.status_code) == (200, 200)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/tokenize", {"model": "tiny", "messages": TURNS}),
        ("/tokenize", {"model": "tiny", "prompt": "Hi"}),
        ("/detokenize", {"model": "tiny", "tokens": [1]}),
        ("/v1/conversations", {}),
    ],
)
async def test_calls_that_generate_nothing_treat_them_as_others_do(
    served: Served, path: str, body: dict[str, Any]
) -> None:
    await served.tenant("strict", unknown_fields="refuse")

    ignored = await served.post(path, {**body, "unheard_of": 1})
    refused = await served.post(path, {**body, "unheard_of": 1}, tenant="strict")

    assert (ignored.status_code, ignored.headers.get(IGNORED)) == (200, "unheard_of")
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "unheard_of")
