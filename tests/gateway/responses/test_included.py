"""What a response may include, and tools that are not served."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from fairlane.gateway.request.service_level import IGNORED_HEADER
from tests.support.gateway.response_events import RESPONSES, events, prompt
from tests.support.gateway.served import Served, error_of, serving, settings
from tests.support.gateway.tool_models import tool_card

pytestmark = pytest.mark.anyio

ENCRYPTED = "reasoning.encrypted_content"
THOUGHT = "<think>\nThe user is Ann.\n</think>\n\nHello, Ann."
HOSTED: list[dict[str, Any]] = [
    {"type": "web_search"},
    {"type": "web_search_preview_2025_03_11"},
    {"type": "file_search", "vector_store_ids": ["vs_1"]},
    {"type": "code_interpreter", "container": {"type": "auto"}},
    {"type": "mcp", "server_label": "a", "server_url": "https://example.com"},
    {"type": "computer_use_preview", "display_width": 1, "display_height": 1, "environment": "browser"},
    {"type": "image_generation"},
    {"type": "local_shell"},
]


@pytest.fixture(scope="module")
async def thinking(file_url: str) -> AsyncIterator[Served]:
    """A gateway whose model thinks."""
    async with serving(settings(file_url), card=tool_card("Qwen 3")) as opened:
        yield opened


@pytest.fixture
async def served(thinking: Served) -> Served:
    await thinking.renew()
    await thinking.tenant()
    return thinking


async def test_reasoning_comes_back_encrypted_and_is_read_again(served: Served) -> None:
    served.worker.say(THOUGHT)
    async with served.sdk() as sdk:
        answer = await sdk.responses.create(model="Qwen 3", input="I am Ann.", include=["reasoning.encrypted_content"])
        reasoning, message = answer.output
        assert reasoning.type == "reasoning"
        assert reasoning.encrypted_content
        assert "user is" not in reasoning.encrypted_content
        call = {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"}
        carried = {
            "type": "reasoning",
            "id": reasoning.id,
            "summary": [],
            "encrypted_content": reasoning.encrypted_content,
        }
        result = {"type": "function_call_output", "call_id": "c", "output": "42"}
        items: list[Any] = [{"role": "user", "content": "I am Ann."}, carried, call, result]
        await sdk.responses.create(model="Qwen 3", input=items, store=False)
        assert "The user is Ann." in prompt(served)
        await served.tenant("other")
        async with served.sdk("other") as other:
            await other.responses.create(model="Qwen 3", input=items)
        assert "The user is Ann." not in prompt(served)
        items[1]["encrypted_content"] = "gAAAA-from-elsewhere"
        await sdk.responses.create(model="Qwen 3", input=items)
    assert message.type == "message"
    assert "The user is Ann." not in prompt(served)


async def test_a_stream_ends_with_the_same_encrypted_reasoning(served: Served) -> None:
    served.worker.say(THOUGHT)
    found = await events(served, model="Qwen 3", input="I am Ann.", include=[ENCRYPTED])

    done = [event.item for event in found if event.type == "response.output_item.done"]
    last = found[-1]
    assert last.type == "response.completed"
    assert done[0].type == last.response.output[0].type == "reasoning"
    assert done[0].encrypted_content
    assert done[0].encrypted_content == last.response.output[0].encrypted_content


async def test_nothing_is_encrypted_unasked(served: Served) -> None:
    served.worker.say(THOUGHT)
    answer = (await served.post(RESPONSES, {"model": "Qwen 3", "input": "I am Ann."})).json()

    assert [item["type"] for item in answer["output"]] == ["reasoning", "message"]
    assert "encrypted_content" not in answer["output"][0]


@pytest.mark.parametrize(
    ("include", "ignored"),
    [
        (None, None),
        ([], None),
        ([ENCRYPTED, "message.output_text.logprobs"], None),
        (["web_search_call.action.sources", "file_search_call.results", "code_interpreter_call.outputs"], "include"),
        ([ENCRYPTED, "something.new"], "include"),
    ],
)
async def test_what_cannot_be_included_is_a_hint(
    served: Served, include: list[str] | None, ignored: str | None
) -> None:
    answer = await served.post(RESPONSES, {"model": "Qwen 3", "input": "What?", "include": include})

    assert answer.status_code == 200, answer.text
    assert answer.headers.get(IGNORED_HEADER) == ignored


@pytest.mark.parametrize("tool", HOSTED, ids=lambda tool: tool["type"])
async def test_a_hosted_tool_is_refused_by_name_unless_nothing_may_be_called(
    served: Served, tool: dict[str, Any]
) -> None:
    body = {"model": "Qwen 3", "input": "What?", "tools": [tool]}
    refused = await served.post(RESPONSES, body)
    harmless = await served.post(RESPONSES, {**body, "tool_choice": "none"})

    assert error_of(refused) == (400, "invalid_request_error")
    assert refused.json()["error"]["param"] == "tools.[0]"
    assert f"`{tool['type'].removesuffix('_preview_2025_03_11')}`" in refused.json()["error"]["message"]
    assert harmless.status_code == 200, harmless.text
    assert harmless.headers[IGNORED_HEADER] == "tools"
    assert harmless.json()["tools"] == []


@pytest.mark.parametrize(
    ("field", "ignored"),
    [
        ({"max_tool_calls": 0}, "max_tool_calls"),
        ({"max_tool_calls": 3}, "max_tool_calls"),
        ({"max_tool_calls": None}, None),
        ({"background": None}, None),
        ({"background": False}, None),
    ],
)
async def test_fields_without_an_effect_are_taken(served: Served, field: dict[str, Any], ignored: str | None) -> None:
    answer = await served.post(RESPONSES, {"model": "Qwen 3", "input": "What?", **field})

    assert answer.status_code == 200
    assert answer.headers.get(IGNORED_HEADER) == ignored
