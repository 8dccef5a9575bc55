"""The Dockerfiles, against the chart that runs their images and the package that they install. Nothing is built."""

import importlib.util
import json
import re
import tomllib
from typing import NamedTuple

import pytest

from tests.chart.conftest import Render
from tests.support.chart import CHART
from tests.support.dockerfile import KNOWN, instructions

ROOT = CHART.parent


class Image(NamedTuple):
    """One Dockerfile, and the container that runs its image."""

    folder: str
    extras: tuple[str, ...]
    mode: str
    component: str
    container: str


IMAGES = [
    Image("gateway", ("gateway", "objects"), "minimal", "gateway", "gateway"),
    Image("worker", ("worker",), "minimal", "worker", "worker"),
    Image("worker/remote", ("remote",), "sidecar", "engine-qwen", "lease-holder"),
]

pytestmark = pytest.mark.parametrize("image", IMAGES, ids=lambda image: image.container)


def only(image: Image, name: str) -> str:
    """The argument of the last instruction of that name."""
    return [arguments for each, arguments in instructions(ROOT / image.folder / "Dockerfile") if each == name][-1]


def test_every_instruction_is_one_that_docker_knows(image: Image) -> None:
    assert {name for name, _ in instructions(ROOT / image.folder / "Dockerfile")} <= KNOWN


def test_the_image_starts_the_module_that_the_chart_starts(render: Render, image: Image) -> None:
    entrypoint = json.loads(only(image, "ENTRYPOINT"))

    assert entrypoint == render(image.mode).container(image.component, image.container)["command"]
    assert importlib.util.find_spec(f"{entrypoint[2]}.__main__") is not None


def test_the_image_installs_its_own_extra_alone(image: Image) -> None:
    known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]

    (extras,) = re.findall(r'"/src\[([\w,]+)\]"', (ROOT / image.folder / "Dockerfile").read_text())

    assert tuple(extras.split(",")) == image.extras
    assert {*image.extras} <= known.keys()


def test_the_image_runs_as_the_chart_s_user_who_is_not_root(render: Render, image: Image) -> None:
    security = render(image.mode).pod(image.component)["securityContext"]

    assert only(image, "USER") == f"{security['runAsUser']}:{security['runAsGroup']}"
    assert security["runAsUser"] > 0


def test_the_image_sets_nothing_that_the_chart_s_configuration_says(render: Render, image: Image) -> None:
    """A variable of the image would win over fairlane.yaml."""
    names = re.findall(r"(FAIRLANE_\w+)=", only(image, "ENV"))

    directory = render(image.mode).env(image.component, image.container)["FAIRLANE_DATA_DIR"]
    assert names == ["FAIRLANE_DATA_DIR"]
    assert f"FAIRLANE_DATA_DIR={directory}" in only(image, "ENV")


def test_the_image_says_what_it_is(image: Image) -> None:
    labels = dict(re.findall(r'org\.opencontainers\.image\.(\w+)="([^"]*)"', only(image, "LABEL")))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

    assert labels["title"] == f"fairlane-{image.container}"
    assert labels["licenses"] == project["license"]
    assert ("ARG", f"VERSION={project['version']}") in instructions(ROOT / image.folder / "Dockerfile")
    assert labels.keys() == {"title", "description", "licenses", "version", "revision"}


def test_what_is_copied_is_the_package_and_what_it_is_built_from(image: Image) -> None:
    kept = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    rooms = {path.name for path in (ROOT / "fairlane").iterdir() if path.is_symlink()}

    assert kept >= rooms | {"fairlane", "pyproject.toml", "setup.py", "constraints.txt", "README.md"}
    assert all((ROOT / name).exists() for name in kept)
    assert image.folder.partition("/")[0] in kept
