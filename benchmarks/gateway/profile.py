"""Where the gateway's processor time goes under load: microseconds of a request, or of a token, by file and by package.

python -m benchmarks.gateway.profile [--load plain | --load stream] [--seconds 10]

The stand is that of `benchmarks.gateway`. The gateway looks some hundred times a second at what it runs; the figures
are shares of the time that it takes while nobody looks.
"""

import argparse
import json
import signal
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import rich.box
from rich.table import Table

from benchmarks.common.machine import describe
from benchmarks.common.report import open_console
from benchmarks.gateway.__main__ import CROWDS, PACKAGES, Load, take_turn, warm_up
from benchmarks.gateway.stand import Stand, StandError, stand

SHOWN = 16
WRITTEN_WITHIN_S = 10.0

Counts = Mapping[str, int]


def take(on: Stand, load: Load, seconds: float, out: Path) -> tuple[float, Mapping[str, Counts]]:
    """Processor microseconds of a request (of a stream, of a token) while nobody looks, and what was seen then.

    Raises StandError.
    """
    warm_up(on, load)
    each_us = take_turn(on, load, seconds).cpu_us(load)
    on.gateway.send_signal(signal.SIGUSR1)
    take_turn(on, load, seconds)
    on.gateway.send_signal(signal.SIGUSR2)
    deadline = time.monotonic() + WRITTEN_WITHIN_S
    while not (out.exists() and out.read_text().endswith("}}")):
        if time.monotonic() > deadline:
            raise StandError("the gateway did not write what it saw")
        time.sleep(0.05)
    return each_us, json.loads(out.read_text())


def table(title: str, counts: Counts, each_us: float) -> Table:
    """The largest shares, and the rest."""
    found, whole = Table(title, "µs", "share", box=rich.box.MARKDOWN), sum(counts.values())
    rows = sorted(counts.items(), key=lambda item: -item[1])
    rest = ("others", sum(count for _, count in rows[SHOWN:]))
    for name, count in [*rows[:SHOWN], rest]:
        found.add_row(name or "none of ours", f"{each_us * count / whole:.1f}", f"{count / whole:.1%}")
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Print two tables for each load."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gateway.profile", description=__doc__.splitlines()[0])
    parser.add_argument("--load", choices=CROWDS, action="append")
    parser.add_argument("--seconds", type=float, default=10.0)
    options = parser.parse_args(arguments)
    console = open_console()
    console.print(describe(PACKAGES), soft_wrap=True)
    for kind in options.load or CROWDS:
        with tempfile.TemporaryDirectory(prefix="fairlane-bench-") as directory:
            out = Path(directory) / "samples.json"
            with stand(["benchmarks.gateway.sampled", str(out)]) as on:
                each_us, counts = take(on, CROWDS[kind], options.seconds, out)
        unit = "a streamed token" if kind == "stream" else "a request"
        console.print(f"{CROWDS[kind].name}: {each_us:.1f} µs {unit}")
        console.print(table("for whom, by file of ours", counts["ours"], each_us))
        console.print(table("what runs, by package", counts["running"], each_us))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
