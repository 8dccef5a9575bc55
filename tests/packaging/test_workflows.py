"""The workflows run nothing that does not run here: each step is a make target, or an action named by its commit."""

import re
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / ".github/workflows"
WORKFLOWS: dict[str, dict[Any, Any]] = {path.stem: yaml.safe_load(path.read_text()) for path in FOLDER.iterdir()}
TARGETS = {*re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)}
RELEASE = ROOT / ".venv/release/bin"


def steps(workflow: str) -> Iterator[dict[str, Any]]:
    for job in WORKFLOWS[workflow]["jobs"].values():
        yield from job.get("steps", [])


@pytest.mark.parametrize("workflow", WORKFLOWS)
def test_every_command_is_a_make_target(workflow: str) -> None:
    commands = [step["run"] for step in steps(workflow) if "run" in step]

    assert commands
    for command in commands:
        found = re.fullmatch(r"make ([a-z-]+)( [A-Z]+=\S+| [A-Z]+=\$\{\{ matrix\.\w+ \}\})*", command)
        assert found, command
        assert found[1] in TARGETS, command


@pytest.mark.parametrize("workflow", WORKFLOWS)
def test_every_action_is_named_by_its_commit_with_its_version_beside_it(workflow: str) -> None:
    uses = re.findall(r"uses: (?!\./)(.+)", (FOLDER / f"{workflow}.yml").read_text())

    assert [line for line in uses if not re.fullmatch(r"[\w/-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", line)] == []


def test_the_suite_runs_on_every_python_that_the_package_names() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = [found[1] for each in project["classifiers"] if (found := re.fullmatch(r".* :: (3\.\d+)", each))]

    assert WORKFLOWS["checks"]["jobs"]["suite"]["strategy"]["matrix"]["python"] == named
    assert project["requires-python"] == f">={named[0]}"


def test_a_release_pushes_every_image_of_the_bake_file() -> None:
    bake = (ROOT / "docker-bake.hcl").read_text()
    rows = WORKFLOWS["release"]["jobs"]["images"]["strategy"]["matrix"]["include"]
    (group,) = re.findall(r"^  targets = \[(.+)\]$", bake, re.MULTILINE)

    assert [row["target"] for row in rows] == re.findall(r'"([\w-]+)"', group)
    for row in rows:
        (block,) = re.findall(rf'^target "{row["target"]}" \{{(.+?)^\}}', bake, re.MULTILINE | re.DOTALL)
        assert f"/{row['image']}:" in block
        (dockerfile,) = re.findall(r'dockerfile = "(.+)"', block)
        assert (ROOT / dockerfile).exists()


def test_nothing_is_published_before_the_checks_passed() -> None:
    jobs = WORKFLOWS["release"]["jobs"]
    order = ["checks", "build", "images", "chart", "pypi", "publish"]

    assert [*jobs] == order
    assert [jobs[name]["needs"] for name in order[1:]] == order[:-1]
    assert {"pull_request", "workflow_call"} <= WORKFLOWS["checks"][True].keys()  # YAML reads `on` as true


@pytest.mark.parametrize("command", [["zizmor", "--offline", "--quiet", str(ROOT / ".github")], ["actionlint"]])
def test_linters_find_nothing(command: list[str]) -> None:
    binary = shutil.which(command[0], path=str(RELEASE))
    if binary is None:
        pytest.skip(f"{command[0]} is not in {RELEASE}: `make workflows` installs it where it can")

    done = subprocess.run([binary, *command[1:]], cwd=ROOT, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout + done.stderr
