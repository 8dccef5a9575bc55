"""Where a decode step's time goes: milliseconds by operator, at a few batch sizes.

python -m benchmarks.engine.profile [--batch 1 --batch 8 --batch 64] [--context 128] [--steps 16]

What nothing accounts for is Python's: packing, reading results, and the calls themselves. The profiler's
own cost falls on the calls, so that the sum is more than a step takes without it; that is printed too.
"""

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from unittest.mock import patch

import rich.box
from rich.table import Table
from torch.profiler import ProfilerActivity, profile, record_function

from benchmarks.common.leases import greedy_lease
from benchmarks.common.machine import describe
from benchmarks.common.report import open_console
from benchmarks.common.turns import Request
from benchmarks.engine.ours import Ours
from benchmarks.engine.work import equal
from fairlane.scheduler.protocol.settings import DEFAULT_MODEL
from fairlane.worker.attention.backends import BACKENDS
from fairlane.worker.engine.engine import Engine

SHOWN = 14
WARM_STEPS = 4


Operators = dict[str, tuple[float, float]]
"""Milliseconds of each operator in a step, its callees' left out, and its calls."""


def decode(engine: Engine, requests: Sequence[Request], steps: int) -> tuple[float, Operators, float]:
    """Decode steps of all at once, first alone, then watched: milliseconds a step alone, its operators, and
    milliseconds a step watched. Raises ValueError where requests are too short for it."""
    for number, one in enumerate(requests):
        engine.add(greedy_lease(number, *one), time.monotonic() * 1e3)
    while len(engine.step(time.monotonic() * 1e3).outcome.produced) < len(requests):
        if not engine.has_work:
            raise ValueError("the requests end before all of them decode")
    _steps(engine, WARM_STEPS)
    alone_ms = _steps(engine, steps)
    with _parts(engine), profile(activities=[ProfilerActivity.CPU]) as seen:
        watched_ms = _steps(engine, steps)
    for job_id in engine.planner.job_ids():
        engine.cancel(job_id)
    found = {event.key: (event.self_cpu_time_total / 1e3 / steps, event.count / steps) for event in seen.key_averages()}
    return alone_ms, found, watched_ms


@contextmanager
def _parts(engine: Engine) -> Iterator[None]:
    """Give names to what is no operator of torch."""
    owners: list[tuple[str, object, str]] = [
        (f"attention ({name})", backend, "attend") for name, backend in BACKENDS.items()
    ]
    owners += [("plan", engine.planner, "plan"), ("apply", engine.planner, "apply")]
    with ExitStack() as stack:
        for name, owner, method in owners:
            stack.enter_context(patch.object(owner, method, _named(name, getattr(owner, method))))
        yield


def _named(name: str, function: Callable[..., object]) -> Callable[..., object]:
    def named(*arguments: object) -> object:
        with record_function(name):
            return function(*arguments)

    return named


def _steps(engine: Engine, steps: int) -> float:
    """Milliseconds a step."""
    began = time.perf_counter()
    for _ in range(steps):
        engine.step(time.monotonic() * 1e3)
    return (time.perf_counter() - began) * 1e3 / steps


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a table for each batch."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.engine.profile", description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, action="append")
    parser.add_argument("--context", type=int, default=128)
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--models-dir", type=Path, default=Path(".fairlane/models"))
    options = parser.parse_args(arguments)
    console = open_console()
    console.print(describe(), soft_wrap=True)
    ours = Ours({"model": options.model, "models_dir": options.models_dir, "dtype": "bfloat16", "max_sequences": 128})
    for batch in options.batch or (1, 8, 64):
        kv_tokens = 2 * batch * (options.context + options.steps + 16)
        requests = equal(batch, options.context, options.context + 2 * options.steps)
        alone_ms, found, watched_ms = decode(ours.engine((kv_tokens, 0)), requests, options.steps)
        title = f"batch {batch}, context {options.context}: {alone_ms:.2f} ms a step, {watched_ms:.2f} ms watched"
        shown = Table("operator", "ms", "share", "calls", title=title, box=rich.box.MARKDOWN)
        rows = sorted(found.items(), key=lambda item: -item[1][0])
        rest = sum(ms for _, (ms, _) in rows[SHOWN:])
        python = watched_ms - sum(ms for ms, _ in found.values())
        for name, (ms, calls) in [*rows[:SHOWN], ("other operators", (rest, 0.0)), ("Python", (python, 0.0))]:
            shown.add_row(name, f"{ms:.3f}", f"{ms / watched_ms:.1%}", f"{calls:.0f}" if calls else "")
        console.print(shown)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
