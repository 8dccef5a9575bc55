"""The pools: their layout, their sizes, and what the settings may ask."""

from pathlib import Path

import pytest
import torch

from fairlane.scheduler.planner.steps import Row, SeqId
from fairlane.worker.kv import cache as kv_cache
from fairlane.worker.kv.cache import KVCache, KVMemoryError, KVShape, container_free_bytes, size_pools

CPU = torch.device("cpu")
SHAPE = KVShape(layers=3, kv_heads=2, head_dim=4, dtype=torch.bfloat16)
MIB = 2**20


def row(first_position: int, tokens: int, table: tuple[int, ...]) -> Row:
    return Row(SeqId("a", 0), (0,) * tokens, first_position, table, samples=False, output_index=0)


def test_a_block_is_one_run_of_bytes() -> None:
    cache = KVCache(SHAPE, blocks=5, host_slots=2, block_size=16)

    assert cache.pool[3].is_contiguous()
    assert cache.pool[3].nbytes == SHAPE.block_bytes(16) == 3 * 2 * 16 * 2 * 4 * 2
    assert (cache.pool.shape[0], cache.host_pool.shape[0]) == (5 + 1, 2)


def test_slots_address_a_layer_by_block_and_offset() -> None:
    cache = KVCache(SHAPE, blocks=5, host_slots=0, block_size=4)

    lines = cache.slots([row(2, 3, (4, 1))]).tolist()

    assert lines == [4 * 24 + 2, 4 * 24 + 3, 1 * 24]  # a block has 3 layers x 2 x 4 lines
    flat = cache.pool.view(-1, 2, 4)
    flat[lines] = 1
    assert cache.layers[0][4, 0, 2:4].sum() + cache.layers[0][1, 0, 0].sum() == 3 * 8


def test_short_tables_are_padded_with_the_block_that_nobody_owns() -> None:
    cache = KVCache(SHAPE, blocks=5, host_slots=0, block_size=4)

    assert cache.pages([row(4, 1, (4, 1)), row(0, 1, (2,))]).tolist() == [[4 * 6, 1 * 6], [2 * 6, 5 * 6]]


@pytest.mark.parametrize(
    ("first_position", "tokens", "cleared"), [(0, 1, {3}), (0, 9, {3, 0, 2}), (3, 2, {0}), (4, 1, {0}), (5, 2, set())]
)
def test_a_block_is_cleared_when_its_sequence_enters_it(first_position: int, tokens: int, cleared: set[int]) -> None:
    cache = KVCache(SHAPE, blocks=5, host_slots=0, block_size=4)
    cache.pool.fill_(float("nan"))
    table = (3, 0, 2)[: -(-(first_position + tokens) // 4)]

    cache.clear_entered([row(first_position, tokens, table)])

    assert cleared == {block for block in range(5) if not cache.pool[block].isnan().any()}


def test_pools_have_the_sizes_that_were_set() -> None:
    sizes = size_pools(MIB, device=CPU, kv_bytes=10 * MIB, host_bytes=3 * MIB + 1, most_blocks=4)

    assert sizes == (10, 3)


def test_pools_take_a_share_of_what_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_cache, "free_bytes", lambda device: (1000 * MIB, 1000 * MIB))

    sizes = size_pools(MIB, device=CPU, kv_bytes=None, host_bytes=None, most_blocks=10**6)

    assert sizes == (350, 97)


def test_pools_are_no_larger_than_all_sequences_can_use() -> None:
    sizes = size_pools(1, device=CPU, kv_bytes=None, host_bytes=None, most_blocks=8)

    assert sizes == (8, 8)


def test_no_host_pool_is_a_choice() -> None:
    assert size_pools(MIB, device=CPU, kv_bytes=MIB, host_bytes=0, most_blocks=8) == (1, 0)


@pytest.mark.parametrize(
    ("kv_bytes", "host_bytes", "message"),
    [
        (MIB - 1, None, r"^kv_memory: 1.0 MiB hold no block; one takes 1.0 MiB$"),
        (2**60, None, r"^kv_memory: .* MiB asked for, .* MiB free$"),
        (MIB, 2**60, r"^host_kv_memory: .* asked for, .* free$"),
        (MIB, 5, r"^host_kv_memory: 0.0 MiB hold no block"),
    ],
)
def test_a_size_that_cannot_be_is_refused_in_one_line(kv_bytes: int, host_bytes: int | None, message: str) -> None:
    with pytest.raises(KVMemoryError, match=message):
        size_pools(MIB, device=CPU, kv_bytes=kv_bytes, host_bytes=host_bytes, most_blocks=8)


def test_a_machine_without_room_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_cache, "free_bytes", lambda device: (MIB, MIB))

    with pytest.raises(KVMemoryError, match=r"kv_memory: 1.0 MiB free are too few"):
        size_pools(MIB, device=CPU, kv_bytes=None, host_bytes=None, most_blocks=8)


def test_a_containers_limit_counts_as_the_memory_there_is(tmp_path: Path) -> None:
    (tmp_path / "memory.max").write_text("1000\n")
    (tmp_path / "memory.current").write_text("300\n")

    assert container_free_bytes(tmp_path) == 700


def test_a_container_without_limit_is_ignored(tmp_path: Path) -> None:
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text("300\n")

    assert container_free_bytes(tmp_path) > 2**60
    assert container_free_bytes(tmp_path / "absent") > 2**60
