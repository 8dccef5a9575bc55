"""Which packages an extra of Fairlane brings, and whether they are installed; names alone, which costs no import."""

import re
from importlib import metadata

NAME = "fairlane"


def packages_of(extra: str) -> list[str]:
    """Names of the packages that an extra brings on every platform."""
    found = []
    for requirement in metadata.requires(NAME) or ():
        named, _, marker = requirement.partition(";")
        if re.search(rf"""extra == ['"]{extra}['"]""", marker) and "sys_platform" not in marker:
            found.append(re.split(r"[^\w.-]", named.strip(), maxsplit=1)[0])
    return found


def version(package: str) -> str | None:
    """Of an installed package; None where it is not."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
