"""Open WebUI as PyPI brings it: chats of two turns with a tool, in each way in which it can ask for one."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.system.clients.conftest import MODEL, SAID, Agents, Installed
from tests.system.clients.open_webui import OpenWebUI, serving

pytestmark = [pytest.mark.system, pytest.mark.thorough, pytest.mark.anyio]


@pytest.fixture(scope="module")
async def webui(
    agents: Agents, installed: Installed, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[OpenWebUI]:
    python: Path = installed("open_webui/bin/python")
    async with serving(python, tmp_path_factory.mktemp("webui"), agents.url, agents.key, MODEL) as running:
        yield running


@pytest.mark.parametrize("calling", ["native", "legacy"])
@pytest.mark.parametrize("api", ["chat", "responses"])
async def test_a_chat_with_a_tool(agents: Agents, webui: OpenWebUI, api: str, calling: str) -> None:
    await webui.connect(api_type=api)
    webui.calling = calling
    before = len(agents.worker.prompts)

    first = await webui.ask("What is the weather in Paris?")
    second = await webui.ask("What is it tomorrow?")

    assert [first["content"], second["content"]] == [SAID, SAID]
    assert (second["followUps"], (await webui.stored())["title"]) == (["And then?"], "Weather")
    assert second["usage"]["output_tokens"] > 0
    prompts = agents.worker.prompts[before:]
    assert sum("sunny in Paris" in prompt for prompt in prompts) >= 2


@pytest.mark.parametrize("api", ["chat", "responses"])
async def test_reasoning_is_shown(webui: OpenWebUI, api: str) -> None:
    await webui.connect(api_type=api)

    first = await webui.ask("Think about Paris.")
    second = await webui.ask("Think about it again.")

    for answer in (first, second):
        assert [item["type"] for item in answer["output"]] == ["reasoning", "message"]
        assert answer["content"].endswith(SAID)
        assert "Hm." in str(answer["output"][0])


async def test_it_finds_out_whether_a_connection_works(webui: OpenWebUI) -> None:
    checked = await webui.post("/openai/verify", {"url": f"{webui.url}/v1", "key": webui.key})
    refused = await webui.http.post("/openai/verify", json={"url": f"{webui.url}/v1", "key": "fl-wrong"})

    assert [model["id"] for model in checked["data"]] == [MODEL]
    assert (refused.status_code, refused.json()["error"]["code"]) == (401, "invalid_api_key")


async def test_whole_answers_and_passed_on_responses(webui: OpenWebUI) -> None:
    await webui.connect()
    turns = [{"role": "user", "content": "Hi"}]

    chat = await webui.post("/api/chat/completions", {"model": MODEL, "messages": turns, "stream": False})
    response = await webui.post("/openai/responses", {"model": MODEL, "input": "Hi", "store": False})

    assert chat["choices"][0]["message"]["content"] == SAID
    assert response["output"][0]["content"][0]["text"] == SAID
