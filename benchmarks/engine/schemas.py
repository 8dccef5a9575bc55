"""What grammars of real schemas cost, and whether they tell the truth: JSONSchemaBench's schemas and instances.

python -m benchmarks.engine.schemas --data DIR [--sample 1000] [--seed 0]

DIR holds MaskBench's files (guidance-ai/jsonschemabench, `maskbench/data`, MIT): a schema each, and instances that keep
to it or do not. For each of the sample: whether the door serves it, or which keyword it refuses by name; whether the
worker's grammar takes every valid instance and no invalid one; and whether what a random walk through its masks ends
is valid by `jsonschema`. Exits with 1 where a valid instance was rejected or a finished walk is not valid.
"""

import argparse
import json
import random
import statistics
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
from pydantic import TypeAdapter, ValidationError
from rich.progress import track
from tokenizers import Tokenizer

from benchmarks.common.machine import describe
from benchmarks.common.report import open_console
from fairlane.gateway.dialects.grammar.check_process import Check
from fairlane.gateway.dialects.grammar.structure import Structure
from fairlane.gateway.dialects.openai.structures import JsonSchema
from fairlane.scheduler.protocol.messages import ModelCard
from fairlane.scheduler.protocol.settings import DEFAULT_MODEL
from fairlane.worker.engine.grammar import Constraint, Grammars
from fairlane.worker.model.files import model_card, resolve

MODELS_DIR = Path(".fairlane/models")
_SCHEMA: TypeAdapter[str] = TypeAdapter(JsonSchema)
"""A request's schema, as its door takes it."""
WALK_TOKENS = 400
"""A walk that has not ended by then is no finished output."""
END_WEIGHT = 0.2
"""Chance that a walk ends where it may."""


@dataclass
class Found:
    """What came of a sample."""

    served: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    """By the first words of the refusal."""
    valid_taken: int = 0
    valid_rejected: list[str] = field(default_factory=list)
    """Files."""
    invalid_rejected: int = 0
    invalid_taken: list[str] = field(default_factory=list)
    walks_finished: int = 0
    walks_wrong: list[str] = field(default_factory=list)
    walks_broken: list[str] = field(default_factory=list)
    """Files whose grammar went beyond its limits on the way."""
    compile_s: list[float] = field(default_factory=list)
    mask_s: list[float] = field(default_factory=list)


class Truth:
    """Tries one schema after another, as a door and a worker would."""

    def __init__(self, card: ModelCard) -> None:
        self._check, self._grammars = Check(), Grammars(card)
        self._tokenizer = Tokenizer.from_str(card.tokenizer_json)
        self._ends = card.eos_token_ids
        self._card = card
        self.found = Found()

    def run(self, name: str, document: Mapping[str, Any]) -> None:
        """Take in what one file says."""
        schema = document["schema"]
        try:
            text = _SCHEMA.validate_python(schema)
        except ValidationError as error:
            self.found.refused[error.errors()[0]["msg"]] += 1
            return
        checked = self._check.run(Structure("json_schema", text, ""))
        if checked.fault:
            self.found.refused[_kind(checked.fault)] += 1
            return
        self.found.served += 1
        began_s = time.perf_counter()
        self._grammars.compile(checked.grammar).result()
        self.found.compile_s.append(time.perf_counter() - began_s)
        for test in document["tests"]:
            self._try(name, checked.grammar, test)
        self._walk(name, checked.grammar, schema)

    def _try(self, name: str, grammar: str, test: Mapping[str, Any]) -> None:
        text = json.dumps(test["data"], ensure_ascii=False)
        constraint = self._constraint(grammar, self._tokenizer.encode(text, add_special_tokens=False).ids)
        matcher = constraint.catch_up()
        is_taken = not matcher.is_error() and matcher.is_accepting()
        if test["valid"]:
            self.found.valid_taken += is_taken
            if not is_taken:
                self.found.valid_rejected.append(name)
        else:
            self.found.invalid_rejected += not is_taken
            if is_taken:
                self.found.invalid_taken.append(name)

    def _constraint(self, grammar: str, generated: Sequence[int]) -> Constraint:
        return Constraint(self._grammars.compile(grammar).result().deep_copy(), generated)

    def _walk(self, name: str, grammar: str, schema: Mapping[str, Any]) -> None:
        chooser, constraint = random.Random(name), self._constraint(grammar, ())
        walked = [*self._steps(constraint, chooser)]
        if constraint.is_broken:
            self.found.walks_broken.append(name)
        elif walked and walked[-1] in self._ends:
            self.found.walks_finished += 1
            text = self._tokenizer.decode(walked[:-1], skip_special_tokens=False)
            if not _is_valid(text, schema):
                self.found.walks_wrong.append(name)

    def _steps(self, constraint: Constraint, chooser: random.Random) -> Iterator[int]:
        for _ in range(WALK_TOKENS):
            began_s = time.perf_counter()
            self._grammars.begin([constraint])
            mask = constraint.take()
            self.found.mask_s.append(time.perf_counter() - began_s)
            allowed = np.flatnonzero(np.unpackbits(mask.bits, bitorder="little"))
            if constraint.is_broken or not len(allowed):
                return
            ends = [token for token in self._ends if token in allowed]
            token = ends[0] if ends and chooser.random() < END_WEIGHT else int(chooser.choice(allowed))
            constraint.append(token, was_likeliest=False)
            yield token
            if token in self._ends:
                return


def _is_valid(text: str, schema: Mapping[str, Any]) -> bool:
    try:
        jsonschema.validate(json.loads(text), schema)
    except (ValueError, jsonschema.ValidationError):
        return False
    return True


def _kind(fault: str) -> str:
    """A refusal without what it quotes."""
    line = fault.splitlines()[0]
    return line if line.startswith("Unimplemented") else line.partition(":")[0][:60]


def _quantiles(seconds: list[float]) -> str:
    if not seconds:
        return "none"
    cuts = np.percentile(np.array(seconds) * 1e6, [50, 99, 100])
    return (
        f"mean {statistics.fmean(seconds) * 1e6:,.0f}, P50 {cuts[0]:,.0f}, P99 {cuts[1]:,.0f}, most {cuts[2]:,.0f} µs"
    )


def main() -> int:
    """Run it, print what was found, and say whether the lines are met."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--sample", type=int, default=1_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    names = sorted(options.data.glob("*.json"))
    random.Random(options.seed).shuffle(names)
    console = open_console()
    console.print(describe())
    truth = Truth(model_card(resolve(DEFAULT_MODEL, MODELS_DIR)))
    for path in track(names[: options.sample], console=console):
        truth.run(path.name, json.loads(path.read_bytes()))
    found = truth.found
    console.print(
        f"served {found.served}, refused {sum(found.refused.values())}: {dict(found.refused.most_common(12))}"
    )
    console.print(f"valid instances: {found.valid_taken} taken, rejected {found.valid_rejected}")
    console.print(f"invalid instances: {found.invalid_rejected} rejected, taken {found.invalid_taken}")
    console.print(f"walks: {found.walks_finished} finished, wrong {found.walks_wrong}, broken {found.walks_broken}")
    console.print(f"compile: {_quantiles(found.compile_s)}")
    console.print(f"mask: {_quantiles(found.mask_s)}")
    return 1 if found.valid_rejected or found.walks_wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
