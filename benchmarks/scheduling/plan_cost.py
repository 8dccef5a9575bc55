"""What `plan()` costs, in this checkout and beside another one, in one run.

python -m benchmarks.scheduling.plan_cost [--beside DIR] [--waiting N ...] [--steps 1000] [--rounds 5] [--calls]

DIR is a checkout of any version since 3b21ae4, for example one of `git worktree add DIR 3b21ae4`. Each version plays
line 8's world (256 running, 1,000 tenants) in a process of its own; the versions take turns, round by round. The world
is deterministic, so a step does the same work in each round. Its time is the least of all rounds: other load on the
machine hardly counts. `--calls` counts calls of Python functions instead of time, with the same result in every run.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import rich.box
import rich.table
from rich.console import Console

from benchmarks.common.machine import describe
from benchmarks.common.report import open_console

HERE = Path(__file__).resolve().parents[2]
STEPS, ROUNDS = 1_000, 5
CHILD = """
import importlib, json, sys, time
waiting, steps, counts_calls = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "calls"
try:
    cost = importlib.import_module("benchmarks.scheduling.lines.cost")
except ModuleNotFoundError:
    cost = importlib.import_module("benchmarks.lines.cost")
seen = []

class Recorded(cost.Planner):
    def plan(self, now_ms):
        if not counts_calls:
            began = time.perf_counter()
            plan = super().plan(now_ms)
            seen.append(1e6 * (time.perf_counter() - began))
            return plan
        calls = 0
        def count(frame, event, argument):
            nonlocal calls
            calls += event == "call"
        sys.setprofile(count)
        plan = super().plan(now_ms)
        sys.setprofile(None)
        seen.append(calls)
        return plan

cost.Planner = Recorded
cost.timed(waiting, steps)
print(json.dumps(seen[-steps:]))
"""


def played(checkout: Path, waiting: int, steps: int, *, calls: bool) -> list[float]:
    """The figure of each step, in a process that imports from this checkout."""
    command = [sys.executable, "-c", CHILD, str(waiting), str(steps), "calls" if calls else "time"]
    done = subprocess.run(
        command, cwd=checkout, env={**os.environ, "PYTHONPATH": str(checkout)}, capture_output=True, text=True
    )
    if done.returncode:
        raise SystemExit(f"{checkout}: {done.stderr.strip().splitlines()[-1]}")
    return [float(figure) for figure in json.loads(done.stdout)]


def version(checkout: Path) -> str:
    """What to call a checkout in the table."""
    command = ["git", "-C", str(checkout), "describe", "--always", "--dirty"]
    return subprocess.run(command, capture_output=True, text=True).stdout.strip() or checkout.name


def measured(
    checkouts: Sequence[Path], waiting: int, steps: int, rounds: int, *, calls: bool
) -> list[tuple[float, float]]:
    """Median and P99 of the steps of each checkout."""
    least: dict[Path, list[float]] = {}
    for _ in range(1 if calls else rounds):
        for checkout in checkouts:
            figures = played(checkout, waiting, steps, calls=calls)
            least[checkout] = [*map(min, least.get(checkout, figures), figures)]
    found = [sorted(least[checkout]) for checkout in checkouts]
    return [(one[len(one) // 2], one[len(one) * 99 // 100]) for one in found]


def show(console: Console, checkouts: Sequence[Path], found: dict[int, list[tuple[float, float]]], unit: str) -> None:
    """Print the table: of each number waiting and each version, and the ratios where there are two."""
    ratios = ("median, ratio", "P99, ratio") if len(checkouts) > 1 else ()
    names = [f"{figure}, {version(one)}" for one in checkouts for figure in ("median", "P99")]
    table = rich.table.Table("waiting", *names, *ratios, title=f"one plan(), {unit}", box=rich.box.MARKDOWN)
    for waiting, figures in found.items():
        cells = [f"{figure:,.0f}" for pair in figures for figure in pair]
        if ratios:
            cells += [f"{mine / theirs:.2f}" for mine, theirs in zip(figures[0], figures[1], strict=True)]
        table.add_row(f"{waiting:,}", *cells)
    console.print(table)
    first, last = min(found), max(found)
    for number, checkout in enumerate(checkouts if first < last else ()):
        growth = found[last][number][0] / found[first][number][0]
        console.print(f"growth of the median from {first:,} to {last:,} waiting, {version(checkout)}: {growth:.2f}")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--beside", type=Path, metavar="DIR", help="another checkout")
    parser.add_argument("--waiting", type=int, nargs="+", default=[1_000, 10_000, 100_000])
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--calls", action="store_true", help="count calls of Python functions instead of microseconds")
    options = parser.parse_args(arguments)
    checkouts = [HERE, options.beside.resolve()] if options.beside else [HERE]
    console = open_console()
    console.print(describe())
    found = {
        waiting: measured(checkouts, waiting, options.steps, options.rounds, calls=options.calls)
        for waiting in options.waiting
    }
    show(console, checkouts, found, "calls of Python functions" if options.calls else "microseconds")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
