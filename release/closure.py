"""What the product brings along, apart from what develops it: `python -m release.closure FOLDER` makes an environment
that holds the metadata of those packages alone, for tools that list, license and audit an environment."""

import sys
import venv
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from release.version import project


def distributions() -> Iterator[metadata.Distribution]:
    """Yield the installed packages that the product or one of its extras needs, directly or not."""
    table = project()
    optional = [rows for extra, rows in table["optional-dependencies"].items() if extra != "dev"]
    pending = [Requirement(row) for rows in (table["dependencies"], *optional) for row in rows]
    visited, found = {(table["name"], "")}, set()
    while pending:
        each = pending.pop()
        name = canonicalize_name(each.name)
        for extra in {"", *each.extras} if each.marker is None or each.marker.evaluate() else ():
            if (name, extra) in visited or name == table["name"]:
                continue
            visited.add((name, extra))
            distribution = metadata.distribution(name)
            for row in map(Requirement, distribution.requires or ()):
                if row.marker is None or row.marker.evaluate({"extra": extra}):
                    row.marker = None
                    pending.append(row)
            if name not in found:
                found.add(name)
                yield distribution


def write(folder: Path) -> None:
    """Make the environment."""
    venv.create(folder, clear=True, symlinks=True)
    (packages,) = folder.glob("lib/python3*/site-packages")
    for each in distributions():
        facts = Path(next(file for file in each.files or () if file.name == "METADATA").locate()).parent
        (packages / facts.name).symlink_to(facts)


if __name__ == "__main__":
    write(Path(sys.argv[1]))
