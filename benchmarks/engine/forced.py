"""What two models say next of the same text: logits token by token, and how often the most likely token is the same.

Texts are prompts with the float32 reference's own greedy continuations. Our path computes them as it serves them: the
prompts in one step, then all texts together, a token a step.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from rich.console import Console
from rich.table import Table

from fairlane.scheduler.planner.steps import Row, SeqId
from fairlane.worker.kv.cache import KVCache
from fairlane.worker.model.interface import Model
from fairlane.worker.model.packing import pack

if TYPE_CHECKING:
    from transformers import PreTrainedModel

BLOCK_SIZE = 16
MANTISSA_BITS = 8
"""Of bfloat16: two numbers closer than a unit in the last place of the larger are the same to it."""
NEAR_TIE_UNITS = 2.0
MOST_ERROR = 1e-4
LESS_AGREEMENT = 0.005
TEXTS_AT_ONCE = 16
EXACT, OURS, THEIRS = MODELS = ("ours, float32", "ours, bfloat16", "transformers, bfloat16")
"""What is held against the float32 reference."""

Text = tuple[Sequence[int], Sequence[int]]
"""A prompt, and its continuation."""


@dataclass(frozen=True, slots=True)
class Disagreement:
    """Another token was more likely."""

    text: int
    place: int
    margin: float
    """By how much the reference prefers its own."""
    unit: float
    """One unit in the last place of the reference's largest logit, in bfloat16."""

    @property
    def is_near_tie(self) -> bool:
        """Rounding alone explains it."""
        return self.margin <= NEAR_TIE_UNITS * self.unit


@dataclass
class Agreement:
    """Of one model with the reference, over many texts."""

    places: int = 0
    largest_error: float = 0.0
    """Between any two logits, as a share of the reference's largest there, as in the worker's self-test."""
    disagreements: list[Disagreement] = field(default_factory=list)

    @property
    def share(self) -> float:
        """Of the places where the most likely token is the reference's."""
        return 1.0 - len(self.disagreements) / self.places

    def add(self, text: int, expected: torch.Tensor, found: torch.Tensor) -> None:
        """One text's logits [continuation, vocabulary], of the reference and of the model."""
        self.places += len(expected)
        errors = (found - expected).abs().amax(-1) / expected.abs().amax(-1)
        self.largest_error = max(self.largest_error, float(errors.max()))
        best, chosen = expected.argmax(-1), found.argmax(-1)
        for place in (best != chosen).nonzero()[:, 0].tolist():
            logits = expected[place]
            margin = float(logits[best[place]] - logits[chosen[place]])
            exponent = math.frexp(float(logits.abs().max()))[1]
            self.disagreements.append(Disagreement(text, place, margin, 2.0 ** (exponent - MANTISSA_BITS)))


@torch.inference_mode()
def plain_logits(model: "PreTrainedModel", text: Text) -> torch.Tensor:
    """Transformers' own, of the whole text at once: [continuation, vocabulary], float32."""
    prompt, continuation = text
    ids = torch.tensor([[*prompt, *continuation[:-1]]])
    logits: torch.Tensor = model(
        input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False, logits_to_keep=len(continuation)
    ).logits[0]
    return logits.float()


@torch.inference_mode()
def served_logits(model: Model, texts: Sequence[Text]) -> list[torch.Tensor]:
    """Ours: [continuation, vocabulary] of each text, float32. All continuations have the same length."""
    steps = zip(*_steps(model, texts), strict=True)
    return [torch.stack(rows) for rows in steps]


def _steps(model: Model, texts: Sequence[Text]) -> Iterator[list[torch.Tensor]]:
    """Each step's logits [vocabulary] of every text, in their order."""
    sizes = [-(-(len(prompt) + len(continuation)) // BLOCK_SIZE) for prompt, continuation in texts]
    cache = KVCache(model.shape, blocks=sum(sizes), host_slots=0, block_size=BLOCK_SIZE, device=model.device)
    tables = [range(sum(sizes[:index]), sum(sizes[: index + 1])) for index in range(len(texts))]
    for step in range(len(texts[0][1])):
        rows = []
        for index, (prompt, continuation) in enumerate(texts):
            tokens = continuation[step - 1 : step] if step else prompt
            first = len(prompt) + step - 1 if step else 0
            held = -(-(first + len(tokens)) // BLOCK_SIZE)
            rows.append(Row(SeqId(str(index), 0), tuple(tokens), first, tuple(tables[index][:held]), True, step))
        rows.sort(key=lambda row: (len(row.token_ids) > 1, len(row.block_table)))  # as the runner packs them
        logits = model.forward(pack(rows, cache, model.backend), cache).logits.to(torch.float32, copy=True)
        found = {row.seq.job_id: line for row, line in zip(rows, logits, strict=True)}
        yield [found[str(index)] for index in range(len(texts))]


def agree(
    reference: "PreTrainedModel",
    exact: Model,
    ours: Model,
    theirs: "PreTrainedModel",
    texts: Sequence[Text],
    advance: Callable[[], None],
) -> dict[str, Agreement]:
    """How each of MODELS agrees with the reference, transformers' in float32."""
    found = {name: Agreement() for name in MODELS}
    for start in range(0, len(texts), TEXTS_AT_ONCE):
        part = texts[start : start + TEXTS_AT_ONCE]
        expected = [plain_logits(reference, text) for text in part]
        logits = {
            EXACT: served_logits(exact, part),
            OURS: served_logits(ours, part),
            THEIRS: [plain_logits(theirs, text) for text in part],
        }
        for name, lines in logits.items():
            for number, pair in enumerate(zip(expected, lines, strict=True)):
                found[name].add(start + number, *pair)
                advance()
    return found


def report(console: Console, agreements: Mapping[str, Agreement]) -> bool:
    """Print them, with every disagreement in bfloat16; whether all is within the limits."""
    for name, one in agreements.items():
        console.print(
            f"{name}: the reference's most likely token at {one.share:.3%} of {one.places} places, "
            f"no logit further off than {one.largest_error:.2g} of the largest"
        )
    table = Table("model", "text", "at", "margin", "units in the last place", "near-tie")
    for name in (OURS, THEIRS):
        for d in sorted(agreements[name].disagreements, key=lambda each: each.margin, reverse=True):
            row = (name, d.text, d.place, f"{d.margin:.3f}", f"{d.margin / d.unit:.2f}", d.is_near_tie)
            table.add_row(*map(str, row))
    console.print(table)
    exact, ours, theirs = (agreements[name] for name in MODELS)
    near = all(d.is_near_tie for d in ours.disagreements)
    return exact.largest_error <= MOST_ERROR and near and ours.share >= theirs.share - LESS_AGREEMENT
