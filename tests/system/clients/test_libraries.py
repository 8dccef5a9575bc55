"""Libraries as PyPI and npm bring them: two turns that each call a tool, whole and streamed."""

from pathlib import Path
from shutil import copy

import pytest

from tests.system.clients.conftest import SAID, Agents, Installed, environ

pytestmark = [pytest.mark.system, pytest.mark.thorough, pytest.mark.anyio]
HERE = Path(__file__).parent
FOUND = "location='Paris' sky='sunny'"
NOTHING = "location='' sky=''"
# What each prints, in order. JSON_SCHEMA calls no tool, so the model has nothing but the grammar.
PRINTED = {
    "llamaindex": [f"agent: {SAID}"] * 4,
    "instructor": [
        f"{mode}: {found}"
        for mode, found in (
            ("TOOLS", FOUND),
            ("TOOLS_STRICT", FOUND),
            ("JSON_SCHEMA", NOTHING),
            ("RESPONSES_TOOLS", FOUND),
        )
        for _ in range(3)
    ],
    "litellm": [f"{provider} True: {SAID}" for provider in ("openai", "hosted_vllm") for _ in range(4)],
}
APIS = ("compatible", "chat", "responses", "messages")


@pytest.mark.parametrize("library", PRINTED)
async def test_a_python_library(agents: Agents, installed: Installed, tmp_path: Path, library: str) -> None:
    program = HERE / "tool_libraries.py"

    ran = await agents.run(
        [installed("bin/python"), program, library], tmp_path, LITELLM_LOCAL_MODEL_COST_MAP="True", **environ(agents)
    )

    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines() == PRINTED[library]


async def test_vercels_ai_sdk(agents: Agents, installed: Installed, tmp_path: Path) -> None:
    (tmp_path / "node_modules").symlink_to(installed("agents/node_modules/ai").parent)
    program = copy(HERE / "tool_aisdk.mjs", tmp_path)  # where its imports are found
    before = len(agents.worker.prompts)

    ran = await agents.run(["node", program], tmp_path, **environ(agents))

    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines() == [f"{api} true: {SAID}" for api in APIS for _ in range(4)]
    assert sum("<tool_response>\nsunny" in prompt for prompt in agents.worker.prompts[before:]) == 3 * 2 * len(APIS)
