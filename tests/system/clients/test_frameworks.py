"""Frameworks in Python as PyPI brings them, each in the clients' own environment."""

import re
from collections.abc import Callable
from pathlib import Path
from shutil import copy

import pytest

from tests.system.clients.conftest import MODEL, SAID, Agents

pytestmark = [pytest.mark.system, pytest.mark.thorough, pytest.mark.anyio]
HERE = Path(__file__).parent
# Of LangChain's 50 standard tests five need files from the internet (images, PDFs, sound), and one its recordings.
LANGCHAIN_PASSES = 44
Installed = Callable[[str], Path]


def environ(agents: Agents) -> dict[str, str]:
    return {"OPENAI_BASE_URL": f"{agents.url}/v1", "OPENAI_API_KEY": agents.key, "OPENAI_MODEL": MODEL}


async def test_langchains_standard_tests(agents: Agents, installed: Installed, tmp_path: Path) -> None:
    options = ("-q", "-p", "no:cacheprovider", "-o", "asyncio_mode=auto", f"--rootdir={tmp_path}")
    tests = copy(HERE / "langchain_standard.py", tmp_path)  # away from our own settings of pytest
    ran = await agents.run([installed("pytest"), *options, tests], tmp_path, **environ(agents))

    counted = re.search(r"(\d+) passed", ran.stdout)
    assert ran.returncode == 0, ran.stdout[-4000:]
    assert counted is not None
    assert int(counted[1]) >= LANGCHAIN_PASSES, ran.stdout[-2000:]


async def test_pydantic_ai_and_openais_agents_call_tools(agents: Agents, installed: Installed, tmp_path: Path) -> None:
    ran = await agents.run([installed("python"), HERE / "tool_agents.py"], tmp_path, **environ(agents))

    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines() == [f"{api}: {SAID}" for api in ("chat", "responses", "agents")]
    assert sum("<tool_response>\nsunny" in prompt for prompt in agents.worker.prompts) == 3
