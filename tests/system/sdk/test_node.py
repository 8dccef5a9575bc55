"""The official Node SDK, unmodified, by node's own test runner. A case that fails is named."""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.system.harness import MODEL, Server
from tests.support.system.node import installed_packages
from tests.system.sdk.conftest import NewKey

pytestmark = pytest.mark.system

CASES = Path(__file__).with_name("node")
LEAST_CASES = 40
RUN_S = 300
RESULT = re.compile(r"^ +(?P<not>not )?ok \d+ - (?P<name>.*?)(?: # .*)?$", re.MULTILINE)


@pytest.fixture
def installed(request: pytest.FixtureRequest) -> Path:
    """Where the SDK stands."""
    return installed_packages(request.config, CASES)


@pytest.mark.thorough
def test_the_node_sdk(server: Server, new_key: NewKey, installed: Path) -> None:
    keys = {
        "free": new_key(lanes=["latency", "throughput"]),
        "latency": new_key(lanes=["latency"]),
        "spent": new_key(limits={"tokens_per_day": 2}),
    }
    shutil.copytree(CASES, installed, dirs_exist_ok=True)  # where its imports are found
    environ = {**os.environ, "SDK_CASES": json.dumps({"url": server.url, "model": MODEL, "keys": keys})}

    ran = subprocess.run(
        ["node", "--test", "--test-reporter=tap"],
        cwd=installed,
        env=environ,
        capture_output=True,
        text=True,
        timeout=RUN_S,
    )

    results = [(found["name"], not found["not"]) for found in RESULT.finditer(ran.stdout)]
    assert [name for name, passed in results if not passed] == [], ran.stdout
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert len(results) >= LEAST_CASES
