"""The Triton kernels against the reference: on a GPU where there is one, in Triton's interpreter elsewhere."""

import random
from collections.abc import Sequence

import pytest
import torch

from fairlane.scheduler.planner.steps import Row, SeqId
from fairlane.worker.attention import backends
from fairlane.worker.attention.backends import BACKENDS, disagreement, fastest_backends
from fairlane.worker.attention.base import AttentionBackend, Metadata
from fairlane.worker.attention.triton import TritonPaged
from fairlane.worker.kv.cache import KVCache, KVShape
from fairlane.worker.model.packing import packing_order

pytest.importorskip("triton", reason="triton is not installed: its kernels are not tested")
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
BLOCKS = 64

Span = tuple[int, int]
"""A row's first position and its number of tokens."""


class Case:
    """Rows on random blocks of a pool, and the queries, keys and values of their tokens."""

    def __init__(
        self, spans: list[Span], *, group: int = 2, kv_heads: int = 2, head_dim: int = 16, block_size: int = 16,
        dtype: torch.dtype = torch.float32, seed: int = 0,
    ) -> None:  # fmt: skip
        self.generator = torch.Generator().manual_seed(seed)
        self.shape = KVShape(layers=2, kv_heads=kv_heads, head_dim=head_dim, dtype=dtype)
        self.block_size = block_size
        self.free = random.Random(seed).sample(range(BLOCKS), BLOCKS)
        self.rows = sorted((self._row(*span) for span in spans), key=packing_order)
        tokens = sum(span[1] for span in spans)
        self.query = self._random(tokens, kv_heads * group, head_dim)
        self.key, self.value = (self._random(tokens, kv_heads, head_dim) for _ in range(2))
        self.stored = self._random(BLOCKS - len(self.free), 2, 2, block_size, kv_heads, head_dim)

    @property
    def owned(self) -> list[int]:
        return [block for row in self.rows for block in row.block_table]

    def attend(self, backend: str, rubbish: float = 0.0) -> tuple[torch.Tensor, torch.Tensor]:
        """The outputs and the owned blocks after them; blocks that nobody owns hold `rubbish` before."""
        cache = KVCache(self.shape, blocks=BLOCKS, host_slots=0, block_size=self.block_size, device=DEVICE)
        cache.pool.fill_(rubbish)
        cache.pool[self.owned] = self.stored
        metadata = BACKENDS[backend].prepare(self.rows, cache)
        found = BACKENDS[backend].attend(self.query, self.key, self.value, cache.layers[1], metadata, 0.25)
        return found.float(), cache.pool[self.owned]

    def _row(self, first: int, tokens: int) -> Row:
        table = tuple(self.free.pop() for _ in range(-(-(first + tokens) // self.block_size)))
        return Row(SeqId(str(table), 0), (0,) * tokens, first, table, samples=False, output_index=0)

    def _random(self, *size: int) -> torch.Tensor:
        return torch.randn(size, generator=self.generator).to(DEVICE, self.shape.dtype)


def check(case: Case, tolerance: float = 1e-5) -> None:
    """Poison in all blocks that are not a row's own: what leaks is not a number."""
    expected, written = case.attend("sdpa")
    found, kept = case.attend("triton", rubbish=float("nan"))

    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)
    assert torch.equal(written, kept)


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.thorough) for seed in range(1, 8))])
def test_rows_of_any_lengths_are_exact(seed: int) -> None:
    chooser = random.Random(seed)
    spans = [(chooser.randint(0, 90), chooser.choice((1, 1, 2, 33, 50))) for _ in range(chooser.randint(1, 5))]
    block_size = chooser.choice((16, 32, 5))
    check(Case(spans, block_size=block_size, group=chooser.randint(1, 8), kv_heads=chooser.randint(1, 3), seed=seed))


@pytest.mark.parametrize("group", [1, 3, 8, 20])
def test_any_number_of_heads_may_share_a_key_head(group: int) -> None:
    check(Case([(40, 1), (3, 1), (20, 9)], group=group, kv_heads=1))


@pytest.mark.parametrize("head_dim", [32, 64, 128])
@pytest.mark.parametrize("block_size", [16, pytest.param(32, marks=pytest.mark.thorough)])
def test_heads_of_any_width_are_exact(head_dim: int, block_size: int) -> None:
    check(Case([(70, 1), (0, 1), (17, 40)], head_dim=head_dim, block_size=block_size))


@pytest.mark.parametrize("context", [255, 256, 257, 512, 513, 800])
def test_a_context_is_merged_from_its_splits(context: int) -> None:
    check(Case([(context - 1, 1), (0, 1)], kv_heads=1))


@pytest.mark.parametrize("first", [0, 1, 15, 16, 31, 32, 63, 100])
def test_a_chunk_may_begin_anywhere_in_its_sequence(first: int) -> None:
    check(Case([(first, 37)], kv_heads=1))


def test_half_precision_is_as_close_as_its_rounding() -> None:
    check(Case([(300, 1), (5, 1), (20, 40)], dtype=torch.float16, head_dim=64), tolerance=3e-3)


def test_the_same_batch_gives_the_same_bits() -> None:
    case = Case([(500, 1), (300, 1), (9, 30)])

    assert torch.equal(case.attend("triton")[0], case.attend("triton")[0])


def test_a_padding_row_writes_nowhere_and_reads_nothing() -> None:
    case = Case([(20, 1), (3, 1)])
    cache = KVCache(case.shape, blocks=BLOCKS, host_slots=0, block_size=16, device=DEVICE)
    slots, contexts, tables, tiles = BACKENDS["triton"].prepare(case.rows, cache).tensors
    slots[1], contexts[1] = -1, 0
    cache.pool.fill_(float("nan"))
    cache.pool[list(case.rows[0].block_table)] = 0.0
    before = cache.pool.clone()

    found = BACKENDS["triton"].attend(
        case.query, case.key, case.value, cache.layers[0], Metadata([slots, contexts, tables, tiles], [2]), 1.0
    )

    changed = (cache.pool.nan_to_num() != before.nan_to_num()).flatten(1).any(1).nonzero().flatten().tolist()
    assert [*case.rows[0].block_table] == changed
    assert not found[0].isnan().any()
    assert not found[1].any()


def test_the_trial_lets_it_pass() -> None:
    shape = KVShape(layers=1, kv_heads=1, head_dim=16, dtype=torch.float32)

    assert disagreement(TritonPaged(), BACKENDS["sdpa"], shape, DEVICE) is None


class Leaking(TritonPaged):
    """Looks into the block after a row's last."""

    def prepare(self, rows: Sequence[Row], cache: KVCache) -> Metadata:
        slots, contexts, tables, tiles = super().prepare(rows, cache).tensors
        return Metadata([slots, contexts + 16, tables, tiles], [len(contexts)])


def test_the_trial_finds_what_leaks() -> None:
    shape = KVShape(layers=1, kv_heads=1, head_dim=16, dtype=torch.float32)

    assert "differs by nan" in str(disagreement(Leaking(), BACKENDS["sdpa"], shape, DEVICE))


def test_what_is_never_asked_for_is_not_proven(monkeypatch: pytest.MonkeyPatch) -> None:
    proven: list[str] = []

    def agrees(backend: AttentionBackend, *_: object) -> None:
        proven.append(backend.name)

    monkeypatch.setattr(backends, "disagreement", agrees)
    for name in ("cpu", "triton"):
        monkeypatch.setitem(backends._SERVES, name, lambda *_: True)

    found = next(fastest_backends(KVShape(layers=1, kv_heads=1, head_dim=64, dtype=torch.float16), DEVICE))

    assert proven == [found] == ["cpu"]


def test_a_kernel_that_fails_is_not_used(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    class Failing(TritonPaged):
        def attend(self, *arguments: object) -> torch.Tensor:
            raise ZeroDivisionError("out of shared memory\nand more")

    monkeypatch.setitem(BACKENDS, "triton", Failing())
    monkeypatch.setitem(backends._SERVES, "triton", lambda *_: True)

    found = [*fastest_backends(KVShape(layers=1, kv_heads=1, head_dim=16, dtype=torch.float16), DEVICE)]

    assert "triton" not in found
    assert "triton attention is not used: it fails: ZeroDivisionError: out of shared memory" in caplog.text
