"""Tools of Anthropic's: those that the caller runs, and those that are not served."""

import json
from collections.abc import AsyncIterator
from typing import Any

import anthropic
import pytest

from fairlane.gateway.request.service_level import IGNORED_HEADER
from tests.support.gateway.response_events import prompt
from tests.support.gateway.served import WAIT_S, Served, serving, settings
from tests.support.gateway.tool_models import tool_card

pytestmark = pytest.mark.anyio

PATH = "/v1/messages"
ASKED: dict[str, Any] = {"model": "Qwen 3", "max_tokens": 200, "messages": [{"role": "user", "content": "List /tmp"}]}
CLIENT: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"type": "bash_20250124", "name": "bash"}, {"command": "ls /tmp"}),
    ({"type": "bash_20241022", "name": "bash"}, {"restart": True}),
    ({"type": "text_editor_20250124", "name": "str_replace_editor"}, {"command": "view", "path": "/a"}),
    (
        {"type": "text_editor_20250728", "name": "str_replace_based_edit_tool", "max_characters": 10_000},
        {"command": "insert", "path": "/a", "insert_line": 0, "insert_text": "x"},
    ),
    ({"type": "memory_20250818", "name": "memory"}, {"command": "rename", "old_path": "/a", "new_path": "/b"}),
]
SERVER: list[dict[str, Any]] = [
    {"type": "web_search_20250305", "name": "web_search", "max_uses": 5},
    {"type": "web_fetch_20250910", "name": "web_fetch"},
    {"type": "code_execution_20250825", "name": "code_execution"},
    {"type": "computer_20250124", "name": "computer", "display_width_px": 1, "display_height_px": 1},
    {"type": "tool_search_tool_regex_20251119", "name": "tool_search_tool_regex"},
    {"type": "mcp_toolset", "mcp_server_name": "a"},
]


@pytest.fixture(scope="module")
async def calling(file_url: str) -> AsyncIterator[Served]:
    """A gateway whose model calls tools."""
    async with serving(settings(file_url), card=tool_card("Qwen 3")) as opened:
        yield opened


@pytest.fixture
async def served(calling: Served) -> Served:
    await calling.renew()
    await calling.tenant()
    return calling


@pytest.mark.parametrize("strict", [None, True])
@pytest.mark.parametrize(("tool", "given"), CLIENT, ids=lambda value: value.get("type", ""))
async def test_a_tool_that_the_caller_runs_is_shown_and_called(
    served: Served, tool: dict[str, Any], given: dict[str, Any], strict: bool | None
) -> None:
    call = json.dumps({"name": tool["name"], "arguments": given})
    served.worker.say(f"<tool_call>\n{call}\n</tool_call>")
    async with anthropic.AsyncAnthropic(base_url=served.url, api_key=served.keys["acme"], timeout=WAIT_S) as client:
        tools: Any = [
            {**tool, **({} if strict is None else {"strict": strict}), "cache_control": {"type": "ephemeral"}}
        ]
        answer = await client.messages.create(**ASKED, tools=tools)
        counted = await client.messages.count_tokens(model="Qwen 3", messages=ASKED["messages"], tools=tools)

    assert answer.stop_reason == "tool_use"
    (block,) = answer.content
    assert block.type == "tool_use"
    assert (block.name, block.input) == (tool["name"], given)
    assert f'"name": "{tool["name"]}"' in prompt(served)
    assert all(f'"{name}"' in prompt(served) for name in given)
    assert counted.input_tokens == answer.usage.input_tokens + (answer.usage.cache_read_input_tokens or 0)


@pytest.mark.parametrize("tool", SERVER, ids=lambda tool: tool["type"])
async def test_a_server_tool_is_refused_by_name_unless_nothing_may_be_called(
    served: Served, tool: dict[str, Any]
) -> None:
    refused = await served.post(PATH, {**ASKED, "tools": [tool]})
    harmless = await served.post(PATH, {**ASKED, "tools": [tool], "tool_choice": {"type": "none"}})

    error = refused.json()["error"]
    assert (refused.status_code, error["type"], error["param"]) == (400, "invalid_request_error", "tools.[0]")
    assert any(f"`{tool['type'][:length]}`" in error["message"] for length in range(1, 40))
    assert harmless.status_code == 200, harmless.text
    assert harmless.headers[IGNORED_HEADER] == "tools"


@pytest.mark.parametrize(
    ("tool", "param"),
    [
        ({"type": "bash_20250124"}, "tools.[0].name"),
        ({"type": "bash_latest", "name": "bash"}, "tools.[0]"),
        ({"type": 1, "name": "bash"}, "tools.[0].type"),
        (
            {"type": "bash_20250124", "name": "bash", "allowed_callers": ["code_execution_20250825"]},
            "tools.[0].allowed_callers.[0]",
        ),
    ],
)
async def test_what_is_wrong_with_a_tool_is_named(served: Served, tool: dict[str, Any], param: str) -> None:
    answer = await served.post(PATH, {**ASKED, "tools": [tool]})

    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


@pytest.mark.parametrize("beta", ["x-2099-01-01", "a,b , c", "", ",", "é" * 300])
async def test_a_beta_header_is_never_an_error(served: Served, beta: str) -> None:
    headers = {"authorization": f"Bearer {served.keys['acme']}", "anthropic-beta": beta.encode()}
    async with served.http as client:
        for path in (PATH, f"{PATH}?beta=true", f"{PATH}/count_tokens?beta=true"):
            body = ASKED if "count" not in path else {"model": "Qwen 3", "messages": ASKED["messages"]}
            answer = await client.post(path, headers=headers, json=body)  # type: ignore[arg-type]
            assert answer.status_code == 200, answer.text
