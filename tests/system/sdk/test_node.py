"""The official Node SDK, unmodified, by node's own test runner. A case that fails is named."""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.system.harness import MODEL, Server
from tests.system.sdk.conftest import NewKey

pytestmark = pytest.mark.system

CASES = Path(__file__).with_name("node")
LEAST_CASES = 40
INSTALL_S = 120
RUN_S = 300
RESULT = re.compile(r"^ +(?P<not>not )?ok \d+ - (?P<name>.*?)(?: # .*)?$", re.MULTILINE)


@pytest.fixture
def installed(request: pytest.FixtureRequest) -> Path:
    """Where the packages stand that `package-lock.json` names, kept between runs."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("node and npm are not installed")
    assert request.config.cache is not None
    place = request.config.cache.mkdir("sdk-node")
    lock = (CASES / "package-lock.json").read_text()
    kept = place / "installed.json"
    if not kept.exists() or kept.read_text() != lock:
        for name in ("package.json", "package-lock.json"):
            shutil.copy(CASES / name, place)
        install = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--prefer-offline", "--fetch-retries=1"]
        try:
            subprocess.run(install, cwd=place, capture_output=True, timeout=INSTALL_S, check=True)
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired):
            pytest.skip("npm cannot install the packages of package-lock.json")
        kept.write_text(lock)
    return place


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
