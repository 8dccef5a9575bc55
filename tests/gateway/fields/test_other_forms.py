"""Forms in which clients state the same: those of another API, of other servers, and empty ones."""

from typing import Any

import pytest

from tests.support.gateway.served import CHAT, COMPLETIONS, Served

pytestmark = pytest.mark.anyio
RESPONSES, MESSAGES = "/v1/responses", "/v1/messages"
HI = {"role": "user", "content": "Hi"}
FUNCTION = {"name": "look", "description": "Look.", "parameters": {"type": "object"}}
NESTED, FLAT = {"type": "function", "function": FUNCTION}, {"type": "function", **FUNCTION}
CALL = {"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}
CALL_ITEM = {"type": "function_call", "call_id": "", "name": "look", "arguments": ""}
USE = {"type": "tool_use", "id": "c", "name": "look"}
RESULT: dict[str, Any] = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c"}]}
SAME: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    (CHAT, {"tools": [FLAT]}, {"tools": [NESTED]}),
    (CHAT, {"tools": [{"function": FUNCTION}]}, {"tools": [NESTED]}),
    (CHAT, {"tools": [{"type": None, "function": FUNCTION}]}, {"tools": [NESTED]}),
    (CHAT, {"tools": [NESTED], "tool_choice": ""}, {"tools": [NESTED]}),
    (RESPONSES, {"tools": [NESTED]}, {"tools": [FLAT]}),
    (RESPONSES, {"tools": [FLAT], "tool_choice": {}}, {"tools": [FLAT]}),
    (RESPONSES, {"tools": [FLAT], "tool_choice": {"type": "auto"}}, {"tools": [FLAT]}),
    (CHAT, {"messages": [{"role": "user", "content": ["Hi"]}]}, {}),
    (
        CHAT,
        {"messages": [HI, {"role": "user", "content": [{**RESULT["content"][0], "content": [{"text": "Rain."}]}]}]},
        {"messages": [HI, {"role": "user", "content": "Rain."}]},
    ),
    (CHAT, {"response_format": {}, "service_tier": "", "reasoning_effort": ""}, {}),
    (RESPONSES, {"text": {"format": {}}, "service_tier": "", "reasoning": {"effort": ""}}, {}),
    (MESSAGES, {"thinking": {}, "tool_choice": {}, "output_format": {}, "service_tier": ""}, {}),
    (RESPONSES, {"stream_options": {"include_obfuscation": False}}, {}),
    (
        CHAT,
        {"messages": [HI, {"role": "assistant", "tool_calls": [CALL]}, {"role": "tool", "tool_call_id": "c"}]},
        {"messages": [HI, {"role": "assistant", "tool_calls": [CALL]}, {"role": "tool", "content": ""}]},
    ),
    (
        MESSAGES,
        {"messages": [HI, {"role": "assistant", "content": [{**USE, "input": '{"a": 1}'}]}, RESULT]},
        {"messages": [HI, {"role": "assistant", "content": [{**USE, "input": {"a": 1}}]}, RESULT]},
    ),
]


@pytest.fixture
async def served(fresh_gateway: Served) -> Served:
    await fresh_gateway.tenant()
    return fresh_gateway


@pytest.mark.parametrize(("path", "sent", "usual"), SAME)
async def test_both_come_to_one_prompt(served: Served, path: str, sent: dict[str, Any], usual: dict[str, Any]) -> None:
    turns = {"input": "Hi"} if path == RESPONSES else {"messages": [HI]}
    for body in (sent, usual):
        answer = await served.post(path, {"model": "tiny", **turns, **body})
        assert answer.status_code == 200, answer.text
        assert "x-fairlane-ignored" not in answer.headers

    first, second = (seen.job for seen in served.worker.seen[-2:])
    assert (first.prompt, first.grammar) == (second.prompt, second.grammar)


@pytest.mark.parametrize(
    ("path", "body", "ignored"),
    [
        (CHAT, {"messages": [HI], "stream_options": {}}, None),
        (COMPLETIONS, {"prompt": "Hi", "stream_options": {"include_usage": False}}, None),
        (RESPONSES, {"input": [{"type": "acme:search", "results": ["x"]}, HI]}, "input.acme?search"),
        (RESPONSES, {"input": [CALL_ITEM, {**CALL_ITEM, "type": "function_call_output", "output": ""}, HI]}, None),
    ],
)
async def test_what_says_nothing_to_the_model_is_read(
    served: Served, path: str, body: dict[str, Any], ignored: str | None
) -> None:
    answer = await served.post(path, {"model": "tiny", **body})

    assert (answer.status_code, answer.headers.get("x-fairlane-ignored")) == (200, ignored), answer.text
