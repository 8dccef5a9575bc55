"""The notes of a release out of CHANGELOG.md: `python -m release.notes v0.3.0` prints them, or what is missing."""

import re
import sys
from collections.abc import Iterator

from release.version import ROOT, mentions, project
from setup import absolute

PLACEHOLDER = "https://example.com/"


class NotReadyError(Exception):
    """What must change before the release, a line for each."""


def notes(changelog: str, tag: str) -> str:
    """Return the section of the tag's version, with absolute links. Raises NotReadyError."""
    version, source = project()["version"], project()["urls"]["Source"]
    found = re.search(
        rf"^## \[{re.escape(version)}\] - \d{{4}}-\d\d-\d\d\n(.+?)(?=^## \[|\Z)", changelog, re.MULTILINE | re.DOTALL
    )
    missing = [*_missing(tag, version, source, has_section=found is not None)]
    if missing or found is None:
        raise NotReadyError("\n".join(missing))
    return absolute(found[1].strip(), source, version) + "\n"


def _missing(tag: str, version: str, source: str, *, has_section: bool) -> Iterator[str]:
    if tag != f"v{version}":
        yield f"tag {tag}: pyproject.toml has version {version}; tag v{version}, or run `python -m release.version`"
    for name, other in mentions():
        if other != version:
            yield f"{name}: has version {other}, pyproject.toml {version}; run `python -m release.version {version}`"
    if not has_section:
        yield f"CHANGELOG.md: no section `## [{version}] - YYYY-MM-DD`; put it under `## [Unreleased]`"
    if source.startswith(PLACEHOLDER):
        yield f"pyproject.toml: `project.urls` names {source}; name the repository's own URL"


if __name__ == "__main__":
    try:
        sys.stdout.write(notes((ROOT / "CHANGELOG.md").read_text(), sys.argv[1]))
    except NotReadyError as error:
        sys.exit(str(error))
