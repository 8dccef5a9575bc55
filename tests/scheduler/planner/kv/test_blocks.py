import pytest

from fairlane.scheduler.planner.kv.blocks import BlockPool, IntegrityError, OutOfBlocks
from tests.support.scheduler.pools import table_of


def test_a_token_more_than_a_block_needs_a_second_block(pool: BlockPool) -> None:
    assert [pool.blocks_for(tokens) for tokens in (0, 1, 4, 5)] == [0, 1, 1, 2]


def test_what_is_allocated_is_not_free_until_released(pool: BlockPool) -> None:
    table = table_of(pool, 3)

    assert len(set(table)) == 3
    assert pool.free_blocks == 5

    pool.release(table)
    assert table == []
    assert pool.free_blocks == 8


def test_asking_for_more_than_is_free_raises_and_changes_nothing(pool: BlockPool) -> None:
    table = table_of(pool, 6)

    assert not pool.can_allocate(3)
    with pytest.raises(OutOfBlocks):
        pool.allocate(table, 3)

    assert len(table) == 6
    assert pool.free_blocks == 2


def test_a_shared_block_is_free_only_when_its_last_holder_releases_it(pool: BlockPool) -> None:
    trunk = table_of(pool, 3)
    branch: list[int] = []
    pool.share(trunk, 2, branch)

    pool.release(trunk)
    assert pool.free_blocks == 6

    pool.release(branch)
    assert pool.free_blocks == 8


def test_shared_blocks_count_as_freed_only_if_all_holders_yield(pool: BlockPool) -> None:
    trunk = table_of(pool, 3)
    branch: list[int] = []
    pool.share(trunk, 2, branch)

    assert pool.freed_by([trunk]) == 1
    assert pool.freed_by([branch]) == 0
    assert pool.freed_by([trunk, branch]) == 3


def test_a_swap_out_copies_only_what_holds_kv_and_frees_the_whole_table(pool: BlockPool) -> None:
    table, slots = table_of(pool, 3), list[int]()
    held = list(table)

    copies = pool.swap_out(table, 2, slots)

    assert [copy.source for copy in copies] == held[:2]
    assert [copy.target for copy in copies] == slots
    assert (pool.free_blocks, pool.slots.free) == (8, 2)


def test_a_table_can_be_released_from_its_end(pool: BlockPool) -> None:
    table = table_of(pool, 5)
    held = list(table)

    pool.release(table, keep=2)

    assert (table, pool.free_blocks) == (held[:2], 6)


def test_what_is_swapped_out_piece_by_piece_from_the_end_comes_back_in_order(pool: BlockPool) -> None:
    table, slots = table_of(pool, 4), list[int]()
    held, host = list(table), dict[int, int]()
    for keep in (3, 1):
        copies = pool.swap_out(table, len(table), slots, keep)
        host |= {copy.target: copy.source for copy in copies}
        assert (table, pool.free_blocks) == (held[:keep], 8 - keep)

    copies = pool.swap_in(slots, table)

    assert [host[copy.source] for copy in copies] == held[1:]
    assert table == [held[0], *(copy.target for copy in copies)]


def test_retired_slots_are_free_once_the_copies_have_run(pool: BlockPool) -> None:
    slots = list[int]()
    pool.swap_out(table_of(pool, 3), 3, slots)

    pool.slots.retire(slots)

    assert (slots, pool.slots.free) == ([], 1)
    pool.slots.settle()
    assert pool.slots.free == 4


def test_a_swap_out_without_host_room_raises_and_changes_nothing(pool: BlockPool) -> None:
    table, slots = table_of(pool, 5), list[int]()

    assert not pool.can_swap_out(5)
    with pytest.raises(OutOfBlocks):
        pool.swap_out(table, 5, slots)

    assert (len(table), slots, pool.slots.free) == (5, [], 4)


def test_slots_of_a_swap_in_are_not_reused_before_the_copies_have_run(pool: BlockPool) -> None:
    table, slots = table_of(pool, 2), list[int]()
    pool.swap_out(table, 2, slots)
    held = list(slots)

    copies = pool.swap_in(slots, table)
    assert [copy.source for copy in copies] == held
    assert [copy.target for copy in copies] == table
    assert (slots, pool.slots.free) == ([], 2)

    pool.slots.settle()
    assert pool.slots.free == 4


def test_the_same_calls_give_the_same_blocks() -> None:
    def history() -> list[int]:
        pool = BlockPool(blocks=8, block_size=4, host_slots=0)
        first, second = table_of(pool, 3), table_of(pool, 2)
        pool.release(first)
        pool.allocate(second, 4)
        return second

    assert history() == history()


def test_a_second_release_is_noticed_at_once(pool: BlockPool) -> None:
    table = table_of(pool, 1)
    stale = list(table)
    pool.release(table)

    with pytest.raises(IntegrityError, match="double_free"):
        pool.release(stale)


@pytest.mark.parametrize(
    ("invariant", "tables", "slots"),
    [
        ("table_unique", [[0, 0], [2]], [[0]]),
        ("references", [[0, 1]], [[0]]),
        ("references", [[0, 1], [2, 3]], [[0]]),
        ("host_slots", [[0, 1], [2]], []),
        ("host_slots", [[0, 1], [2]], [[0], [0]]),
    ],
)
def test_integrity_names_the_invariant_that_is_broken(
    pool: BlockPool, invariant: str, tables: list[list[int]], slots: list[list[int]]
) -> None:
    table_of(pool, 3)
    pool.swap_out(table_of(pool, 1), 1, [])
    pool.check_integrity([[0, 1], [2]], [[0]])

    with pytest.raises(IntegrityError) as broken:
        pool.check_integrity(tables, slots)

    assert broken.value.invariant == invariant
