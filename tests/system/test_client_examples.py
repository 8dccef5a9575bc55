"""Each of `examples/clients/` as its README says to run it, against one running server.

Those in Python run where `make clients` has installed what they use, the one in JavaScript where node and npm are.
"""

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.system.harness import MODEL, Server
from tests.support.system.node import installed_packages

pytestmark = [pytest.mark.system, pytest.mark.thorough]

ROOT = Path(__file__).parents[2]
CLIENTS = ROOT / "examples" / "clients"
PYTHON = ROOT / ".venv" / "clients" / "bin" / "python"
AISDK = "aisdk/chat.mjs"
EXAMPLES = ("litellm_chat.py", "llamaindex_chat.py", "instructor_extract.py", AISDK)
TOKENS_PER_DAY = 1_000

Run = Callable[[str, str], "subprocess.CompletedProcess[str]"]


@pytest.fixture
def run(server: Server, request: pytest.FixtureRequest) -> Run:
    """Run an example with a tenant's key."""

    def run(example: str, key: str) -> "subprocess.CompletedProcess[str]":
        environ = {name: value for name, value in os.environ.items() if not name.startswith(("FAIRLANE_", "OPENAI_"))}
        environ |= {"OPENAI_API_KEY": key, "OPENAI_BASE_URL": f"{server.url}/v1"}
        environ |= {"LITELLM_LOCAL_MODEL_COST_MAP": "True"}  # else it asks the internet for a newer one
        command = command_of(example, request.config)
        return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=120, check=False)

    return run


def command_of(example: str, config: pytest.Config) -> list[str | Path]:
    """Skips the test where what it uses is not installed."""
    if example == AISDK:
        place = installed_packages(config, CLIENTS / "aisdk")
        shutil.copy(CLIENTS / AISDK, place)  # where its imports are found
        return ["node", place / "chat.mjs"]
    if not PYTHON.exists():
        pytest.skip("`make clients` was not run")
    return [PYTHON, CLIENTS / example]


@pytest.mark.parametrize(
    ("example", "printed"),
    [
        ("litellm_chat.py", ["Paris", " output tokens\n", 'weather {"city": "']),
        ("llamaindex_chat.py", ["Paris", "City(name='", "It is 18 degrees "]),
        ("instructor_extract.py", ["City(name='", "\nname=None country=None kind=None\n"]),
        (AISDK, ["Paris", " output tokens\n", "{ name: '", "{ city: '"]),
    ],
)
def test_it_prints_what_it_asked_for(server: Server, run: Run, example: str, printed: list[str]) -> None:
    ran = run(example, server.tenant(f"client-{Path(example).stem}"))

    assert ran.returncode == 0, ran.stderr
    assert [text for text in printed if text not in ran.stdout] == []


@pytest.mark.parametrize("spent", [970, 920], ids=["no answer fits", "no stream after it fits"])
@pytest.mark.parametrize("example", EXAMPLES)
def test_at_a_limit_it_says_when_the_request_would_fit(server: Server, run: Run, example: str, spent: int) -> None:
    key = server.tenant(f"spent-{spent}-{Path(example).stem}", limits={"tokens_per_day": TOKENS_PER_DAY})
    with server.sdk(key) as sdk:
        sdk.completions.create(model=MODEL, prompt=[1] * spent, max_tokens=1)

    ran = run(example, key)

    assert ran.returncode == 1
    assert "insufficient_quota: it would fit in " in ran.stderr
