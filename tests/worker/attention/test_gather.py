"""The reference attention against the definition of attention, over random layouts."""

import random

import pytest
import torch

from fairlane.scheduler.planner.steps import Row, SeqId
from fairlane.worker.attention.backends import BACKENDS
from fairlane.worker.kv.cache import KVCache, KVShape
from fairlane.worker.model.packing import packing_order
from fairlane.worker.native import library

HEADS, KV_HEADS, HEAD_DIM, BLOCK_SIZE = 6, 2, 8, 4
SHAPE = KVShape(layers=3, kv_heads=KV_HEADS, head_dim=HEAD_DIM, dtype=torch.float32)


class Sequence:
    """One sequence's keys and values in full, and the rows that bring them into the cache."""

    def __init__(self, name: str, cuts: list[int], table: list[int], generator: torch.Generator) -> None:
        self.cuts, self.table, self.name = cuts, table, name
        self.query = torch.randn(cuts[-1], HEADS, HEAD_DIM, generator=generator)
        self.key, self.value = torch.randn(2, cuts[-1], KV_HEADS, HEAD_DIM, generator=generator)

    def row(self, start: int, end: int) -> Row:
        held = -(-end // BLOCK_SIZE)
        return Row(SeqId(self.name, 0), (0,) * (end - start), start, tuple(self.table[:held]), False, 0)

    def expected(self, start: int, end: int, scaling: float) -> torch.Tensor:
        key, value = (states.repeat_interleave(HEADS // KV_HEADS, dim=1).double() for states in (self.key, self.value))
        scores = torch.einsum("qhd,khd->hqk", self.query.double(), key) * scaling
        hidden = torch.ones(scores.shape[1:], dtype=torch.bool).triu(1)
        weights = scores.masked_fill(hidden, float("-inf")).softmax(-1)
        return torch.einsum("hqk,khd->qhd", weights, value).float()[start:end]


def random_sequences(seed: int, blocks: int) -> list[Sequence]:
    chooser, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    free = chooser.sample(range(blocks), blocks)
    found = []
    for index in range(chooser.randint(1, 7)):
        length = chooser.randint(1, 30)
        table = [free.pop() for _ in range(-(-length // BLOCK_SIZE))]
        inner = chooser.sample(range(1, length), min(length - 1, chooser.randint(0, 6)))
        found.append(Sequence(str(index), [0, *sorted(inner), length], table, generator))
    return found


def steps(sequences: list[Sequence], chooser: random.Random) -> list[list[tuple[Sequence, int, int]]]:
    """Each sequence's pieces in order, mixed at random into common steps."""
    left = {seq.name: [(seq, *cut) for cut in zip(seq.cuts, seq.cuts[1:], strict=False)] for seq in sequences}
    found = []
    while any(left.values()):
        found.append([pieces.pop(0) for pieces in left.values() if pieces and chooser.random() < 0.7])
    return [step for step in found if step]


@pytest.mark.parametrize("backend", ["sdpa", "cpu"])
@pytest.mark.parametrize("layer", [0, 2])
@pytest.mark.parametrize("seed", range(25))
def test_every_layout_gives_exact_causal_attention(backend: str, layer: int, seed: int) -> None:
    if backend == "cpu" and not library.is_compiled():
        pytest.skip("no compiler")
    cache = KVCache(SHAPE, blocks=64, host_slots=0, block_size=BLOCK_SIZE)
    cache.pool[:-1] = 1e3  # finite rubbish that earlier owners left
    scaling = 0.3
    for step in steps(random_sequences(seed, 64), random.Random(seed)):
        ordered = sorted(step, key=lambda piece: packing_order(piece[0].row(*piece[1:])))
        rows = [seq.row(start, end) for seq, start, end in ordered]
        query, key, value = (
            torch.cat([getattr(seq, name)[start:end] for seq, start, end in ordered])
            for name in ("query", "key", "value")
        )

        metadata = BACKENDS[backend].prepare(rows, cache)
        found = BACKENDS[backend].attend(query, key, value, cache.layers[layer], metadata, scaling)

        expected = torch.cat([seq.expected(start, end, scaling) for seq, start, end in ordered])
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_only_the_own_layer_and_the_own_slots_are_written() -> None:
    cache = KVCache(SHAPE, blocks=4, host_slots=0, block_size=BLOCK_SIZE)
    key = torch.ones(2, KV_HEADS, HEAD_DIM)
    metadata = BACKENDS["sdpa"].prepare([Row(SeqId("a", 0), (0, 0), 3, (2, 1), False, 0)], cache)

    BACKENDS["sdpa"].attend(torch.ones(2, HEADS, HEAD_DIM), key, 2 * key, cache.layers[1], metadata, 1.0)

    written = torch.zeros_like(cache.pool)
    written[2, 1, 0, 3] = written[1, 1, 0, 0] = 1
    written[2, 1, 1, 3] = written[1, 1, 1, 0] = 2
    assert torch.equal(written, cache.pool)
