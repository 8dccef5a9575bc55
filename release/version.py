"""The version that pyproject.toml states, in the files that repeat it: `python -m release.version 0.3.0` sets it."""

import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PLACES = (
    "pyproject.toml",
    "gateway/Dockerfile",
    "worker/**/Dockerfile",
    "docs/*.md",
    "helm/Chart.yaml",
    "helm/README.md",
    "helm/ci/*",
)
MENTION = re.compile(
    r'(?P<before>^version = "|^appVersion: |^ARG VERSION=|\btag: |\bfairlane(?:-(?:gateway|worker|lease-holder))?[:-])'
    r"(?P<version>\d+\.\d+\.\d+)",
    re.MULTILINE,
)


def project() -> dict[str, Any]:
    """Return the table `project` of pyproject.toml."""
    table: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return table


def files() -> Iterator[Path]:
    """Yield the files that repeat the version."""
    for place in PLACES:
        yield from sorted(ROOT.glob(place))


def mentions() -> Iterator[tuple[str, str]]:
    """Yield each mention, as the file and the version."""
    for path in files():
        for found in MENTION.finditer(path.read_text()):
            yield str(path.relative_to(ROOT)), found["version"]


def replace(version: str) -> None:
    """Set the version in every file."""
    for path in files():
        path.write_text(MENTION.sub(rf"\g<before>{version}", path.read_text()))


if __name__ == "__main__":
    (wanted,) = sys.argv[1:]
    replace(wanted)
