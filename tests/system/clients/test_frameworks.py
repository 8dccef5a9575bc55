"""Frameworks in Python as PyPI brings them, each in the clients' own environment."""

import json
import os
import re
from collections.abc import AsyncIterator
from pathlib import Path
from shutil import copy
from subprocess import DEVNULL

import httpx
import pytest
from anyio import fail_after, open_process, sleep

from tests.support.ports import free_port
from tests.system.clients.conftest import MODEL, SAID, Agents, Installed, environ

pytestmark = [pytest.mark.system, pytest.mark.thorough, pytest.mark.anyio]
HERE = Path(__file__).parent
PROXY_KEY = "sk-proxy"
# Of LangChain's 50 standard tests five need files from the internet (images, PDFs, sound), and one its recordings.
LANGCHAIN_PASSES = 44


async def test_langchains_standard_tests(agents: Agents, installed: Installed, tmp_path: Path) -> None:
    # Clients are cached for all tests, so these share one event loop.
    loop = ("-o", "asyncio_mode=auto", "-o", "asyncio_default_test_loop_scope=session")
    options = ("-q", "-p", "no:cacheprovider", *loop, f"--rootdir={tmp_path}")
    tests = copy(HERE / "langchain_standard.py", tmp_path)  # away from our own settings of pytest
    ran = await agents.run([installed("frameworks/bin/pytest"), *options, tests], tmp_path, **environ(agents))

    counted = re.search(r"(\d+) passed", ran.stdout)
    assert ran.returncode == 0, ran.stdout[-4000:]
    assert counted is not None
    assert int(counted[1]) >= LANGCHAIN_PASSES, ran.stdout[-2000:]


async def test_pydantic_ai_and_openais_agents_call_tools(agents: Agents, installed: Installed, tmp_path: Path) -> None:
    ran = await agents.run([installed("frameworks/bin/python"), HERE / "tool_agents.py"], tmp_path, **environ(agents))

    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines() == [f"{api}: {SAID}" for api in ("chat", "responses", "agents")]
    assert sum("<tool_response>\nsunny" in prompt for prompt in agents.worker.prompts) == 3


@pytest.fixture
async def proxied(agents: Agents, installed: Installed, tmp_path: Path) -> AsyncIterator[str]:
    """LiteLLM's proxy in front of the gateway; its key is `PROXY_KEY`."""
    served = {"model": f"openai/{MODEL}", "api_base": f"{agents.url}/v1", "api_key": agents.key}
    config = {
        "general_settings": {"master_key": PROXY_KEY},
        "model_list": [{"model_name": MODEL, "litellm_params": served}],
    }
    (tmp_path / "proxy.yaml").write_text(json.dumps(config))
    port = free_port()
    command = [str(installed("proxy/bin/litellm")), "--config", str(tmp_path / "proxy.yaml"), "--port", str(port)]
    known = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    async with await open_process(command, env=known, stdout=DEVNULL, stderr=DEVNULL) as process:
        url = f"http://127.0.0.1:{port}"
        async with httpx.AsyncClient() as client:
            with fail_after(90):
                while not await answers(client, url):  # noqa: ASYNC110 - it has no event of its own
                    await sleep(0.2)
        yield url
        process.terminate()


async def answers(client: httpx.AsyncClient, url: str) -> bool:
    try:
        return (await client.get(f"{url}/health/liveliness")).is_success
    except httpx.TransportError:
        return False


async def test_litellms_proxy_in_front_of_it(proxied: str) -> None:
    turns = [{"role": "user", "content": "What is the weather in Paris?"}]
    tool = {"name": "get_weather", "parameters": {"type": "object", "properties": {"location": {"type": "string"}}}}
    chat = {"model": MODEL, "messages": turns}
    tools = [{"type": "function", "function": tool}]
    async with httpx.AsyncClient(base_url=proxied, headers={"authorization": f"Bearer {PROXY_KEY}"}) as client:
        called = await client.post("/v1/chat/completions", json={**chat, "tools": tools})
        message = await client.post("/v1/messages", json={**chat, "max_tokens": 30_000})
        response = await client.post("/v1/responses", json={"model": MODEL, "input": turns})

    [call] = called.json()["choices"][0]["message"]["tool_calls"]
    assert json.loads(call["function"]["arguments"]) == {"location": "Paris"}
    assert message.json()["content"][0]["text"] == SAID
    assert response.json()["output"][0]["content"][0]["text"] == SAID
