"""The wheel and the sdist: whole, alike, and with nothing in them that is no part of the product."""

import re
import tomllib
import zipfile
from email.parser import Parser
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.distributions import build, clone, unpack

ROOT = Path(__file__).parents[2]
ROOMS = ("cli", "common", "gateway", "quotas", "scheduler", "store", "worker")
NO_PART = {"Dockerfile", ".gitignore"}
"""Of a room's files, what no process reads."""


class Built(NamedTuple):
    """Both, and the wheel that the sdist makes."""

    source: Path
    wheel: Path
    sdist: Path
    again: Path


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    place = tmp_path_factory.mktemp("dist")
    source = clone(ROOT, place / "clone")
    wheel, sdist = build("build_wheel", source, place / "wheel"), build("build_sdist", source, place / "sdist")
    return Built(source, wheel, sdist, build("build_wheel", unpack(sdist, place / "unpacked"), place / "again"))


def contents(wheel: Path) -> dict[str, bytes]:
    """All files but the list of them."""
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist() if not name.endswith("/RECORD")}


def test_the_sdist_makes_the_same_wheel(built: Built) -> None:
    first, again = contents(built.wheel), contents(built.again)

    assert first.keys() ^ again.keys() == set()
    assert [name for name, content in first.items() if content != again[name]] == []


def test_every_file_of_the_rooms_is_in_the_wheel(built: Built) -> None:
    packed = {name.removeprefix("fairlane/") for name in contents(built.wheel)}
    wanted = {
        str(path.relative_to(built.source))
        for room in ROOMS
        for path in (built.source / room).rglob("*")
        if path.is_file() and path.name not in NO_PART and "__pycache__" not in path.parts
    }

    assert wanted - packed == set()


def test_nothing_else_is_in_it(built: Built) -> None:
    names = [name for name in contents(built.wheel) if ".dist-info/" not in name]

    assert {name.split("/")[0] for name in names} == {"fairlane"}
    assert {name.split("/")[1] for name in names} <= {*ROOMS, "__init__.py", "py.typed"}


def test_licences_travel_with_it(built: Built) -> None:
    names = {name.rpartition("/")[2] for name in contents(built.wheel)}

    assert {"LICENSE", "NOTICE"} <= names


def test_its_metadata_are_those_of_the_project(built: Built) -> None:
    (text,) = [content for name, content in contents(built.wheel).items() if name.endswith(".dist-info/METADATA")]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    metadata = Parser().parsestr(text.decode())

    assert (metadata["Name"], metadata["Version"]) == (project["name"], project["version"])
    assert {*(metadata.get_all("Provides-Extra") or [])} == {
        name.replace("_", "-") for name in project["optional-dependencies"]
    }
    assert metadata.get_all("Classifier") == project["classifiers"]
    assert len(metadata.get_all("Project-URL") or []) == len(project["urls"])


def test_every_link_of_the_package_s_page_is_absolute(built: Built) -> None:
    (text,) = [content for name, content in contents(built.wheel).items() if name.endswith(".dist-info/METADATA")]
    metadata = Parser().parsestr(text.decode())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    targets = {*re.findall(r"\]\(([^)]+)\)", str(metadata.get_payload()))}
    at, into = project["urls"]["Source"], f"v{project['version']}"

    assert metadata["Description-Content-Type"] == "text/markdown"
    assert [target for target in targets if not target.startswith("https://")] == []
    assert {f"{at}/raw/{into}/docs/console.png", f"{at}/blob/{into}/docs/performance.md#the-engine"} <= targets
