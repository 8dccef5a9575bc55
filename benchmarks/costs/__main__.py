"""`python -m benchmarks.costs`: print every cost beside the book's; `--write` accepts them."""

import argparse
import sys
from collections.abc import Sequence

import rich.box
from rich.table import Table

from benchmarks.common.report import open_console
from benchmarks.costs import book
from fairlane.common.gc_tuning import OF_A_WORKER, collect_seldom


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status 1 where a cost has grown or is not in the book, unless `--write` accepts it."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.costs", description=__doc__)
    parser.add_argument("--write", action="store_true", help="make these costs the accepted ones")
    options = parser.parse_args(arguments)
    collect_seldom(OF_A_WORKER)  # objects are counted fifty times; a pass over all that was imported takes 0.2 s
    found = book.count()
    entries = book.compare(found)
    table = Table("cost", "accepted", "now", "change", box=rich.box.MARKDOWN)
    for entry in entries:
        table.add_row(entry.name, _figure(entry.accepted), _figure(entry.counted), entry.change)
    open_console().print(table)
    if options.write:
        book.write(found)
        return 0
    return 0 if all(entry.is_accepted for entry in entries) else 1


def _figure(cost: float | None) -> str:
    return "-" if cost is None else f"{cost:,.1f}".removesuffix(".0")


if __name__ == "__main__":
    sys.exit(main())
