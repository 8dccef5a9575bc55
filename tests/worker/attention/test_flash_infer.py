"""What FlashInfer is told of a step: by its documented meaning that must come to the reference's attention.

The library needs a GPU. Elsewhere one that computes by the documentation, and refuses what it forbids, takes its place.
"""

import sys
from collections.abc import Callable
from importlib.util import find_spec
from types import ModuleType

import pytest
import torch

from fairlane.scheduler.planner.steps import Row, SeqId
from fairlane.worker.attention import BACKENDS, probe
from fairlane.worker.attention.flash_infer import FlashInfer
from fairlane.worker.engine.kv_cache import KVCache, KVShape

SHAPE = KVShape(layers=2, kv_heads=2, head_dim=64, dtype=torch.float32)
CPU = torch.device("cpu")


class Documented:
    """A wrapper as FlashInfer documents it, in plain sums."""

    made: int = 0
    planned: list["Documented"]

    def __init__(self, workspace: torch.Tensor, kv_layout: str) -> None:
        assert workspace.dtype == torch.uint8
        assert kv_layout == "NHD"
        type(self).made += 1

    def plan(
        self,
        qo_indptr: torch.Tensor,
        paged_kv_indptr: torch.Tensor,
        paged_kv_indices: torch.Tensor,
        paged_kv_last_page_len: torch.Tensor,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim_qk: int,
        page_size: int,
        *,
        causal: bool,
        sm_scale: float,
        q_data_type: torch.dtype,
        kv_data_type: torch.dtype,
    ) -> None:
        numbers = (qo_indptr, paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len)
        assert all(one.dtype == torch.int32 for one in numbers)
        assert len(paged_kv_indices) == paged_kv_indptr[-1]
        assert 1 <= paged_kv_last_page_len.min() <= paged_kv_last_page_len.max() <= page_size
        assert causal
        assert q_data_type == kv_data_type
        self.bounds, self.tables, self.pages, self.last = (one.tolist() for one in numbers)
        self.heads = num_qo_heads, num_kv_heads, head_dim_qk, page_size
        self.scaling = sm_scale
        self.scalings: list[float] = []
        self.planned.append(self)

    def run(self, query: torch.Tensor, kv: torch.Tensor, *, q_scale: float) -> torch.Tensor:
        self.scalings.append(q_scale * self.scaling)
        assert query.shape == (self.bounds[-1], self.heads[0], self.heads[2])
        assert (kv.shape[3], kv.shape[4], kv.shape[2]) == self.heads[1:]
        return torch.cat([self._row(query, kv, row) for row in range(len(self.last))])

    def _row(self, query: torch.Tensor, kv: torch.Tensor, row: int) -> torch.Tensor:
        mine = query[self.bounds[row] : self.bounds[row + 1]]
        pages = self.pages[self.tables[row] : self.tables[row + 1]]
        length = (len(pages) - 1) * self.heads[3] + self.last[row]
        key, value = (
            kv[pages, which].flatten(0, 1)[:length].repeat_interleave(self.heads[0] // self.heads[1], 1)
            for which in (0, 1)
        )
        scores = torch.einsum("qhd,khd->hqk", mine, key) * self.scalings[-1]
        hidden = torch.ones(scores.shape[1:], dtype=torch.bool).triu(length - len(mine) + 1)
        return torch.einsum("hqk,khd->qhd", scores.masked_fill(hidden, float("-inf")).softmax(-1), value)


@pytest.fixture
def documented(monkeypatch: pytest.MonkeyPatch) -> type[Documented]:
    """The library, computing by its documentation."""

    class Fresh(Documented):
        planned: list[Documented] = []  # noqa: RUF012 - of this test alone

    library = ModuleType("flashinfer")
    library.BatchPrefillWithPagedKVCacheWrapper = Fresh  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "flashinfer", library)
    return Fresh


def step(*spans: tuple[int, int]) -> Callable[[FlashInfer, KVCache, int, float], torch.Tensor]:
    """One step of rows by first position and tokens: attends on a layer, by a scaling."""
    rows, free = [], iter(range(40))
    for first, tokens in spans:
        table = tuple(next(free) for _ in range(-(-(first + tokens) // 4)))
        rows.append(Row(SeqId(str(table), 0), (0,) * tokens, first, table, samples=False, output_index=0))
    tokens = sum(tokens for _, tokens in spans)
    query, key, value = torch.randn(tokens, 4, 64), *torch.randn(2, tokens, 2, 64)
    metadata = None

    def attend(backend: FlashInfer, cache: KVCache, layer: int, scaling: float) -> torch.Tensor:
        nonlocal metadata
        metadata = metadata or backend.prepare(rows, cache)
        return backend.attend(query, key, value, cache.layers[layer], metadata, scaling)

    return attend


@pytest.mark.usefixtures("documented")
def test_it_attends_as_the_reference_does() -> None:
    assert probe.disagreement(FlashInfer(), BACKENDS["sdpa"], SHAPE, CPU) is None


def test_layers_share_a_plan_and_steps_take_turns(documented: type[Documented]) -> None:
    backend, cache = FlashInfer(), KVCache(SHAPE, blocks=40, host_slots=0, block_size=4)
    for one in (step((0, 3), (5, 1)), step((3, 1), (6, 1)), step((4, 1), (7, 1))):
        for layer in (0, 1):
            one(backend, cache, layer, 0.3)

    first, second, third = documented.planned
    assert first is third is not second
    assert documented.made == 2


def test_layers_of_different_scalings_share_a_plan(documented: type[Documented]) -> None:
    backend, cache = FlashInfer(), KVCache(SHAPE, blocks=40, host_slots=0, block_size=4)
    one = step((0, 3))
    for layer, scaling in ((0, 0.3), (1, 0.4)):
        one(backend, cache, layer, scaling)

    (plan,) = documented.planned
    assert plan.scalings == [0.3, 0.4]


def test_blocks_given_ahead_of_their_tokens_are_not_read(documented: type[Documented]) -> None:
    cache = KVCache(SHAPE, blocks=8, host_slots=0, block_size=4)
    rows = [Row(SeqId("a", 0), (0,) * 2, 2, (5, 6, 7), samples=False, output_index=0)]
    backend, (key, value) = FlashInfer(), torch.randn(2, 2, 2, 64)

    backend.attend(torch.randn(2, 4, 64), key, value, cache.layers[0], backend.prepare(rows, cache), 1.0)

    assert documented.planned[0].pages == [5]
    assert documented.planned[0].last == [4]


@pytest.mark.skipif(
    not torch.cuda.is_available() or find_spec("flashinfer") is None, reason="there is no GPU, or no FlashInfer"
)
def test_the_library_itself_attends_as_the_reference_does() -> None:
    shape = KVShape(layers=2, kv_heads=2, head_dim=64, dtype=torch.bfloat16)
    assert probe.disagreement(FlashInfer(), BACKENDS["sdpa"], shape, torch.device("cuda")) is None
