"""The two Dockerfiles, against the chart that runs their images and the package that they install. Nothing is built."""

import importlib.util
import json
import re
import tomllib

import pytest

from tests.chart.conftest import Render
from tests.support.chart import CHART

ROOT = CHART.parent
INSTRUCTIONS = {"ARG", "COPY", "ENTRYPOINT", "ENV", "FROM", "HEALTHCHECK", "RUN", "USER"}

pytestmark = pytest.mark.parametrize("component", ["gateway", "worker"])


def instructions(component: str) -> list[tuple[str, str]]:
    """The instructions of a Dockerfile with their arguments, continued lines joined."""
    text = (ROOT / component / "Dockerfile").read_text()
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    return [(line.partition(" ")[0], line.partition(" ")[2]) for line in joined.splitlines()]


def only(component: str, name: str) -> str:
    """The argument of the last instruction of that name."""
    return [arguments for each, arguments in instructions(component) if each == name][-1]


def test_every_instruction_is_one_that_docker_knows(component: str) -> None:
    assert {name for name, _ in instructions(component)} <= INSTRUCTIONS


def test_the_image_starts_the_module_that_the_chart_starts(render: Render, component: str) -> None:
    entrypoint = json.loads(only(component, "ENTRYPOINT"))

    assert entrypoint == render().container(component)["command"]
    assert importlib.util.find_spec(f"{entrypoint[2]}.__main__") is not None


def test_the_image_installs_its_own_extra_alone(component: str) -> None:
    known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]

    (extras,) = re.findall(r'"/src\[([\w,]+)\]"', (ROOT / component / "Dockerfile").read_text())

    assert extras.split(",") == {"gateway": ["gateway", "objects"], "worker": ["worker"]}[component]
    assert set(extras.split(",")) <= known.keys()


def test_the_image_runs_as_the_chart_s_user_who_is_not_root(render: Render, component: str) -> None:
    security = render().pod(component)["securityContext"]

    assert only(component, "USER") == f"{security['runAsUser']}:{security['runAsGroup']}"
    assert security["runAsUser"] > 0


def test_the_image_sets_nothing_that_the_chart_s_configuration_says(render: Render, component: str) -> None:
    """A variable of the image would win over fairlane.yaml."""
    names = re.findall(r"(FAIRLANE_\w+)=", only(component, "ENV"))

    assert names == ["FAIRLANE_DATA_DIR"]
    assert f"FAIRLANE_DATA_DIR={render().env(component)['FAIRLANE_DATA_DIR']}" in only(component, "ENV")


def test_what_is_copied_is_the_package_and_what_it_is_built_from(component: str) -> None:
    kept = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    rooms = {path.name for path in (ROOT / "fairlane").iterdir() if path.is_symlink()}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

    assert kept >= rooms | {"fairlane", "pyproject.toml", "constraints.txt", project["readme"]}
    assert all((ROOT / name).exists() for name in kept)
    assert component in kept
