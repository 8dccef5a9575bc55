"""`python -m benchmarks.engines.tax --model DIRECTORY`: what a saturated engine loses by having Fairlane before it.

The engine takes 20 ms a step however much it computes (`benchmarks.engines.stepping`): all that its tokens a second can
lose is lost by Fairlane, or by the processors that both share here.
"""

import argparse
import asyncio
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from rich.table import Table

from benchmarks.common.machine import describe
from benchmarks.common.report import open_console
from benchmarks.common.served import free_port
from benchmarks.engines.arms import behind_fairlane, wait_until_ready
from benchmarks.engines.load import FLOOD, Door, Load, VllmDoor


@contextmanager
def stepping(slots: int, step_ms: float, log: Path) -> Iterator[str]:
    """The base URL of such an engine."""
    port = free_port()
    command = [sys.executable, "-m", "benchmarks.engines.stepping", "--port", str(port)]
    with log.open("wb") as out:
        process = subprocess.Popen(
            [*command, "--slots", str(slots), "--step-ms", str(step_ms)], stdout=out, stderr=subprocess.STDOUT
        )
    try:
        wait_until_ready(f"http://127.0.0.1:{port}/health", process, log)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()


def rate(door: Door, warm_s: float, window_s: float, seed: int) -> float:
    """Tokens a second of a flood alone."""
    return asyncio.run(Load(door, seed).flood_alone(warm_s, window_s)).flood_rate


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True, type=Path, help="a model directory, for its tokenizer")
    parser.add_argument("--slots", type=int, default=32)
    parser.add_argument("--step-ms", type=float, default=20.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--warm", type=float, default=5.0, help="seconds before each count")
    parser.add_argument("--window", type=float, default=20.0, help="seconds of each count")
    asked = parser.parse_args()
    model, log = asked.model.resolve(), Path(tempfile.mkdtemp(prefix="tax-")) / "engine.log"
    rates: dict[str, list[float]] = {"directly": [], "through Fairlane": []}
    with stepping(asked.slots, asked.step_ms, log) as url, behind_fairlane(url, model, asked.slots, "stepping") as door:
        for number in range(asked.rounds):
            for name, asks in (("directly", VllmDoor(url)), ("through Fairlane", door)):
                rates[name].append(rate(asks, asked.warm, asked.window, number))
                print(f"round {number + 1}, {name}: {rates[name][-1]:.0f} tokens/s", flush=True)
    ratios = sorted(after / before for before, after in zip(*rates.values(), strict=True))
    shown = Table("asked", "tokens/s", title=f"{FLOOD} streams on {asked.slots} slots, {asked.step_ms:.0f} ms a step")
    for name, found in rates.items():
        shown.add_row(name, f"{median(found):.0f}")
    open_console().print(describe(("fairlane",)), shown)
    print(f"ratio: median {median(ratios):.3f}, from {ratios[0]:.3f} to {ratios[-1]:.3f}")


if __name__ == "__main__":
    main()
