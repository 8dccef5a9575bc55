"""Proof at start that the model computes the same through our paths as through its own. Fails closed.

A static check knows only the kinds of attention that exist today; this one knows none, and compares. So does the
proof of a faster path: every logit of two sequences, packed, in chunks and token by token.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch

from scheduler.steps import Row, SeqId
from worker.kv_cache import KVCache
from worker.model import Model, PagedModel
from worker.model_files import ModelError
from worker.packing import pack

_TOLERANCE = {torch.float32: 1e-3}
_COARSE_TOLERANCE = 0.15
"""Relative, of the logits: rounding in 16 bits stays well below, another attention well above."""
_LEAN_TOLERANCE = {torch.float32: 1e-4}
_LEAN_COARSE_TOLERANCE = 0.1
"""Of a faster path, whose attention is the same, as a share of the largest logit: no logit may be further off."""
INT8_TOLERANCE = 0.2
"""The same where weights are rounded to 8 bits on purpose; a wrong one makes it about 1."""
_BLOCK_SIZE = 8
_LENGTHS = {"long": 21, "short": 7}


@torch.inference_mode()
def prove(model: PagedModel) -> list[torch.Tensor]:
    """Compare our attention with the model's own; returns `every_logit`. Raises ModelError where they differ."""
    logits = every_logit(model)
    *_, shorts, longs = logits
    prompts = _prompts(model)
    for name, found in (("short", shorts[0]), ("long", longs[0])):
        expected = model.plain_logits(prompts[name]).float()
        error = float((found - expected).norm() / expected.norm())
        if not error <= _TOLERANCE.get(model.shape.dtype, _COARSE_TOLERANCE):
            raise ModelError(f"model {model.name}: its attention is not the one we know (logits differ by {error:.2g})")
    return logits


@torch.inference_mode()
def every_logit(model: Model) -> list[torch.Tensor]:
    """What another path of the same model must agree with."""
    return list(_logits(model))


@torch.inference_mode()
def disagreement(fast: Model, logits: Sequence[torch.Tensor], limit: float | None = None) -> str | None:
    """How a path's logits differ by more than rounding from the reference's, at any token; None where they agree.
    `limit`: what is rounding, where the path rounds more than its type does."""
    limit = limit or _LEAN_TOLERANCE.get(fast.shape.dtype, _LEAN_COARSE_TOLERANCE)
    for found, expected in zip(_logits(fast), logits, strict=True):
        error = float((found - expected).abs().max() / expected.abs().max())
        if not error <= limit:  # nor where it is not a number
            return f"its logits differ by {error:.2g} of the largest, more than {limit:.2g}"
    return None


def _logits(model: Model) -> Iterator[torch.Tensor]:
    """Every token's logits, step by step. The last two steps end a sequence with their first row."""
    cache = KVCache(model.shape, blocks=8, host_slots=0, block_size=_BLOCK_SIZE, device=model.device)
    long, short = (_prompts(model)[name] for name in ("long", "short"))
    for rows in (
        [_row("long", long, 0, 10, (6, 1)), _row("short", short, 0, 6, (3,))],
        [_row("short", short, 6, 7, (3,)), _row("long", long, 10, 20, (6, 1, 4))],
        [_row("long", long, 20, 21, (6, 1, 4))],
    ):
        packed = pack(rows, cache, model.backend)
        every = torch.arange(len(packed.token_ids), device=model.device)
        yield model.forward(replace(packed, logit_rows=every), cache).logits.to(torch.float32, copy=True)


def _prompts(model: Model) -> dict[str, list[int]]:
    chooser = random.Random(0)
    return {name: [chooser.randrange(model.vocab_size) for _ in range(length)] for name, length in _LENGTHS.items()}


def _row(name: str, tokens: list[int], start: int, end: int, table: tuple[int, ...]) -> Row:
    return Row(SeqId(name, 0), tuple(tokens[start:end]), start, table, samples=end - start == 1, output_index=0)
