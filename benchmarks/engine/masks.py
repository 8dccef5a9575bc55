"""What grammars cost a step of 32 rows: the same decodes with every row constrained, with one of them, and with none.

python -m benchmarks.engine.masks [--rounds 5] [--model NAME] [--dtype auto]

One engine; the three take turns, each round beginning with another one. Each row writes JSON by a schema of its own, so
no mask is another row's; what is compared are the medians of the steps' times, without those that prefill, each from
the end of the step before: what is filled between two steps counts.
"""

import argparse
import json
import statistics
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
from rich.console import Console

from benchmarks.common.leases import greedy_lease
from benchmarks.common.machine import describe
from fairlane.gateway.grammar.check_process import Check, CheckRequest
from fairlane.scheduler.planner.costs import CostModel
from fairlane.scheduler.protocol.messages import Lease, ModelCard
from fairlane.scheduler.protocol.settings import DEFAULT_MODEL
from fairlane.worker.engine.build import planner_for
from fairlane.worker.engine.engine import Engine
from fairlane.worker.engine.grammar import Grammars
from fairlane.worker.engine.kv_cache import KVCache
from fairlane.worker.engine.runner import Runner
from fairlane.worker.model.files import model_card, resolve
from fairlane.worker.model.select import load_fastest

MODELS_DIR = Path(".fairlane/models")
ROWS, PROMPT_TOKENS, OUTPUT_TOKENS, BLOCK_SIZE = 32, 32, 64, 16
CONSTRAINED = {"none": 0, "one": 1, "all": ROWS}


def grammar_of(row: int) -> str:
    """A list of records, long enough that no row ends."""
    record = {
        "type": "object",
        "properties": {
            f"name_{row}": {"type": "string", "minLength": 8, "maxLength": 40},
            "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "minItems": 1, "maxItems": 3},
            "size": {"type": "integer", "minimum": 0, "maximum": 10_000},
        },
        "required": [f"name_{row}", "tags", "size"],
        "additionalProperties": False,
    }
    schema = {"type": "array", "items": record, "minItems": 30}
    checked = Check().run(CheckRequest("json_schema", json.dumps(schema)))
    if checked.fault:
        raise ValueError(checked.fault)
    return checked.grammar


def leases(constrained: int, grammars: Sequence[str], card: ModelCard) -> list[Lease]:
    """The work of one turn."""
    made = []
    for row in range(ROWS):
        prompt = [(7 * row + 3 * place) % (card.vocab_size - 100) + 50 for place in range(PROMPT_TOKENS)]
        lease = greedy_lease(row, prompt, OUTPUT_TOKENS)
        if row < constrained:
            lease = msgspec.structs.replace(lease, job=msgspec.structs.replace(lease.job, grammar=grammars[row]))
        made.append(lease)
    return made


def decode_ms(engine: Engine, work: Sequence[Lease]) -> float:
    """The median time of the steps in which every row decodes."""
    for lease in work:
        engine.add(lease, time.monotonic() * 1e3)
    times, ended_s = [], time.perf_counter()
    while engine.epochs:
        if not engine.has_work:
            continue  # a grammar is being compiled
        report = engine.step(time.monotonic() * 1e3)
        began_s, ended_s = ended_s, time.perf_counter()
        if [len(row.token_ids) for row in report.plan.rows] == [1] * ROWS:
            times.append((ended_s - began_s) * 1e3)
    return statistics.median(times)


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--dtype", choices=("auto", "float32", "bfloat16"), default="auto")
    options = parser.parse_args()
    files = resolve(options.model, MODELS_DIR)
    card, model = model_card(files), load_fastest(files, dtype=options.dtype)
    blocks = ROWS * -(-(PROMPT_TOKENS + OUTPUT_TOKENS) // BLOCK_SIZE)
    cache = KVCache(model.shape, blocks=blocks, host_slots=0, block_size=BLOCK_SIZE, device=model.device)
    runner, grammars = Runner(model, cache, grammars=Grammars(card)), [grammar_of(row) for row in range(ROWS)]
    found: dict[str, list[float]] = {name: [] for name in CONSTRAINED}
    names = [*CONSTRAINED]
    for number in range(options.rounds + 1):  # the first warms up
        for name in names[number % 3 :] + names[: number % 3]:
            engine = Engine(planner_for(cache, CostModel(), max_sequences=ROWS), runner)
            found[name].append(decode_ms(engine, leases(CONSTRAINED[name], grammars, card)))
    console = Console(width=160)
    console.print(describe(("torch", "transformers", "llguidance", "fairlane")))
    for name in names:
        ratios = [one / none for one, none in zip(found[name][1:], found["none"][1:], strict=True)]
        console.print(
            f"{name} of {ROWS} rows constrained: {statistics.median(found[name][1:]):.2f} ms a step, "
            f"{statistics.median(ratios):.3f} of none ({min(ratios):.3f} to {max(ratios):.3f})"
        )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
