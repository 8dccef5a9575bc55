"""One version in all files, and dependencies within bounds that the pinned ones meet."""

import re
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement

from release import version

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
OPEN_ENDED = {"cryptography", "tzdata"}
"""Numbered by date, or by majors that seldom break."""
EXTRAS = {name: rows for name, rows in PROJECT["optional-dependencies"].items() if name != "dev"}
REQUIREMENTS = [Requirement(row) for rows in (PROJECT["dependencies"], *EXTRAS.values()) for row in rows]
PINNED = {
    re.sub(r"[-_.]+", "-", name).lower(): pinned
    for name, _, pinned in (line.partition("==") for line in (ROOT / "constraints.txt").read_text().splitlines())
}


def test_every_file_that_repeats_the_version_has_that_of_the_project() -> None:
    mentions = [*version.mentions()]

    assert {name for name, _ in mentions} >= {"helm/Chart.yaml", "gateway/Dockerfile", "docs/deployment.md"}
    assert [mention for mention in mentions if mention[1] != PROJECT["version"]] == []


def test_the_version_is_set_everywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in version.files():
        copy = tmp_path / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(path.read_text())
    monkeypatch.setattr(version, "ROOT", tmp_path)

    version.replace("9.8.7")

    assert {number for _, number in version.mentions()} == {"9.8.7"} == {version.project()["version"]}


def test_the_chart_s_version_is_that_of_the_pages() -> None:
    chart = yaml.safe_load((ROOT / "helm/Chart.yaml").read_text())["version"]

    assert f"- Helm chart {chart}" in (ROOT / "CHANGELOG.md").read_text()
    assert f" to {chart}:" in (ROOT / "helm/README.md").read_text()


@pytest.mark.parametrize("each", REQUIREMENTS, ids=str)
def test_a_dependency_is_bounded_around_the_pinned_release(each: Requirement) -> None:
    if each.name == "fairlane":  # its own extras
        return
    operators = {part.operator for part in each.specifier}
    name = re.sub(r"[-_.]+", "-", each.name).lower()

    assert each.specifier.contains(PINNED[name])
    assert operators == {"=="} or operators == {">=", "<"} or (name in OPEN_ENDED and operators == {">="})


def test_every_base_image_is_named_by_the_same_digest() -> None:
    bases = {
        line.split()[1]
        for path in version.files()
        if path.name == "Dockerfile"
        for line in path.read_text().splitlines()
        if line.startswith("FROM ")
    }

    (base,) = bases
    assert re.fullmatch(r"python:3\.12-slim@sha256:[0-9a-f]{64}", base)
