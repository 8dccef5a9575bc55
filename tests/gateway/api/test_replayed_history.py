"""One conversation of each API with all that clients send back, on every endpoint that reads it."""

from typing import Any

import pytest

from tests.support.gateway.served import Served

pytestmark = pytest.mark.anyio
USER = {"role": "user", "content": "Hi"}
PNG = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA"}}
CHAT: list[dict[str, Any]] = [
    {"role": "system", "content": [{"type": "text", "text": "Be short.", "cache_control": {"type": "ephemeral"}}]},
    USER,
    {"role": "assistant", "content": None, "reasoning_content": "Hm.", "audio": None, "finish_reason": "stop"},
    {"role": "user", "content": []},
    {
        "role": "assistant",
        "content": [{"type": "thinking", "thinking": "Hm.", "signature": "x"}],
        "tool_calls": [{"id": "1", "type": "function", "index": 0, "function": {"name": "look", "arguments": {}}}],
        "provider_specific_fields": {"x": 1},
    },
    {"role": "tool", "tool_call_id": "1", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]},
    {"role": "tool", "tool_call_id": "unheard of", "content": None},
    USER,
]
MESSAGES: list[dict[str, Any]] = [
    {"role": "user", "content": [{"type": "document", "source": {"type": "text", "data": "Rain."}}]},
    {
        "role": "assistant",
        "content": [
            {"type": "redacted_thinking", "data": "x"},
            {"type": "server_tool_use", "id": "1", "name": "web_search", "input": {"query": "rain"}},
            {"type": "web_search_tool_result", "tool_use_id": "1", "content": []},
            {"type": "text", "text": "", "citations": [{"type": "char_location"}]},
            {"type": "tool_use", "id": "2", "name": "look", "input": {}, "caller": {"type": "code_execution"}},
        ],
        "stop_reason": "tool_use",
    },
    {
        "role": "user",
        "content": [{"type": "tool_result", "tool_use_id": "2", "content": [PNG]}, {"type": "text", "text": "a"}],
    },
    {"role": "assistant", "content": None},
    USER,
]
ITEMS: list[dict[str, Any]] = [
    {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "Be short."}]},
    USER,
    USER,
    {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "x", "status": None},
    {"type": "web_search_call", "id": "ws_1", "status": "completed"},
    {"type": "mcp_call", "id": "mcp_1", "name": "look", "arguments": "{}", "output": "Rain."},
    {"type": "message", "role": "assistant", "content": [], "id": "msg_1", "status": "completed", "phase": "x"},
    {"type": "function_call_output", "call_id": "1", "output": [{"type": "input_image", "image_url": "data:,"}]},
    USER,
]
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": CHAT},
    "/tokenize": {"messages": CHAT},
    "/v1/messages": {"messages": MESSAGES},
    "/v1/messages/count_tokens": {"messages": MESSAGES},
    "/v1/responses": {"input": ITEMS},
    "/v1/responses/input_tokens": {"input": ITEMS},
    "/v1/responses/compact": {"input": ITEMS},
}


@pytest.mark.parametrize("path", BODIES)
async def test_it_is_read(fresh_gateway: Served, path: str) -> None:
    await fresh_gateway.tenant()

    answer = await fresh_gateway.post(path, {"model": "tiny", **BODIES[path]})

    assert answer.status_code == 200, answer.text


async def test_a_stored_response_shows_and_continues_it(fresh_gateway: Served) -> None:
    await fresh_gateway.tenant()
    first = (await fresh_gateway.post("/v1/responses", {"model": "tiny", "input": ITEMS})).json()

    listed = (await fresh_gateway.get(f"/v1/responses/{first['id']}/input_items?limit=100&order=asc")).json()["data"]
    body = {"model": "tiny", "input": "Hi", "previous_response_id": first["id"]}
    again = await fresh_gateway.post("/v1/responses", body)

    assert [item["type"] for item in listed] == [item.get("type", "message") for item in ITEMS]
    assert again.status_code == 200, again.text
