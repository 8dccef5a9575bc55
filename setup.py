"""The text of the package's page: README.md with links that lead into the repository, as it is at this version."""

import re
import tomllib
from pathlib import Path

from setuptools import setup

ROOT = Path(__file__).parent
PICTURES = (".gif", ".jpg", ".png", ".svg")


def absolute(markdown: str, source: str, version: str) -> str:
    """Return the text with its relative links made absolute. `source`: the URL of the repository."""

    def link(found: re.Match[str]) -> str:
        kind = "raw" if found["target"].endswith(PICTURES) else "blob"
        return f"]({source}/{kind}/v{version}/{found['target']})"

    return re.sub(r"\]\((?![a-z]+:|#)(?P<target>[^)\s]+)\)", link, markdown)


if __name__ == "__main__":
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    setup(
        long_description=absolute((ROOT / "README.md").read_text(), project["urls"]["Source"], project["version"]),
        long_description_content_type="text/markdown",
    )
