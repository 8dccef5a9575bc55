"""What grammars cost a step of 32 rows: the same decodes with every row constrained, with one of them, and with none.

python -m benchmarks.engine.masks [--rounds 5] [--model NAME] [--dtype auto]

Three engines of one model take turns of a few steps each, so that what else the machine does within a second falls on
all three. Each row writes JSON by a schema of its own, so no mask is another row's. A step's time is that from the end
of the step before, so what is filled between two steps counts; a turn's first step and those that prefill do not.
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
from fairlane.gateway.dialects.grammar.check_process import Check
from fairlane.gateway.dialects.grammar.structure import Structure
from fairlane.scheduler.planner.costs import CostModel
from fairlane.scheduler.protocol.messages import Lease, ModelCard
from fairlane.scheduler.protocol.settings import DEFAULT_MODEL
from fairlane.worker.engine.build import planner_for
from fairlane.worker.engine.engine import Engine
from fairlane.worker.engine.grammar import Grammars
from fairlane.worker.engine.runner import Runner
from fairlane.worker.kv.cache import KVCache
from fairlane.worker.model.files import model_card, resolve
from fairlane.worker.model.interface import Model
from fairlane.worker.model.select import load_fastest

MODELS_DIR = Path(".fairlane/models")
ROWS, PROMPT_TOKENS, OUTPUT_TOKENS, BLOCK_SIZE = 32, 32, 128, 16
TURN_STEPS = 6
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
    checked = Check().run(Structure("json_schema", json.dumps(schema), ""))
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


class Arm:
    """An engine with its rows, all decoding."""

    def __init__(self, model: Model, grammars: Grammars) -> None:
        blocks = ROWS * -(-(PROMPT_TOKENS + OUTPUT_TOKENS) // BLOCK_SIZE)
        self.cache = KVCache(model.shape, blocks=blocks, host_slots=0, block_size=BLOCK_SIZE, device=model.device)
        self.runner = Runner(model, self.cache, grammars=grammars)

    def begin(self, work: Sequence[Lease]) -> None:
        """Prefill every row."""
        self.engine = Engine(planner_for(self.cache, CostModel(), max_sequences=ROWS), self.runner)
        for lease in work:
            self.engine.add(lease, time.monotonic() * 1e3)
        while not self._step():
            pass

    def turn_ms(self) -> float:
        """The median time of a turn's steps in which every row decodes; 0 once the rows have ended."""
        times = []
        self._step()
        ended_s = time.perf_counter()
        for _ in range(TURN_STEPS):
            every_row = self._step()
            began_s, ended_s = ended_s, time.perf_counter()
            if every_row:
                times.append((ended_s - began_s) * 1e3)
        return statistics.median(times) if len(times) == TURN_STEPS else 0.0

    def _step(self) -> bool:
        """Whether every row took one token."""
        if not self.engine.has_work:
            return False  # a grammar is being compiled, or all have ended
        plan = self.engine.step(time.monotonic() * 1e3).plan
        return [len(row.token_ids) for row in plan.rows] == [1] * ROWS


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--dtype", choices=("auto", "float32", "bfloat16"), default="auto")
    options = parser.parse_args()
    files = resolve(options.model, MODELS_DIR)
    card, model = model_card(files), load_fastest(files, dtype=options.dtype)
    compiled, grammars = Grammars(card), [grammar_of(row) for row in range(ROWS)]
    arms = {name: Arm(model, compiled) for name in CONSTRAINED}
    found: dict[str, list[float]] = {name: [] for name in CONSTRAINED}
    for number in range(options.rounds + 1):
        for name, arm in arms.items():
            arm.begin(leases(CONSTRAINED[name], grammars, card))
        names = [*CONSTRAINED]
        while True:
            names = names[1:] + names[:1]
            turn = {name: arms[name].turn_ms() for name in names}
            if not all(turn.values()):
                break
            for name, step_ms in turn.items() if number else ():  # the first round warms up
                found[name].append(step_ms)
    console = Console(width=160)
    console.print(describe(("torch", "transformers", "llguidance", "fairlane")))
    for name, steps_ms in found.items():
        ratios = sorted(one / none for one, none in zip(steps_ms, found["none"], strict=True))
        console.print(
            f"{name} of {ROWS} rows constrained: {statistics.median(steps_ms):.2f} ms a step, "
            f"{statistics.median(ratios):.3f} of none (half of {len(ratios)} turns {ratios[len(ratios) // 4]:.3f} to "
            f"{ratios[-len(ratios) // 4]:.3f})"
        )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
