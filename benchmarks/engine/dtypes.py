"""Two types of weights side by side: output tokens a second, in turns, and how often the next token is float32's.

python -m benchmarks.engine.dtypes [int8 bfloat16] [--rounds 5] [--prompts 64] [--tokens 12] [--longest 300]

The loads are W1, W2, sixteen equal requests and one alone; the texts are prompts with the float32 reference's own
continuations, as in `benchmarks.engine.exactness`. FAIRLANE_TEST_PROCESSOR=avx512 or avx2 leaves out what older
processors lack.
"""

import argparse
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import rich.box
import torch
from rich.table import Table

from benchmarks.common.intervals import interval
from benchmarks.common.machine import describe
from benchmarks.common.report import open_console
from benchmarks.common.turns import Contender, Request
from benchmarks.engine import forced
from benchmarks.engine.exactness import generate, load_reference, make_prompts
from benchmarks.engine.work import equal, load
from fairlane.scheduler.protocol.settings import DEFAULT_MODEL
from fairlane.worker.model.files import ModelFiles, resolve
from fairlane.worker.model.select import load_fastest

ALONE_PROMPT, ALONE_TOKENS = 128, 64

Rates = Mapping[str, Mapping[str, list[float]]]
"""Output tokens a second of each round, by load and type."""


def take_turns(options: Mapping[str, object], dtypes: Sequence[str], rounds: int, logs: Path) -> Rates:
    """Both serve each load once in each round, in turns. Raises TurnError."""
    loads: dict[str, Sequence[Request]] = {
        "W1": load("w1"),
        "W2": load("w2"),
        "batch 16": equal(16, ALONE_PROMPT, ALONE_TOKENS),
        "batch 1": equal(1, ALONE_PROMPT, ALONE_TOKENS),
    }
    rates: dict[str, dict[str, list[float]]] = {name: {dtype: [] for dtype in dtypes} for name in loads}
    with ExitStack() as stack:
        engines = {
            dtype: stack.enter_context(
                Contender(dtype, "benchmarks.engine.ours", {**options, "dtype": dtype}, logs / f"{dtype}.log")
            )
            for dtype in dtypes
        }
        for engine in engines.values():
            engine.serve(loads["batch 1"])
        for number in range(rounds):
            for name, requests in loads.items():
                for dtype in dtypes if number % 2 == 0 else reversed(dtypes):
                    answer = engines[dtype].serve(requests)
                    rates[name][dtype].append(answer["tokens"] / answer["seconds"])
    return rates


def agreements(
    files: ModelFiles, dtypes: Sequence[str], count: int, tokens: int, longest: int
) -> dict[str, forced.Agreement]:
    """Of each type with transformers' float32, at each place of so many texts."""
    reference = load_reference(files)
    models = {dtype: load_fastest(files, dtype=dtype) for dtype in dtypes}
    if "int8" in models and getattr(models["int8"], "weight_bits", None) != 8:
        raise SystemExit("weights of 8 bits are not served here: the log says why")
    prompts = make_prompts(count, longest, next(iter(models.values())).vocab_size, 0)
    texts = [(prompt, generate(reference, prompt, tokens)) for prompt in prompts]
    found = {dtype: forced.Agreement() for dtype in dtypes}
    for start in range(0, len(texts), forced.TEXTS_AT_ONCE):
        part = texts[start : start + forced.TEXTS_AT_ONCE]
        expected = [forced.plain_logits(reference, text) for text in part]
        for dtype, model in models.items():
            for number, pair in enumerate(zip(expected, forced.served_logits(model, part), strict=True), start):
                found[dtype].add(number, *pair)
    return found


def speed_table(rates: Rates) -> Table:
    """Medians, and the ratio with its 95 % interval over the rounds."""
    dtypes = next(iter(rates.values()))
    table = Table("load", *(f"{dtype}, tokens/s" for dtype in dtypes), "ratio", box=rich.box.MARKDOWN)
    for name, each in rates.items():
        ratio = interval([one / other for one, other in zip(*each.values(), strict=True)])
        table.add_row(name, *(f"{statistics.median(of):,.0f}" for of in each.values()), str(ratio))
    return table


def agreement_table(found: Mapping[str, forced.Agreement]) -> Table:
    """How often the most likely token is the reference's, and how often 16 bits alone would not make it another."""
    table = Table("weights", "places", "same token", "other than a near-tie", box=rich.box.MARKDOWN)
    for dtype, agreement in found.items():
        far = sum(not one.is_near_tie for one in agreement.disagreements)
        table.add_row(dtype, f"{agreement.places:,}", f"{agreement.share:.1%}", f"{far / agreement.places:.1%}")
    return table


def main(arguments: Sequence[str] | None = None) -> int:
    """Print both tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.engine.dtypes", description=__doc__.splitlines()[0])
    parser.add_argument("dtypes", nargs="*", default=["int8", "bfloat16"], help="two: int8, bfloat16, float32 or auto")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--prompts", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=12, help="of each continuation")
    parser.add_argument("--longest", type=int, default=300, help="tokens of the longest prompt")
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--models-dir", type=Path, default=Path(".fairlane/models"))
    options = parser.parse_args(arguments)
    console = open_console()
    console.print(describe(), soft_wrap=True)
    files = resolve(options.model, options.models_dir)
    shared = {"model": options.model, "models_dir": str(options.models_dir.resolve()), "max_sequences": 128}
    with torch.inference_mode():
        found = agreements(files, options.dtypes, options.prompts, options.tokens, options.longest)
    console.print(agreement_table(found))
    with tempfile.TemporaryDirectory(prefix="fairlane-bench-") as logs:
        console.print(speed_table(take_turns(shared, options.dtypes, options.rounds, Path(logs))))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
