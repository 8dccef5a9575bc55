"""`make dist`: the same bytes from any clone of a commit, and packages that install into an empty environment."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path
from typing import NamedTuple

import pytest

from release import version

ROOT = Path(__file__).parents[2]
VENV = ROOT / ".venv"
TOOLS = VENV / "release/bin"
LIMIT_S = 280
VERSION = version.project()["version"]

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.timeout(900),  # builds twice
    pytest.mark.skipif(not (VENV / ".release").exists(), reason="`make test-all` installs what makes releases"),
]


class Made(NamedTuple):
    """What two clones of the last commit made, in different folders and with different permissions for new files."""

    first: Path
    second: Path


def made_in(place: Path, umask: int) -> Path:
    """Clone the last commit and run `make dist` in the clone, by the tools of this environment as they are."""
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(place)], check=True, umask=umask)
    keep = [word for stamp in (".dev", ".release") for word in ("--old-file", str(VENV / stamp))]
    environ = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "MAKEFLAGS")}
    done = subprocess.run(
        ["make", "dist", f"VENV={VENV}", *keep],
        cwd=place, env=environ, umask=umask, capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return place / "dist"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    place = tmp_path_factory.mktemp("made")
    return Made(made_in(place / "one", 0o022), made_in(place / "elsewhere", 0o077))


@pytest.fixture(scope="module")
def empty(made: Made, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel and what it asks for, and nothing else."""
    place = tmp_path_factory.mktemp("empty") / "venv"
    venv.create(place, with_pip=True)
    wheel = made.first / f"fairlane-{VERSION}-py3-none-any.whl"
    subprocess.run(
        [place / "bin/pip", "install", "--quiet", "--constraint", str(ROOT / "constraints.txt"), f"{wheel}[gateway]"],
        cwd=place, check=True, timeout=LIMIT_S,
    )  # fmt: skip
    return place


def in_it(empty: Path, *command: str) -> str:
    environ = {"PATH": f"{empty}/bin:/usr/bin:/bin", "HOME": str(empty), "FAIRLANE_REDIS_URL": "redis://store:6379"}
    done = subprocess.run(command, env=environ, cwd=empty, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_two_clones_make_the_same_bytes(made: Made) -> None:
    names = sorted(path.name for path in made.first.iterdir())

    assert names == sorted(path.name for path in made.second.iterdir())
    assert [name for name in names if (made.first / name).read_bytes() != (made.second / name).read_bytes()] == []


def test_the_checksums_are_those_of_every_file(made: Made) -> None:
    rows = {row[66:]: row[:64] for row in (made.first / "SHA256SUMS").read_text().splitlines()}
    found = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in made.first.iterdir()}

    assert rows == {name: digest for name, digest in found.items() if name != "SHA256SUMS"}
    assert {f"fairlane-{VERSION}-py3-none-any.whl", f"fairlane-{VERSION}.tar.gz", "fairlane.cdx.json"} <= rows.keys()


def test_the_wheel_runs_from_an_empty_environment(empty: Path) -> None:
    assert in_it(empty, "fairlane", "--version").strip() == f"fairlane {VERSION}"
    in_it(empty, "python", "-m", "fairlane.gateway", "--check-config")
    in_it(empty, "pip", "check")


def test_the_sdist_installs_too(made: Made, empty: Path, tmp_path: Path) -> None:
    """By the setuptools of this environment: none is downloaded."""
    sdist = made.first / f"fairlane-{VERSION}.tar.gz"
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation", "-t", tmp_path, sdist],
        check=True, timeout=LIMIT_S,
    )  # fmt: skip
    (packages,) = empty.glob("lib/python3*/site-packages")

    assert {path.name for path in tmp_path.rglob("*.py")} == {
        path.name for path in (packages / "fairlane").rglob("*.py")
    }


def test_the_sbom_lists_what_was_installed(made: Made, empty: Path) -> None:
    document = json.loads((made.first / "fairlane.cdx.json").read_text())
    listed = {(each["name"].lower(), each["version"].partition("+")[0]) for each in document["components"]}
    installed = json.loads(in_it(empty, "pip", "list", "--format", "json"))
    names = {(each["name"].lower(), each["version"]) for each in installed if each["name"] not in ("fairlane", "pip")}

    assert document["metadata"]["component"]["version"] == VERSION
    assert {name for name in names if name[0] != "setuptools"} - listed == set()


def test_the_chart_s_package_renders_as_the_folder_does(made: Made, tmp_path: Path) -> None:
    (package,) = made.first.glob("*.tgz")
    values = ROOT / "helm/ci/production-values.yaml"
    rendered = [
        subprocess.run(
            [TOOLS / "helm", "template", "fairlane", chart, "--values", values],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for chart in (package, made.first.parent / "helm")
    ]

    assert rendered[0] == rendered[1]


def test_every_licence_is_one_that_may_be_used(made: Made) -> None:
    if shutil.which("pip-licenses", path=str(TOOLS)) is None:
        pytest.skip("without pip-licenses")
    product = made.first.parent / "build/product/bin/python"

    subprocess.run([TOOLS / "pip-licenses", "--python", product], cwd=ROOT, capture_output=True, check=True)
