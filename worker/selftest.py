"""Proof at start that the model computes the same through our attention as through its own. Fails closed.

A static check knows only the kinds of attention that exist today; this one knows none, and compares.
"""

import random

import torch

from scheduler.steps import Row, SeqId
from worker.kv_cache import KVCache
from worker.model import PagedModel
from worker.model_files import ModelError
from worker.runner import pack

_TOLERANCE = {torch.float32: 1e-3}
_COARSE_TOLERANCE = 0.15
"""Relative, of the logits: rounding in 16 bits stays well below, another attention well above."""
_BLOCK_SIZE = 8


@torch.inference_mode()
def prove(model: PagedModel) -> None:
    """Run two sequences packed, in chunks and token by token, and compare. Raises ModelError where they differ."""
    cache = KVCache(model.shape, blocks=8, host_slots=0, block_size=_BLOCK_SIZE, device=model.device)
    chooser = random.Random(0)
    long, short = ([chooser.randrange(model.vocab_size) for _ in range(length)] for length in (21, 7))
    steps = [
        [_row("long", long, 0, 10, (6, 1)), _row("short", short, 0, 6, (3,))],
        [_row("short", short, 6, 7, (3,)), _row("long", long, 10, 20, (6, 1, 4))],
        [_row("long", long, 20, 21, (6, 1, 4))],
    ]
    logits = [model.forward(pack(rows, cache, model.backend), cache) for rows in steps]
    for tokens, found in ((short, logits[1][0]), (long, logits[2][0])):
        _compare(model, found.float(), model.plain_logits(tokens).float())


def _row(name: str, tokens: list[int], start: int, end: int, table: tuple[int, ...]) -> Row:
    return Row(SeqId(name, 0), tuple(tokens[start:end]), start, table, samples=end - start == 1, output_index=0)


def _compare(model: PagedModel, found: torch.Tensor, expected: torch.Tensor) -> None:
    error = float((found - expected).norm() / expected.norm())
    if not error <= _TOLERANCE.get(model.shape.dtype, _COARSE_TOLERANCE):
        raise ModelError(f"model {model.name}: its attention is not the one we know (logits differ by {error:.2g})")
