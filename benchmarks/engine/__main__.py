"""Our engine beside vLLM's, OpenVINO's and transformers' own, and beside what its machine allows: numbered lines.

python -m benchmarks.engine [--quick] [--rounds 5] [--json FILE] [--vllm PYTHON] [--openvino PYTHON]
                            [--transformers-requests N]

The same weights in 16 bits, the same fixed requests (`benchmarks/engine/README.md`), two threads, each engine in a
process of its own; engines take turns, and another one begins each round. Only tokens that were asked for count. Peers
run in environments of their own: see benchmarks/peers.md. `--quick` does in about two minutes what needs no peer.
Exits with 1 if a line that was measured is not met.
"""

import argparse
import itertools
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import rich.box
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from benchmarks.common import hour
from benchmarks.common.line import Line
from benchmarks.common.machine import cpu_name
from benchmarks.common.report import conclude, open_console, summary
from benchmarks.common.turns import THREADS, Answer, Contender
from benchmarks.engine import lines, prefix
from benchmarks.engine import programme as p
from benchmarks.engine.footprint import footprint
from benchmarks.engine.work import W2_PROMPT, equal, load
from fairlane.scheduler.protocol.settings import DEFAULT_MODEL
from fairlane.worker.model.files import resolve

ROUNDS = 5
OVERHEAD_BATCH, OVERHEAD_TOKENS = 64, 48
LOADS = (0.5, 0.75, 1.0)
"""Of what our engine serves of W2 at once: rates of its arrivals."""
QUICK_FOOTPRINT_REQUESTS = 300


@dataclass
class Bench:
    """One run of the benchmark."""

    options: argparse.Namespace
    present: dict[str, Contender]
    progress: Progress
    logs: Path

    @property
    def rounds(self) -> int:
        """How often everything is measured."""
        return self.options.rounds or (1 if self.options.quick else ROUNDS)

    def run(self) -> tuple[p.Results, list[Line]]:
        """Measure everything."""
        quick = self.options.quick
        todo = p.loads(self.present, quick=quick, plain_requests=self.options.transformers_requests)
        turns = sum(len(one.entries) for one in todo) + 1 + (0 if quick else len(LOADS))
        self._task = self.progress.add_task("warming up", total=turns * self.rounds + (2 if quick else 3))
        results = p.take_turns(self.present, todo, self.rounds, self._advance)
        ours = self.present[p.OURS]
        overheads = [self._overhead(ours) for _ in range(self.rounds)]
        latencies = {} if quick else self._latencies(results)
        self._advance("line 6: forced preemptions")
        forced = p.forced(ours, load("w1")[: p.FORCED_REQUESTS], self.rounds)
        parted = None if quick else self._parted()
        self._advance("line 9: a worker")
        taken = footprint(self.options.models_dir, self.options.requests, self.rounds)
        return results, [
            *lines.throughput(results, self.options.transformers_requests),
            *lines.scheduling(results, latencies),
            *lines.alone(results),
            *lines.overhead(overheads),
            *prefix.lines(quick=quick, model_name=self.options.model, models_dir=self.options.models_dir),
            *lines.pressure(results, next(one for one in todo if one.name == p.PRESSURE), forced, parted),
            *lines.footprint(taken, results[p.ALONE, p.OURS][0]["weight_bytes"]),
        ]

    def _overhead(self, ours: Contender) -> Answer:
        self._advance(f"line 4: batch {OVERHEAD_BATCH}")
        return ours.ask(measure="overhead", requests=equal(OVERHEAD_BATCH, W2_PROMPT, OVERHEAD_TOKENS))

    def _latencies(self, results: p.Results) -> lines.Latencies:
        """W2 by the clock, with each way of scheduling."""
        requests, fastest_s = load("w2"), p.median_s(results, p.W2, p.IN_PAGED)
        entries = next(one for one in p.loads(self.present, quick=False) if one.name == p.W2).entries
        mine = [entry for entry in entries if entry.name in p.POLICIES]
        found: dict[float, dict[str, list[list[float]]]] = {part: {one.name: [] for one in mine} for part in LOADS}
        for number, part in itertools.product(range(self.rounds), LOADS):
            self._advance(f"W2 at {part:g} of the full rate")
            arrivals = p.arrivals_s(len(requests), part * len(requests) / fastest_s)
            for entry in p.in_turn(mine, number):
                answer = self.present[p.OURS].serve(requests, **entry.extras, arrivals_s=arrivals)
                found[part][entry.name].append(answer["latencies_s"])
        return found

    def _parted(self) -> int:
        """Sequences of W1 that come out otherwise under pressure, in float32."""
        self._advance("line 6 in float32")
        options = {**self.present[p.OURS].options, "dtype": "float32"}
        work = p.pressure(load("w1")[: p.FORCED_REQUESTS], outputs=True)
        with Contender(p.OURS, "benchmarks.engine.ours", options, self.logs / "float32.log") as ours:
            outputs = [ours.serve(work.requests, **entry.extras)["outputs"] for entry in work.entries]
            *preempted, ample = (answer["outputs"] for answer in p.forced(ours, work.requests))
        parted: int = sum(one != other for one, other in zip(*outputs, strict=True))
        for found in preempted:
            parted += sum(found[name] != tokens for name, tokens in ample.items())
        return parted

    def _advance(self, what: str) -> None:
        self.progress.update(self._task, advance=1, description=what)
        if not self.progress.console.is_terminal:
            self.progress.console.print(f"{time.strftime('%H:%M:%S')} {what}")


def table(results: p.Results) -> Table:
    """Every load and engine: the median of its rounds."""
    columns = ("load", "engine", "output tokens/s", "lowest to highest", "ours is", "s")
    found = Table(*columns, box=rich.box.MARKDOWN)
    for name, entry in results:
        each, ours = p.rates(results, name, entry), p.rates(results, name, p.OURS)
        times = f"{statistics.median(ours) / statistics.median(each):.2f}x" if ours else "-"
        spread = f"{min(each):,.1f} to {max(each):,.1f}"
        found.add_row(
            name, entry, f"{statistics.median(each):,.1f}", spread, times, f"{p.median_s(results, name, entry):.3f}"
        )
    return found


def describe(present: dict[str, Contender]) -> str:
    """Machine and versions in one line."""
    versions = ", ".join(
        f"{name} ({', '.join(f'{package} {version}' for package, version in one.versions.items())})"
        for name, one in present.items()
    )
    return (
        f"{cpu_name()}, {os.cpu_count()} cores, {THREADS} threads each, Python {platform.python_version()}: {versions}"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it; 1 where a line is not met."""
    options = _parse(arguments)
    console = open_console()
    files = resolve(options.model, options.models_dir)
    shared = {
        "model": options.model,
        "models_dir": str(options.models_dir.resolve()),
        "directory": str(files.directory),
        "dtype": "bfloat16",
        "max_sequences": 128,
    }
    with tempfile.TemporaryDirectory(prefix="fairlane-bench-") as logs:
        pythons = _pythons(options)
        with p.contenders(shared, pythons, Path(logs)) as present, Progress(console=Console(stderr=True)) as progress:
            results, found = Bench(options, present, progress, Path(logs)).run()
            console.print(f"{describe(present)}; {hour.describe()}", soft_wrap=True)
    console.print(table(results), summary(found))
    return conclude(found, options.json)


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.engine", description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one round of what needs no peer")
    parser.add_argument("--rounds", type=int, help=f"{ROUNDS}, or 1 with --quick")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--vllm", metavar="PYTHON", help="of an environment that has vLLM's CPU build")
    parser.add_argument("--openvino", metavar="PYTHON", help="of an environment that has OpenVINO GenAI")
    parser.add_argument("--without", action="append", default=[], choices=[p.PLAIN], help="who is not to take part")
    parser.add_argument(
        "--transformers-requests", type=int, metavar="N", help="the first of W1 and W2, ours beside it; or all"
    )
    parser.add_argument("--requests", type=int, default=QUICK_FOOTPRINT_REQUESTS, help="tiny ones, of line 9")
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--models-dir", type=Path, default=Path(".fairlane/models"))
    options = parser.parse_args(arguments)
    if options.transformers_requests is not None and options.transformers_requests < 1:
        parser.error("--transformers-requests: at least 1")
    return options


def _pythons(options: argparse.Namespace) -> dict[str, str]:
    found: dict[str, Any] = {p.OURS: sys.executable, p.VLLM: options.vllm, p.OPENVINO: options.openvino}
    if not options.quick and p.PLAIN not in options.without:
        found[p.PLAIN] = sys.executable
    peers = (p.VLLM, p.OPENVINO)
    return {name: python for name, python in found.items() if python and not (options.quick and name in peers)}


if __name__ == "__main__":
    raise SystemExit(main())
