"""The packages of each extra, and whether they are installed; reads metadata only, without imports."""

import re
from importlib import metadata

NAME = "fairlane"


def packages_of(extra: str) -> list[str]:
    """Return the packages that an extra requires on every platform."""
    found = []
    for requirement in metadata.requires(NAME) or ():
        named, _, marker = requirement.partition(";")
        if re.search(rf"""extra == ['"]{extra}['"]""", marker) and "sys_platform" not in marker:
            found.append(re.split(r"[^\w.-]", named.strip(), maxsplit=1)[0])
    return found


def version(package: str) -> str | None:
    """Return an installed package's version; None if it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
