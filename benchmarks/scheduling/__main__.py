"""The scheduler's proof: fairness, isolation, capacity, overload, preemption and cost, beside the published policies.

python -m benchmarks.scheduling [--quick] [--only N] [--seeds 10] [--processes 2] [--json FILE] [--plots DIR]

Every policy schedules the same arrivals on the same simulated worker. `--quick` plays small versions of what needs
little, in about a minute; what it leaves out has no value. Exits with 1 if a line that was measured is not met.
`--plots` draws pictures of some worlds instead.
"""

import argparse
import multiprocessing
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from importlib.util import find_spec
from multiprocessing.pool import Pool
from pathlib import Path

import rich.box
import rich.table
from rich.console import Console
from rich.progress import Progress, TaskID

from benchmarks.common.line import C, Effort, Line, R, Table
from benchmarks.common.machine import describe
from benchmarks.common.report import conclude, open_console
from benchmarks.scheduling.lines import MEASURES
from benchmarks.scheduling.lines.world import A10G, GPU, THETA

QUICK_SEEDS = 2


@dataclass
class Run:
    """How much to run, in how many processes, and where to show it."""

    quick: bool
    seeds: Sequence[int]
    console: Console
    progress: Progress
    pool: Pool | None = None

    def each(self, what: str, play: Callable[[C], R], cases: Iterable[C]) -> list[R]:
        """`play` each case, maybe in another process; the results in order."""
        todo = list(cases)
        task = self.progress.add_task(what, total=len(todo))
        played = self.pool.imap(play, todo) if self.pool else map(play, todo)
        results = [self._advance(task, result) for result in played]
        self.progress.remove_task(task)
        return results

    def show(self, table: Table) -> None:
        """Print figures behind a line."""
        printed = rich.table.Table(*table.columns, title=table.title, title_justify="left", box=rich.box.MARKDOWN)
        for row in table.rows:
            printed.add_row(*row)
        self.console.print(printed)

    def _advance(self, task: TaskID, result: R) -> R:
        self.progress.advance(task)
        return result


def summary(lines: Sequence[Line]) -> Table:
    """All lines with what became of them."""
    said = {True: "yes", False: "NO", None: "-"}
    rows = [
        (str(line.line), line.name, _figure(line.value), _figure(line.target), said[line.met], line.how)
        for line in lines
    ]
    return Table("Lines", ("line", "what", "value", "target", "met", "how"), rows)


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:,g}" if value < 1e6 else f"{value:,.0f}"


def selected(only: int | None) -> list[Callable[[Effort], list[Line]]]:
    """What measures this line, or all. Raises ValueError where nothing does."""
    found = [measure for lines, measure in MEASURES.items() if only is None or only in lines]
    if not found:
        raise ValueError(f"line {only} is not measured here")
    return found


def _pool(processes: int) -> AbstractContextManager[Pool | None]:
    """Started before the progress bar's thread, and not by forking: so nothing of it is inherited."""
    return multiprocessing.get_context("spawn").Pool(processes) if processes > 1 else nullcontext()


def _check_plots(parser: argparse.ArgumentParser, directory: Path) -> None:
    """What would fail after minutes fails now."""
    if find_spec("matplotlib") is None:
        parser.error("--plots needs matplotlib: pip install 'fairlane[plots]'")
    if directory.exists() and not directory.is_dir():
        parser.error(f"--plots: {directory} is no directory")


def _draw(run: Run, directory: Path) -> int:
    from benchmarks.scheduling.plots import draw

    for file in draw(run, directory):
        run.console.print(str(file))
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it; 1 where a line is not met."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--quick", action="store_true", help="small versions of what needs little")
    parser.add_argument("--only", type=int, choices=sorted(line for lines in MEASURES for line in lines))
    parser.add_argument("--seeds", type=int, help="10 by default, 2 with --quick")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plots", type=Path, metavar="DIR", help="draw pictures there, and measure no line")
    options = parser.parse_args(arguments)
    if options.plots:
        _check_plots(parser, options.plots)
    console = open_console()
    console.print(describe())
    console.print(f"window {THETA:g}; {GPU}; {A10G}", soft_wrap=True)
    seeds = range(options.seeds or (QUICK_SEEDS if options.quick else 10))
    lines: list[Line] = []
    with _pool(options.processes) as pool, Progress(console=console) as progress:
        run = Run(options.quick, seeds, console, progress, pool)
        if options.plots:
            return _draw(run, options.plots)
        for measure in selected(options.only):
            lines += [line for line in measure(run) if options.only in (None, line.line)]
    run.show(summary(lines))
    return conclude(lines, options.json)


if __name__ == "__main__":
    raise SystemExit(main())
