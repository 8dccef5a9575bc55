"""How soon first tokens come where requests begin alike: the same requests without the prefix cache and with it.

python -m benchmarks.engine.prefix [--quick] [--rounds 5] [--json FILE]

All requests come at once; their prompts share the first 1,000 tokens and differ in the next 16. Cold is an engine
without a cache; warm is one whose cache is empty as they come, so that whoever runs first computes the prefix for all.
Both run on the same model and pool and take turns, each round beginning with the other one. Then another tenant sends
one of the prompts to the warm engine, and must find nothing.
"""

import argparse
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import torch
from rich.progress import Progress

from benchmarks.common.intervals import interval
from benchmarks.common.leases import greedy_lease
from benchmarks.common.line import Line, at_least, at_most
from benchmarks.common.machine import describe
from benchmarks.common.report import conclude, open_console
from fairlane.scheduler.planner.costs import CostModel
from fairlane.scheduler.protocol.messages import Lease
from fairlane.scheduler.protocol.settings import DEFAULT_MODEL
from fairlane.worker.engine.build import planner_for
from fairlane.worker.engine.engine import Engine
from fairlane.worker.engine.runner import Runner
from fairlane.worker.kv.cache import KVCache
from fairlane.worker.model.files import resolve
from fairlane.worker.model.interface import Model
from fairlane.worker.model.select import load_fastest

LINE, TARGET = 5, 5.0
REQUESTS, ROUNDS = 32, 5
PREFIX_TOKENS, OWN_TOKENS, OUTPUT_TOKENS = 1_000, 16, 8
BLOCK_SIZE = 16
BLOCKS = REQUESTS * -(-(PREFIX_TOKENS + OWN_TOKENS + OUTPUT_TOKENS) // BLOCK_SIZE)
MODELS_DIR = Path(".fairlane/models")


@dataclass
class Served:
    """What came of one run."""

    ttft_s: float
    """The median."""
    cached_tokens: int


def make_leases(vocab_size: int, seed: int) -> list[Lease]:
    """Requests that share a prefix of random tokens."""
    chooser = random.Random(seed)

    def tokens(count: int) -> list[int]:
        return [chooser.randrange(vocab_size) for _ in range(count)]

    prefix = tokens(PREFIX_TOKENS)
    return [greedy_lease(number, [*prefix, *tokens(OWN_TOKENS)], OUTPUT_TOKENS) for number in range(REQUESTS)]


def serve(engine: Engine, leases: Sequence[Lease]) -> Served:
    """Hand all over at once, and run them to their ends."""
    began, first_s, cached_tokens = time.perf_counter(), dict[str, float](), 0
    for lease in leases:
        engine.add(lease, time.monotonic() * 1e3)
    while engine.has_work:
        outcome = engine.step(time.monotonic() * 1e3).outcome
        now_s = time.perf_counter() - began
        for produced in outcome.produced:
            first_s.setdefault(produced.seq.job_id, now_s)
        cached_tokens += sum(ended.cached_tokens for ended in outcome.ended)
    return Served(statistics.median(first_s.values()), cached_tokens)


def measure(model: Model, rounds: int, advance: Callable[[str], None] = lambda _: None) -> list[Line]:
    """Line 5, by so many rounds."""
    cache = KVCache(model.shape, blocks=BLOCKS, host_slots=0, block_size=BLOCK_SIZE, device=model.device)
    runner, ratios, medians_s, others = Runner(model, cache), list[float](), list[dict[str, float]](), 0

    def engine(prefix_share: float | None) -> Engine:
        planner = planner_for(cache, CostModel(), max_sequences=REQUESTS, prefix_share=prefix_share)
        return Engine(planner, runner)

    serve(engine(None), make_leases(model.vocab_size, rounds)[:2])
    for number in range(rounds):
        leases, found = make_leases(model.vocab_size, number), dict[str, float]()
        for name in ("cold", "warm") if number % 2 else ("warm", "cold"):
            advance(name)
            tried = engine(0.25 if name == "warm" else None)
            found[name] = serve(tried, leases).ttft_s
            job = msgspec.structs.replace(leases[0].job, tenant="another")
            others += serve(tried, [msgspec.structs.replace(leases[0], job=job)]).cached_tokens
        ratios.append(found["cold"] / found["warm"])
        medians_s.append(found)
    return _lines(ratios, medians_s, others)


def _lines(ratios: Sequence[float], medians_s: Sequence[dict[str, float]], others: int) -> list[Line]:
    ratio = interval(ratios)
    cold_s, warm_s = (statistics.median(one[name] for one in medians_s) for name in ("cold", "warm"))
    threads = torch.get_num_threads()
    how = (
        f"{REQUESTS} requests at once, {PREFIX_TOKENS} tokens shared and {OWN_TOKENS} not: {cold_s:.2f} s without the "
        f"cache, {warm_s:.2f} s with it, empty at first; {len(ratios)} rounds, {threads} threads"
    )
    if len(ratios) > 1:
        how += f"; {ratio}, the lower end counts"
    return [
        at_least(
            LINE,
            "cold TTFT over TTFT with a shared prefix of 1,000 tokens, medians",
            ratio.low if len(ratios) > 1 else ratio.mean,
            TARGET,
            how,
        ),
        at_most(LINE, "prompt tokens found that another tenant had sent", others, 0, f"{len(ratios)} times asked"),
    ]


def lines(*, quick: bool, model_name: str = DEFAULT_MODEL, models_dir: Path = MODELS_DIR) -> list[Line]:
    """Line 5 on the default model; a quick run is a single round."""
    model = load_fastest(resolve(model_name, models_dir))
    return measure(model, 1 if quick else ROUNDS)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; the process' exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.engine.prefix", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--quick", action="store_true", help="a single round")
    parser.add_argument("--dtype", choices=("auto", "float32", "bfloat16"), default="auto")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--models-dir", type=Path, default=MODELS_DIR)
    parser.add_argument("--json", type=Path, help="write the lines to this file")
    options = parser.parse_args(arguments)
    rounds, console = 1 if options.quick else options.rounds, open_console()
    model = load_fastest(resolve(options.model, options.models_dir), dtype=options.dtype, device=options.device)
    with Progress(console=console) as progress:
        task = progress.add_task("", total=2 * rounds)
        found = measure(model, rounds, lambda name: progress.update(task, advance=1, description=name))
    console.print(describe())
    for line in found:
        console.print(f"{line.name}: {line.value:.3g} (target {line.target:g}): {line.how}")
    return conclude(found, options.json)


if __name__ == "__main__":
    raise SystemExit(main())
