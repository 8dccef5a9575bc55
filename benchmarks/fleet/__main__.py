"""The fleets of several checkouts under the same streamed chats, in turns: what store and gateways spend on them.

python -m benchmarks.fleet [--rounds 3] [--seconds 8] [--workers 2] [--gateways 2] CHECKOUT CHECKOUT ...

In each round each checkout's store, gateways and workers (`worker.py`) start anew and get four loads: nearly all rows
in use, half of them, and a few chats, first beside the same workers, then beside many idle ones as well. What the idle
fleet spends is subtracted. A checkout may be named twice: that shows how far the same code differs from itself."""

import argparse
import statistics
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import rich.box
from rich.progress import track
from rich.table import Table

from benchmarks.common.machine import describe
from benchmarks.common.report import open_console
from benchmarks.fleet.stand import Fleet, Shape, Turn
from benchmarks.gateway.__main__ import PACKAGES
from fairlane.cli.embedded_store import valkey_binary

FULL, HALF, FEW = 0.9, 0.5, 0.2
"""Of all workers' rows; of one worker's for the few."""
WARM_UP_CHATS, WARM_UP_EVERY_S = 8, 0.05
"""For each worker, which learns how long its steps take."""

Figures = Mapping[str, float]


def figures(shape: Shape, full: Turn, half: Turn, few: Turn, beside_idle: Turn) -> Figures:
    """Return the table's lines by name."""
    chat, idle = full.spent, full.idle
    longest_ms = max(turn.longest_ms for turn in (full, half, few, beside_idle))
    return {
        "store commands of a chat, those in scripts included": chat.commands,
        "store commands of a token": chat.commands / shape.tokens,
        "scripts of a chat": chat.scripts,
        "stream reads of a chat": chat.stream_reads,
        "store core of a chat, µs": chat.core_us,
        "store core of a token, µs": chat.core_us / shape.tokens,
        "script time of a chat, µs": chat.script_us,
        f"script time of one of few chats, {shape.workers} workers, µs": few.spent.script_us,
        f"the same, {shape.idle_workers} more workers idle, µs": beside_idle.spent.script_us,
        "longest script, ms": longest_ms,
        "gateway CPU of a streamed token, µs": chat.gateways_us / shape.tokens,
        "step to client's byte at half load, P50 ms": half.seen.p50_ms,
        "step to client's byte at half load, P99 ms": half.seen.p99_ms,
        "idle: store commands/s": idle.commands / idle.seconds,
        "idle: store core, %": idle.core_us / idle.seconds / 1e4,
        "chats/s until a store core is full": 1e6 / chat.core_us,
        "workers until a store core is full": 1e6 / chat.core_us / shape.chats_per_s,
    }


def measure(checkout: Path, shape: Shape, seconds: float) -> Figures:
    """Start the fleet of a checkout, and put each load on it. Raises StandError."""
    all_rows, few = shape.workers * shape.chats_per_s, FEW * shape.chats_per_s
    with ExitStack() as stack:
        fleet = Fleet(checkout, shape, stack)
        fleet.load(WARM_UP_CHATS * shape.workers, WARM_UP_EVERY_S / shape.workers)
        full, half = fleet.turn(FULL * all_rows, seconds), fleet.turn(HALF * all_rows, seconds)
        alone = fleet.turn(few, seconds)
        fleet.add_idle_workers()
        return figures(shape, full, half, alone, fleet.turn(few, seconds))


def table(names: Sequence[str], found: Sequence[Sequence[Figures]]) -> Table:
    """Return each figure's median of each checkout, and its ratio to the first one's, by round and checkout."""
    shown = Table("figure", *names, box=rich.box.MARKDOWN)
    for name in names[1:]:
        shown.add_column(f"{name} over {names[0]}")
    for figure in found[0][0]:
        by_checkout = [[each[place][figure] for each in found] for place in range(len(names))]
        medians = [f"{statistics.median(values):,.4g}" for values in by_checkout]
        shown.add_row(figure, *medians, *(_ratio(by_checkout[0], values) for values in by_checkout[1:]))
    return shown


def _ratio(first: Sequence[float], other: Sequence[float]) -> str:
    ratios = [mine / base for base, mine in zip(first, other, strict=True) if base]
    return f"{statistics.median(ratios):.3g} ({min(ratios):.3g} to {max(ratios):.3g})" if ratios else "-"


def named(checkout: Path) -> str:
    """Return a checkout's directory and commit."""
    asked = ["git", "-C", str(checkout), "describe", "--always", "--dirty"]
    said = subprocess.run(asked, capture_output=True, text=True, check=False)
    return f"{checkout.name} {said.stdout.strip()}".strip()


def main(arguments: Sequence[str] | None = None) -> int:
    """Print one table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fleet", description=__doc__.splitlines()[0])
    parser.add_argument("checkouts", nargs="+", type=Path, metavar="CHECKOUT")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=8.0, help="in which each load's chats start")
    parser.add_argument("--workers", type=int, default=Shape.workers)
    parser.add_argument("--gateways", type=int, default=Shape.gateways)
    options = parser.parse_args(arguments)
    shape = Shape(workers=options.workers, gateways=options.gateways)
    checkouts = [one.resolve() for one in options.checkouts]
    console = open_console()
    version = subprocess.run([valkey_binary(), "--version"], capture_output=True, text=True, check=True).stdout
    console.print(describe(PACKAGES, {"Valkey": version.split("v=")[1].split()[0]}), soft_wrap=True)
    console.print(
        f"{shape.gateways} gateways, {shape.workers} workers of {shape.rows} rows, steps of {shape.step_ms:g} ms; "
        f"streamed chats of {shape.prompt_tokens} + {shape.tokens} tokens; medians of {options.rounds} rounds"
    )
    found = []
    for number in track(range(options.rounds), "measuring"):
        turn = -1 if number % 2 else 1  # every other round in reverse
        found.append([measure(one, shape, options.seconds) for one in checkouts[::turn]][::turn])
    console.print(table([named(one) for one in checkouts], found))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
