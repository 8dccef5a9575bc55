"""The gateways of several checkouts under one load, in turns: what each takes of its processor beside the first.

python -m benchmarks.gateway.compare [--load plain | --load stream] [--rounds 12] [--seconds 2] CHECKOUT CHECKOUT ...

Two measurements minutes apart differ by more than most changes are worth. Here all stand at once, each with a store
and an engine of its own, and are loaded one after another, every other round in reverse. They run by this Python, with
what is installed for it. A checkout may be named twice: that shows how far the same code differs from itself.
"""

import argparse
import contextlib
import os
import statistics
from collections.abc import Sequence
from pathlib import Path

import rich.box
from rich.progress import track
from rich.table import Table

from benchmarks.common.intervals import interval
from benchmarks.common.machine import describe
from benchmarks.common.report import open_console
from benchmarks.gateway.__main__ import CROWDS, PACKAGES, Load, take_turn, warm_up
from benchmarks.gateway.stand import stand


def compare(checkouts: Sequence[Path], load: Load, rounds: int, seconds: float) -> list[list[float]]:
    """Microseconds of a request, or of a streamed token, by round and checkout. Raises StandError."""
    cores = os.sched_getaffinity(0)
    found = []
    with contextlib.ExitStack() as stack:
        on = []
        for checkout in checkouts:
            os.sched_setaffinity(0, cores)  # the stand before took us off its gateway's
            on.append(stack.enter_context(stand(checkout=checkout)))
        for one in on:
            warm_up(one, load)
        for number in track(range(rounds), "measuring"):
            turns = {one: take_turn(on[one], load, seconds) for one in _order(len(on), number)}
            found.append([turns[one].cpu_us(load) for one in range(len(on))])
    return found


def _order(count: int, number: int) -> Sequence[int]:
    return range(count)[:: -1 if number % 2 else 1]


def table(checkouts: Sequence[Path], rounds: Sequence[Sequence[float]]) -> Table:
    """A line for each."""
    found = Table("checkout", "median µs", "lowest to highest", "over the first", "95 %", box=rich.box.MARKDOWN)
    for place, checkout in enumerate(checkouts):
        each = [row[place] for row in rounds]
        over = interval([row[place] / row[0] for row in rounds])
        figures = f"{statistics.median(each):.1f}", f"{min(each):.1f} to {max(each):.1f}"
        found.add_row(str(checkout), *figures, f"{over.mean:.3f}", f"{over.low:.3f} to {over.high:.3f}")
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Print one table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gateway.compare", description=__doc__.splitlines()[0])
    parser.add_argument("checkouts", nargs="+", type=Path, metavar="CHECKOUT")
    parser.add_argument("--load", choices=CROWDS, default="plain")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=2.0)
    options = parser.parse_args(arguments)
    console = open_console()
    console.print(describe(PACKAGES), soft_wrap=True)
    load = CROWDS[options.load]
    rounds = compare([one.resolve() for one in options.checkouts], load, options.rounds, options.seconds)
    console.print(f"{load.name}: processor time of a {'streamed token' if load.kind == 'stream' else 'request'}")
    console.print(table(options.checkouts, rounds))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
