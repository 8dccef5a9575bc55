"""`POST /v1/responses/input_tokens`: what a response's prompt would be charged."""

from typing import Any

import openai
import pytest

from tests.support.gateway.response_events import RESPONSES
from tests.support.gateway.served import Served, error_of

pytestmark = pytest.mark.anyio

COUNT = f"{RESPONSES}/input_tokens"
TOOL = {"type": "function", "name": "weather", "parameters": {"type": "object", "properties": {}}}


@pytest.fixture
async def served(fresh_gateway: Served) -> Served:
    await fresh_gateway.tenant()
    return fresh_gateway


@pytest.mark.parametrize(
    "fields",
    [
        {"input": "Where?"},
        {
            "input": [{"role": "user", "content": [{"type": "input_text", "text": "Where?"}]}],
            "instructions": "Be brief.",
        },
        {"input": "Where?", "tools": [TOOL], "parallel_tool_calls": False},
        {"input": "Where?", "text": {"format": {"type": "text"}}, "reasoning": {"summary": "auto"}},
    ],
)
async def test_the_count_is_what_the_response_is_charged_for(served: Served, fields: dict[str, Any]) -> None:
    async with served.sdk() as sdk:
        counted = await sdk.responses.input_tokens.count(model="tiny", **fields)
        made = await sdk.responses.create(model="tiny", **fields)

    assert counted.object == "response.input_tokens"
    assert made.usage is not None
    assert counted.input_tokens == made.usage.input_tokens


async def test_it_counts_what_a_body_refers_to_and_charges_nothing(served: Served) -> None:
    async with served.sdk() as sdk:
        made = await sdk.responses.create(model="tiny", input="I am Ann.")
        await served.landed()
        charged = await served.ledger()
        both = await sdk.responses.input_tokens.count(model="tiny", previous_response_id=made.id, input="Who?")
        same: list[Any] = [
            {"role": "user", "content": "I am Ann."},
            {"type": "item_reference", "id": made.output[0].id},
            {"role": "user", "content": "Who?"},
        ]
        assert (await sdk.responses.input_tokens.count(model="tiny", input=same)).input_tokens == both.input_tokens
        alone = await sdk.responses.input_tokens.count(model="tiny", input="Who?")
        with pytest.raises(openai.NotFoundError):
            await sdk.responses.input_tokens.count(model="tiny", previous_response_id="resp_0")

    assert both.input_tokens > alone.input_tokens
    assert await served.ledger() == charged


async def test_what_cannot_be_counted_is_refused(served: Served) -> None:
    assert error_of(await served.post(COUNT, {"input": "x"})) == (400, "invalid_request_error")
    assert error_of(await served.post(COUNT, {"model": "tiny"})) == (400, "invalid_request_error")
    assert error_of(await served.post(COUNT, {"model": "none", "input": "x"})) == (404, "model_not_found")
    assert error_of(await served.post(COUNT, {"model": "tiny", "input": "a b " * 500})) == (
        400,
        "context_length_exceeded",
    )
