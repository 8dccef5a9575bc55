"""The book: costs as they were accepted, by name, and what has become of them."""

import json
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.costs import engine, gateway, imports, planner, scripts

FILE = Path(__file__).with_name("book.json")
TOLERANCE = 0.03
PYTHON = ".".join(platform.python_version_tuple()[:2])


@dataclass(frozen=True, slots=True)
class Entry:
    """One cost: as accepted, None where it is new, and as counted now, None where nothing counts it any more."""

    name: str
    accepted: float | None
    counted: float | None

    @property
    def is_accepted(self) -> bool:
        """It is in the book, still counted, and has grown by no more than TOLERANCE."""
        if self.accepted is None or self.counted is None:
            return False
        return self.counted <= self.accepted * (1.0 + TOLERANCE)

    @property
    def change(self) -> str:
        """How much it has grown, for a reader."""
        if self.accepted is None or self.counted is None:
            return "new" if self.accepted is None else "gone"
        return f"{self.counted / self.accepted - 1.0:+.1%}" if self.accepted else f"{self.counted:+g}"


def count() -> dict[str, float]:
    """Count every cost anew. Takes some 20 s."""
    found: dict[str, float] = {}
    for part in (planner, engine, gateway, scripts, imports):
        found |= part.measure()
    return {name: round(value, 1) for name, value in found.items()}


def compare(found: Mapping[str, float]) -> list[Entry]:
    """Every cost of the book and of this count, in the book's order.

    Calls differ between versions of Python: under another than the book's, only store commands are compared.
    """
    book = json.loads(FILE.read_text())
    costs: dict[str, float] = book["costs"]
    names = [*costs, *(name for name in found if name not in costs)]
    is_same = book["python"] == PYTHON
    return [Entry(name, costs.get(name), found.get(name)) for name in names if is_same or _is_of_store(name)]


def write(found: Mapping[str, float]) -> None:
    """Make these costs the accepted ones."""
    FILE.write_text(json.dumps({"python": PYTHON, "costs": found}, indent=1) + "\n")


def _is_of_store(name: str) -> bool:
    return name.endswith("store commands")
