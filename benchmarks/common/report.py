"""How a benchmark of numbered lines shows and keeps them: a console, a file of its lines, and its exit status."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path

import rich.box
from rich.console import Console
from rich.table import Table

from benchmarks.common.line import Line

FILE_WIDTH = 250
"""Columns of tables that go into a file: none is broken, so they can be pasted into a document."""


def open_console() -> Console:
    """The terminal, or a file as wide as its tables."""
    console = Console()
    return console if console.is_terminal else Console(width=FILE_WIDTH)


def summary(found: Sequence[Line]) -> Table:
    """The lines with what became of them."""
    said = {True: "yes", False: "NO", None: "-"}
    shown = Table("line", "what", "value", "target", "met", "how", box=rich.box.MARKDOWN)
    for line in found:
        value = "-" if line.value is None else f"{line.value:,.3g}"
        shown.add_row(str(line.line), line.name, value, f"{line.target:g}", said[line.met], line.how)
    return shown


def say(lines: Iterable[Line]) -> None:
    """Print lines that were measured and have a most, one by one."""
    for line in lines:
        print(f"{line.name}: {line.value:.1f} (at most {line.target:.1f})")


def conclude(lines: Sequence[Line], file: Path | None) -> int:
    """Write the lines as JSON where a file is named; the exit status: 1 where one that was measured is not met."""
    if file is not None:
        file.write_text(json.dumps([asdict(line) for line in lines], indent=1) + "\n")
    return 1 if any(line.met is False for line in lines) else 0
