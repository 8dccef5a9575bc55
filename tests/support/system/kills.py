"""What programs that kill processes under load share: a case for each seed, its report, and a run of all of them."""

import argparse
import asyncio
import contextlib
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar


@dataclass(frozen=True, slots=True, kw_only=True)
class KillsCase:
    """What happens in one world. Everything random in it is drawn by the seed."""

    seed: int
    longest_away_s: float = 1.0
    """Between a victim's death and its next start."""


C = TypeVar("C", bound=KillsCase)


@dataclass
class KillsReport(Generic[C]):
    """What became of a case."""

    case: C
    deaths: Counter[str] = field(default_factory=Counter)
    """By kind of process."""
    ends: Counter[str] = field(default_factory=Counter)
    """How requests ended."""
    charged: int = 0
    took_s: float = 0.0
    faults: list[str] = field(default_factory=list)
    """What is not as it must be."""

    def expect(self, what: str, seen: object, wanted: object) -> None:
        """Note where it is otherwise."""
        if seen != wanted:
            self.faults.append(f"{what}: {seen}, not {wanted}")


R = TypeVar("R", bound=KillsReport[Any])


def parser_of(description: str | None) -> argparse.ArgumentParser:
    """The options that all of them have. `description`: the program's docstring."""
    parser = argparse.ArgumentParser(description=(description or "").splitlines()[0])
    parser.add_argument("--keep", type=Path, help="a folder for the logs, which are dropped otherwise")
    return parser


def run_all(
    cases: Iterable[C],
    lives: Callable[[Path, C], Coroutine[Any, Any, R]],
    columns: Mapping[str, Callable[[R], object]],
    keep: Path | None,
) -> int:
    """One case after another, each in a folder of its own, and a table of them; 1 where anything is not as it must be.

    `columns`: of the table, by their heads. `keep`: where the folders stay.
    """
    reports = list[R]()
    for case in cases:
        with contextlib.ExitStack() as stack:
            if keep is None:
                directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fairlane-kills-")))
            else:
                directory = keep / str(case.seed)
                directory.mkdir(parents=True)
            report = asyncio.run(lives(directory, case))
        for fault in report.faults:
            sys.stdout.write(f"seed {case.seed}: {fault}\n")
        sys.stdout.write(f"seed {case.seed}: {report.took_s:.0f} s, {dict(report.ends)}\n")
        sys.stdout.flush()
        reports.append(report)
    sys.stdout.write(markdown(columns, reports))
    return 1 if any(each.faults for each in reports) else 0


def markdown(columns: Mapping[str, Callable[[R], object]], reports: Iterable[R]) -> str:
    """A table with a row for each report."""
    rows = [[*columns], ["---"] * len(columns)]
    rows += [[str(cell(each)) for cell in columns.values()] for each in reports]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)
