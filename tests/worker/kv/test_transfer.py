"""Copies between the pools: merged, complete, and byte for byte."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fairlane.scheduler.planner.steps import Copy
from fairlane.worker.kv.cache import KVCache, KVShape, blocks_per_chunk
from fairlane.worker.kv.transfer import CopyRun, merge_runs, staging_blocks, transfer_for

DEVICES = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]

COPIES = st.lists(st.integers(0, 30), unique=True, max_size=20).flatmap(
    lambda sources: st.permutations(range(30)).map(
        lambda targets: [Copy(source, target) for source, target in zip(sources, targets, strict=False)]
    )
)


def pools(device: str = "cpu", blocks: int = 8, slots: int = 8) -> KVCache:
    shape = KVShape(2, 1, 4, torch.float32)
    cache = KVCache(shape, blocks=blocks, host_slots=slots, block_size=2, device=device)
    cache.pool.normal_()
    cache.host_pool.normal_()
    return cache


def test_neighbours_that_stay_neighbours_are_one_copy() -> None:
    assert [CopyRun(3, 7, 3)] == merge_runs([Copy(4, 8), Copy(3, 7), Copy(5, 9)])


def test_neighbours_that_part_are_separate_copies() -> None:
    assert [CopyRun(3, 7, 1), CopyRun(4, 9, 1), CopyRun(6, 10, 1)] == merge_runs([Copy(3, 7), Copy(4, 9), Copy(6, 10)])


@given(COPIES)
def test_runs_are_the_same_copies_and_cannot_be_merged_further(copies: list[Copy]) -> None:
    runs = merge_runs(copies)

    unrolled = [Copy(run.source + step, run.target + step) for run in runs for step in range(run.blocks)]
    assert sorted(copies) == unrolled
    for left, right in pairwise(runs):
        assert (left.source + left.blocks, left.target + left.blocks) != (right.source, right.target)


@given(COPIES, st.integers(1, 9))
def test_no_run_crosses_a_registration(copies: list[Copy], chunk: int) -> None:
    for run in merge_runs(copies, target_chunk=chunk):
        assert run.target // chunk == (run.target + run.blocks - 1) // chunk
    for run in merge_runs(copies, source_chunk=chunk):
        assert run.source // chunk == (run.source + run.blocks - 1) // chunk


@pytest.mark.parametrize(
    ("block_bytes", "blocks"), [(2**21, 512), (368_640, 2912), (2**31, 1), (96, 11_184_768), (4097, 258_048)]
)
def test_registrations_hold_whole_blocks_and_whole_pages(block_bytes: int, blocks: int) -> None:
    assert blocks_per_chunk(block_bytes) == blocks
    assert block_bytes * blocks % 4096 == 0


def test_the_staging_area_takes_a_small_part_of_the_pool() -> None:
    assert staging_blocks(blocks=10_000, block_bytes=2**21) == 256
    assert staging_blocks(blocks=160, block_bytes=2**21) == 10
    assert staging_blocks(blocks=3, block_bytes=2**31) == 1


@pytest.mark.parametrize("device", DEVICES)
def test_blocks_go_out_and_come_back_unchanged(device: str) -> None:
    cache = pools(device)
    before = cache.pool.clone()
    transfer = transfer_for(cache)

    transfer.start([Copy(1, 5), Copy(2, 6), Copy(7, 0)], [])
    cache.pool[[1, 2, 7]] = 0
    transfer.start([], [Copy(5, 3), Copy(6, 1), Copy(0, 7)])

    assert torch.equal(before[[1, 2, 7]], cache.pool[[3, 1, 7]])
    assert torch.equal(before[[0, 4, 5, 6, 8]], cache.pool[[0, 4, 5, 6, 8]])


@pytest.mark.parametrize("device", DEVICES)
def test_what_goes_out_leaves_before_what_comes_in(device: str) -> None:
    cache = pools(device)
    outgoing, incoming = cache.pool[4].clone(), cache.host_pool[2].to(device)
    transfer = transfer_for(cache)

    transfer.start([Copy(4, 1)], [Copy(2, 4)])
    transfer.start([], [Copy(1, 0)])

    assert torch.equal(incoming, cache.pool[4])
    assert torch.equal(outgoing, cache.pool[0])


def test_the_time_of_the_last_step_is_told() -> None:
    transfer = transfer_for(pools())
    assert transfer.finish_ms() == 0

    transfer.start([Copy(1, 1)], [])

    assert transfer.finish_ms() > 0
