"""Is greedy output token-identical to transformers' `generate`? Alone, batched, preempted at random steps, and cached.

python -m benchmarks.engine.exactness [--prompts 50] [--tokens 64] [--longest 2000]

Both sides run the same weights in float32. A sequence may part from its reference only at a near-tie, where the
reference's own logits of the two tokens lie within NEAR_TIE; each is listed. Then the same texts, token by token: our
float32 logits may hardly differ from the reference's; in bfloat16 the most likely token may be another than in float32
only at near-ties, each listed, and hardly more often than in transformers' own bfloat16: the limits stand in
`benchmarks.engine.forced`. Anything else ends with status 1.
"""

import argparse
import random
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from benchmarks.common.leases import greedy_lease
from benchmarks.engine import forced
from fairlane.scheduler.planner.costs import CostModel
from fairlane.scheduler.planner.steps import SeqId
from fairlane.scheduler.protocol.messages import Preempted, YieldMode
from fairlane.scheduler.protocol.settings import DEFAULT_MODEL
from fairlane.worker.engine.build import planner_for
from fairlane.worker.engine.engine import Engine
from fairlane.worker.engine.runner import Runner
from fairlane.worker.kv.cache import KVCache
from fairlane.worker.model.files import ModelFiles, resolve
from fairlane.worker.model.interface import Model
from fairlane.worker.model.select import load_fastest

if TYPE_CHECKING:
    from transformers import PreTrainedModel

NEAR_TIE = 1e-4
BLOCK_SIZE = 16
PREEMPT_SHARE = 0.1
"""Share of the sequences that are preempted at each step, where preemption is tested."""

Way = Literal["alone", "batched", "swap", "recompute", "cached"]
"""The last is a second turn of the same prompts, behind what the prefix cache kept of the first."""
WAYS: tuple[Way, ...] = get_args(Way)
Tokens = list[int]
Advance = Callable[[], None]


class ExactnessError(AssertionError):
    """The engine lost, leaked or failed something; says what."""


@dataclass(frozen=True)
class Difference:
    """Where a sequence first parts from its reference, and how far apart the two tokens' logits are there."""

    way: Way
    prompt: int
    index: int
    expected: int
    found: int
    gap: float

    @property
    def is_near_tie(self) -> bool:
        """Rounding alone explains it."""
        return self.gap <= NEAR_TIE


def make_prompts(count: int, longest: int, vocab_size: int, seed: int = 0) -> list[Tokens]:
    """Prompts of 1 to `longest` random tokens, the lengths spread evenly on a logarithmic scale, in random order."""
    chooser = random.Random(seed)
    lengths = [round(longest ** (place / max(1, count - 1))) for place in range(count)]
    chooser.shuffle(lengths)
    return [[chooser.randrange(vocab_size) for _ in range(length)] for length in lengths]


def load_reference(files: ModelFiles, dtype: torch.dtype = torch.float32) -> "PreTrainedModel":
    """Transformers' own model, that never stops by itself."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(files.directory, dtype=dtype, attn_implementation="sdpa")
    model.generation_config.eos_token_id = None
    return model.eval()


def generate(reference: "PreTrainedModel", prompt: Tokens, tokens: int) -> Tokens:
    """The reference's greedy continuation."""
    ids = torch.tensor([prompt])
    # Without a mask `generate` takes every token that equals the padding id for padding.
    mask = torch.ones_like(ids)
    with torch.inference_mode():
        output = reference.generate(
            ids, attention_mask=mask, do_sample=False, max_new_tokens=tokens, pad_token_id=0, use_cache=True
        )
    found: Tokens = output[0, len(prompt) :].tolist()
    return found


def serve(
    model: Model,
    prompts: Sequence[Tokens],
    tokens: int,
    way: Way,
    *,
    seed: int = 0,
    advance: Advance = lambda: None,
) -> list[Tokens]:
    """The engine's greedy continuations. Raises ExactnessError where one came out short or left anything behind."""
    if way == "alone":
        alone = ([prompt] for prompt in prompts)
        return [_serve(one, _engine(model, one, tokens), tokens, None, seed, advance)[0] for one in alone]
    engine = _engine(model, prompts, tokens, prefix_share=1.0 if way == "cached" else None)
    if way == "cached":
        _serve(prompts, engine, tokens, None, seed, lambda: None)
        if not engine.planner.blocks_cached:
            raise ExactnessError("nothing was cached")
    mode: YieldMode | None = way if way in ("swap", "recompute") else None
    return _serve(prompts, engine, tokens, mode, seed, advance)


def _serve(
    prompts: Sequence[Tokens], engine: Engine, tokens: int, mode: YieldMode | None, seed: int, advance: Advance
) -> list[Tokens]:
    for number, prompt in enumerate(prompts):
        engine.add(greedy_lease(number, prompt, tokens), time.monotonic() * 1e3)
    found: dict[str, Tokens] = defaultdict(list)
    preempted: Counter[str] = Counter()
    chooser = random.Random(seed)
    while engine.has_work:
        if mode is not None:
            _preempt_some(engine, mode, chooser, found, preempted, tokens)
        report = engine.step(time.monotonic() * 1e3)
        preempted.update(e.job_id for e in report.plan.events if isinstance(e, Preempted) and e.mode == mode)
        for produced in report.outcome.produced:
            found[produced.seq.job_id].append(produced.token_id)
        for _ in report.outcome.ended:
            advance()
    _check_clean(engine, prompts, found, tokens, preempted if mode else None)
    return [found[str(number)] for number in range(len(prompts))]


def _preempt_some(
    engine: Engine,
    mode: YieldMode,
    chooser: random.Random,
    found: dict[str, Tokens],
    done: Counter[str],
    tokens: int,
) -> None:
    """Random sequences at random steps, wholly or their last blocks; towards its end each that was never chosen."""
    for job_id in engine.planner.job_ids():
        is_late = not done[job_id] and len(found[job_id]) >= tokens // 2
        if is_late or chooser.random() < PREEMPT_SHARE:
            engine.planner.preempt(SeqId(job_id, 0), mode, chooser.choice((None, 1, 2)))


def _engine(model: Model, prompts: Sequence[Tokens], tokens: int, prefix_share: float | None = None) -> Engine:
    """An engine with room for all prompts at once, on the device and on the host."""
    blocks = sum(-(-(len(prompt) + tokens) // BLOCK_SIZE) for prompt in prompts) + len(prompts)
    cache = KVCache(model.shape, blocks=blocks, host_slots=blocks, block_size=BLOCK_SIZE, device=model.device)
    planner = planner_for(cache, CostModel(), max_sequences=len(prompts), prefix_share=prefix_share)
    return Engine(planner, Runner(model, cache))


def _check_clean(
    engine: Engine, prompts: Sequence[Tokens], found: dict[str, Tokens], tokens: int, preempted: Counter[str] | None
) -> None:
    engine.planner.check_integrity()
    sizes = engine.planner.pool_sizes
    free = (engine.planner.blocks_free, engine.planner.host_slots_free)
    if free != (sizes.blocks, sizes.host_slots):
        raise ExactnessError(f"blocks and host slots free afterwards: {free} of {(sizes.blocks, sizes.host_slots)}")
    names = [str(number) for number in range(len(prompts))]
    if short := [name for name in names if len(found[name]) != tokens]:
        raise ExactnessError(f"prompts {', '.join(short)} did not yield {tokens} tokens")
    if preempted is not None and (spared := [name for name in names if not preempted[name]]):
        raise ExactnessError(f"prompts {', '.join(spared)} were never preempted")


def compare(
    reference: "PreTrainedModel",
    prompts: Sequence[Tokens],
    expected: Sequence[Tokens],
    found: Sequence[Tokens],
    way: Way,
) -> Iterator[Difference]:
    """The first difference of each sequence; after it the two continue different texts."""
    for number, (prompt, wanted, got) in enumerate(zip(prompts, expected, found, strict=True)):
        index = next((place for place, pair in enumerate(zip(wanted, got, strict=True)) if pair[0] != pair[1]), None)
        if index is not None:
            ids = torch.tensor([prompt + wanted[:index]])
            with torch.inference_mode():
                logits = reference(input_ids=ids, attention_mask=torch.ones_like(ids), logits_to_keep=1).logits[0, -1]
            gap = abs(float(logits[wanted[index]] - logits[got[index]]))
            yield Difference(way, number, index, wanted[index], got[index], gap)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the proof and print what came out; the process' exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.engine.exactness", description=__doc__.splitlines()[0])
    parser.add_argument("--prompts", type=int, default=50)
    parser.add_argument("--tokens", type=int, default=64, help="new tokens for each prompt")
    parser.add_argument("--longest", type=int, default=2000, help="tokens of the longest prompt")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=0, help="0: torch's default")
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--models-dir", type=Path, default=Path(".fairlane/models"))
    options = parser.parse_args(arguments)
    if options.threads:
        torch.set_num_threads(options.threads)
    return _prove(options, Console())


def _prove(options: argparse.Namespace, console: Console) -> int:
    files = resolve(options.model, options.models_dir)
    model, reference = load_fastest(files, dtype="float32"), load_reference(files)
    prompts = make_prompts(options.prompts, options.longest, model.vocab_size, options.seed)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    differences: list[Difference] = []
    with Progress(*columns, TimeRemainingColumn(), console=console) as progress:
        task = progress.add_task("reference", total=len(prompts) * (1 + len(WAYS) + len(forced.MODELS)))
        expected = []
        for prompt in prompts:
            expected.append(generate(reference, prompt, options.tokens))
            progress.advance(task)
        for way in WAYS:
            progress.update(task, description=way)
            found = serve(
                model, prompts, options.tokens, way, seed=options.seed, advance=lambda: progress.advance(task)
            )
            differences += compare(reference, prompts, expected, found, way)
        progress.update(task, description="logits")
        texts = list(zip(prompts, expected, strict=True))
        coarse = load_fastest(files, dtype="bfloat16"), load_reference(files, torch.bfloat16)
        agreements = forced.agree(reference, model, *coarse, texts, lambda: progress.advance(task))
    is_same = _report(console, prompts, options.tokens, differences)
    return 0 if forced.report(console, agreements) and is_same else 1


def _report(console: Console, prompts: Sequence[Tokens], tokens: int, differences: Sequence[Difference]) -> bool:
    """Whether all is as it should be."""
    wrong = [difference for difference in differences if not difference.is_near_tie]
    table = Table("way", "prompt", "prompt tokens", "at", "expected", "found", "logit gap", "near-tie")
    for d in differences:
        row = (d.way, d.prompt, len(prompts[d.prompt]), d.index, d.expected, d.found, f"{d.gap:.2e}", d.is_near_tie)
        table.add_row(*map(str, row))
    if differences:
        console.print(table)
    lengths = [len(prompt) for prompt in prompts]
    console.print(
        f"{len(prompts)} prompts of {min(lengths)} to {max(lengths)} tokens x {tokens} new tokens, float32, "
        f"{', '.join(WAYS)}: {len(differences) - len(wrong)} near-ties, {len(wrong)} differences. "
        "All blocks and host slots free afterwards."
    )
    return not wrong


if __name__ == "__main__":
    sys.exit(main())
