"""What a line of the scheduler's proof is made of: one figure beside its target, and the means to get it."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

C = TypeVar("C")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Line:
    """One figure. `value` and `met` are None where it was not measured."""

    line: int
    name: str
    value: float | None
    target: float
    met: bool | None
    how: str


def at_most(line: int, name: str, value: float, target: float, how: str) -> Line:
    """A figure that is met up to its target."""
    return Line(line, name, value, target, value <= target, how)


def at_least(line: int, name: str, value: float, target: float, how: str) -> Line:
    """A figure that is met from its target on."""
    return Line(line, name, value, target, value >= target, how)


def unmeasured(line: int, name: str, target: float, why: str) -> Line:
    """A figure that this run leaves out."""
    return Line(line, name, None, target, None, why)


@dataclass(frozen=True, slots=True)
class Table:
    """Figures behind the lines: a row for each policy or setting."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


class Effort(Protocol):
    """How much to run, and where."""

    @property
    def quick(self) -> bool:
        """Small versions, of what needs little."""
        ...

    @property
    def seeds(self) -> Sequence[int]:
        """What to repeat everything with."""
        ...

    def each(self, what: str, play: Callable[[C], R], cases: Iterable[C]) -> list[R]:
        """`play` each case, maybe in another process; the results in order. `play` stands at the top of a module."""
        ...

    def show(self, table: Table) -> None:
        """Print figures behind a line."""
        ...
