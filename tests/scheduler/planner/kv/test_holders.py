"""What the planner's view of shared blocks costs, in table entries read."""

from collections.abc import Iterator
from typing import Any

import pytest

from fairlane.scheduler.planner import sequence_group
from fairlane.scheduler.planner.kv.blocks import BlockPool
from fairlane.scheduler.planner.sequence import Sequence
from tests.support.scheduler.planner_world import THROUGHPUT, World, job


class CountedTable(list[int]):
    """A block table that counts how many of its entries are read."""

    read = 0

    def __iter__(self) -> Iterator[int]:
        for block in super().__iter__():
            CountedTable.read += 1
            yield block

    def __getitem__(self, place: Any) -> Any:
        CountedTable.read += 1
        return super().__getitem__(place)


def reads_of_a_capacity(monkeypatch: pytest.MonkeyPatch, *, prompt: int, prefix_share: float | None) -> int:
    """Read the capacity while eight choices decode, in two lanes, behind prompts that they share."""
    monkeypatch.setattr(sequence_group, "Sequence", lambda **given: Sequence(**given, table=CountedTable()))
    world = World(blocks=4 * prompt, max_sequences=16, max_step_tokens=4096, prefix_share=prefix_share)
    world.add(job("first", prompt=prompt, max_tokens=64, n=4, text="same"))
    for number in range(4):
        world.step()
        world.add(job(f"next-{number}", prompt=prompt, max_tokens=64, text="same"))
    world.step()
    assert world.planner.counts().running[THROUGHPUT] == 8
    CountedTable.read = 0
    world.planner.capacity()
    return CountedTable.read


@pytest.mark.parametrize("prefix_share", [None, 0.5])
def test_a_capacity_reads_no_more_of_long_contexts_than_of_short_ones(
    monkeypatch: pytest.MonkeyPatch, prefix_share: float | None
) -> None:
    short, long = [reads_of_a_capacity(monkeypatch, prompt=n, prefix_share=prefix_share) for n in (64, 1024)]

    assert short == long == 0


def test_blocks_in_common_are_counted_by_the_set_of_their_holders() -> None:
    pool = BlockPool(blocks=16, block_size=4, host_slots=0)
    trunk, branch, twig = list[int](), list[int](), list[int]()
    pool.allocate(trunk, 6)
    pool.share(trunk, 4, branch)
    pool.share(branch, 2, twig)
    pool.allocate(twig, 3)

    assert [pool.freed_by([one]) for one in (trunk, branch, twig)] == [2, 0, 3]
    assert [pool.freed_by(some) for some in ([trunk, branch], [branch, twig], [trunk, twig])] == [4, 3, 5]
    assert pool.freed_by([trunk, branch, twig]) == 9

    pool.release(trunk)
    assert [pool.freed_by(some) for some in ([branch], [twig], [branch, twig])] == [2, 3, 7]
    pool.check_integrity([branch, twig], [])
