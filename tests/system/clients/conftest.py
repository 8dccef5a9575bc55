"""A gateway whose model does what agents ask, for clients that run as processes of their own."""

import os
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from subprocess import DEVNULL, CompletedProcess
from typing import Any

import pytest
from anyio import fail_after, run_process

from tests.support.gateway import served
from tests.system.clients.scripted_model import ScriptedModel, scripted_card

ROOT = Path(__file__).parents[3]
CLIENTS = ROOT / ".venv" / "clients"
MODEL = "scripted"
SAID = "It printed fair-lane."
ECHO = {"command": "echo fair-lane"}
WEATHER = {"location": "Paris", "sky": "sunny"}
# Arguments of the tools that clients offer.
CALLS: dict[str, dict[str, Any]] = {
    "Bash": {**ECHO, "description": "Print a word"},
    "bash": {**ECHO, "description": "Print a word"},
    "exec_command": {"cmd": "echo fair-lane"},
    "magic_function": {"input": 3},
    "magic_function_no_args": {},
    "my_adder_tool": {"a": 1, "b": 2},
    "greeting_generator": {"answer_style": "pirate"},
    "unicode_customer": {"customer_name": "你好啊集团 こんにちは株式会社", "description": "IT"},
    "get_weather": {"location": "Paris"},
    "Weather": WEATHER,
    "PartialWeather": WEATHER,
}
ANSWERS = {
    "Print it from hello.py": "hello.py\n```\nprint('fair-lane')\n```",
    "'setup' and": '{"setup": "Why?", "punchline": "Because."}',
    "Think about": f"<think>\nHm.\n</think>\n\n{SAID}",
    # Open WebUI's tasks, and its tools by prompt.
    "JSON format: ": '{"title": "Weather", "tags": ["weather"], "follow_ups": ["And then?"]}',
    "Query: ": '{"tool_calls": [{"name": "get_weather", "parameters": {"location": "Paris"}}]}',
}
RUN_S = 120.0
Installed = Callable[[str], Path]


@dataclass
class Agents:
    """The gateway, as a client's process sees it."""

    url: str
    key: str
    worker: ScriptedModel

    async def run(self, command: Sequence[str | Path], folder: Path, **environ: str) -> "CompletedProcess[str]":
        """Run a client in a folder that is its home as well."""
        known = {name: value for name, value in os.environ.items() if name in ("PATH", "LANG", "TMPDIR")}
        whole = {**known, "HOME": str(folder), **environ}
        with fail_after(RUN_S):
            ran = await run_process([*map(str, command)], cwd=folder, env=whole, stdin=DEVNULL, check=False)
        return CompletedProcess(ran.args, ran.returncode, ran.stdout.decode(), ran.stderr.decode())


@pytest.fixture(scope="module")
async def agents(file_url: str) -> AsyncIterator[Agents]:
    """One gateway and its scripted model."""
    make = partial(ScriptedModel, words=SAID, calls=CALLS, answers=ANSWERS, blocks=1_000_000)
    settings = served.settings(file_url, section={"max_body_bytes": 32_000_000})
    async with served.serving(settings, card=scripted_card(MODEL), make=make) as opened:
        assert isinstance(opened.worker, ScriptedModel)
        yield Agents(opened.url, await opened.tenant(), opened.worker)


def environ(agents: Agents) -> dict[str, str]:
    """Return the variables by which OpenAI's SDKs, and what is built on them, find the gateway."""
    return {"OPENAI_BASE_URL": f"{agents.url}/v1", "OPENAI_API_KEY": agents.key, "OPENAI_MODEL": MODEL}


@pytest.fixture(scope="session")
def installed() -> Installed:
    """Return a program of `make clients` by its place there, or skip the test."""

    def installed(name: str) -> Path:
        if not (CLIENTS / name).exists():
            pytest.skip("`make clients` was not run, or npm is missing")
        return CLIENTS / name

    return installed
