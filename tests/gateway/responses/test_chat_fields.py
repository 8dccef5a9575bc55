"""Fields of chats that vLLM's Responses have too: they are honoured, as in a chat."""

from typing import Any

import pytest

from tests.support.gateway.served import CHAT, SAID, Served

pytestmark = pytest.mark.anyio
RESPONSES = "/v1/responses"
SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}}
FORMAT = {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}
IN_TEXT = {"format": {"type": "json_schema", "name": "a", "schema": SCHEMA}}


@pytest.fixture
async def served(fresh_gateway: Served) -> Served:
    await fresh_gateway.tenant()
    return fresh_gateway


@pytest.mark.parametrize("stream", [False, True])
async def test_a_stop_string_ends_a_response(served: Served, stream: bool) -> None:
    answer = await served.post(RESPONSES, {"model": "tiny", "input": "Hi", "stop": " is", "stream": stream})

    assert answer.status_code == 200
    assert "x-fairlane-ignored" not in answer.headers
    assert "The capital of France" in answer.text
    assert SAID not in answer.text
    assert '"status":"completed"' in answer.text


@pytest.mark.parametrize(
    "fields",
    [
        {"response_format": FORMAT},
        {"response_format": FORMAT, "text": {"format": {"type": "text"}}},
        {"structured_outputs": {"json": SCHEMA}},
        {"guided_json": SCHEMA},
        {"text": IN_TEXT},
    ],
)
async def test_a_structure_is_stated_in_any_form(served: Served, fields: dict[str, Any]) -> None:
    turns = [{"role": "user", "content": "Hi"}]
    await served.post(RESPONSES, {"model": "tiny", "input": "Hi", "max_output_tokens": 5, **fields})
    await served.post(CHAT, {"model": "tiny", "messages": turns, "max_tokens": 5, "response_format": FORMAT})

    response, chat = (seen.job for seen in served.worker.seen)
    assert response.grammar == chat.grammar


async def test_biases_and_salts_reach_the_worker(served: Served) -> None:
    for salt in ("a", "b"):
        body = {"model": "tiny", "input": "Hi", "logit_bias": {"65": -100}, "cache_salt": salt}
        assert (await served.post(RESPONSES, body)).status_code == 200

    first, second = (seen.job for seen in served.worker.seen)
    assert first.sampling.logit_bias == ((65, -100.0),)
    assert first.share_group != second.share_group


async def test_two_structures_are_refused(served: Served) -> None:
    refused = await served.post(RESPONSES, {"model": "tiny", "input": "Hi", "text": IN_TEXT, "guided_regex": "a"})

    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "guided_regex")
