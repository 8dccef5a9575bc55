"""Coding agents as npm brings them: each asks, runs the tool that the model calls, and answers from its result."""

import json
from pathlib import Path

import pytest

from tests.system.clients.conftest import MODEL, SAID, Agents, Installed

pytestmark = [pytest.mark.system, pytest.mark.thorough, pytest.mark.anyio]
ASKED = "Please print fair-lane."


async def test_claude_code(agents: Agents, installed: Installed, tmp_path: Path) -> None:
    ran = await agents.run(
        [installed("agents/node_modules/.bin/claude"), "-p", ASKED, "--allowedTools", "Bash"],
        tmp_path,
        ANTHROPIC_BASE_URL=agents.url,
        ANTHROPIC_AUTH_TOKEN=agents.key,
        ANTHROPIC_MODEL=MODEL,
        ANTHROPIC_SMALL_FAST_MODEL=MODEL,
        CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC="1",
    )

    assert (ran.returncode, ran.stdout.strip()) == (0, SAID), ran.stderr
    assert "<tool_response>\nfair-lane" in agents.worker.prompts[-1]


@pytest.mark.parametrize("on_socket", [False, True], ids=["posts", "websocket"])
async def test_codex(agents: Agents, installed: Installed, tmp_path: Path, on_socket: bool) -> None:
    home = tmp_path / "codex"
    home.mkdir()
    config = f"""
        model = "{MODEL}"
        model_provider = "fairlane"
        web_search = "disabled"
        [model_providers.fairlane]
        name = "Fairlane"
        base_url = "{agents.url}/v1"
        env_key = "FAIRLANE_KEY"
        wire_api = "responses"
        supports_websockets = {json.dumps(on_socket)}
    """
    (home / "config.toml").write_text("\n".join(line.strip() for line in config.splitlines()))
    options = ["--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"]

    agents.worker.prompts.clear()
    ran = await agents.run(
        [installed("agents/node_modules/.bin/codex"), "exec", *options, ASKED],
        tmp_path,
        CODEX_HOME=str(home),
        FAIRLANE_KEY=agents.key,
    )

    assert (ran.returncode, ran.stdout.strip()) == (0, SAID), ran.stderr
    assert "Output:\nfair-lane" in agents.worker.prompts[-1]
    assert len(agents.worker.prompts) == 2 + on_socket, "on a WebSocket, the first message only reads the prompt"


async def test_opencode(agents: Agents, installed: Installed, tmp_path: Path) -> None:
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "options": {"baseURL": f"{agents.url}/v1", "apiKey": agents.key},
        "models": {MODEL: {"name": MODEL}},
    }
    config = {"provider": {"fairlane": provider}, "model": f"fairlane/{MODEL}", "small_model": f"fairlane/{MODEL}"}
    (tmp_path / "opencode.json").write_text(json.dumps({**config, "autoupdate": False}))

    ran = await agents.run([installed("agents/node_modules/.bin/opencode"), "run", ASKED], tmp_path)

    assert ran.returncode == 0, ran.stderr
    assert SAID in ran.stdout
    assert any("<tool_response>\nfair-lane" in prompt for prompt in agents.worker.prompts)


async def test_aider(agents: Agents, installed: Installed, tmp_path: Path) -> None:
    (tmp_path / "hello.py").write_text("")
    asked = ["--message", "Print it from hello.py", "--edit-format", "whole", "hello.py"]
    options = ["--yes-always", "--no-git", "--no-check-update", "--no-show-model-warnings", "--analytics-disable"]

    ran = await agents.run(
        [installed("aider/bin/aider"), "--model", f"openai/{MODEL}", *options, *asked],
        tmp_path,
        OPENAI_API_BASE=f"{agents.url}/v1",
        OPENAI_API_KEY=agents.key,
    )

    assert ran.returncode == 0, ran.stderr
    assert (tmp_path / "hello.py").read_text() == "print('fair-lane')\n", ran.stdout
