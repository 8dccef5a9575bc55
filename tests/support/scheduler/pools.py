"""A small pool of blocks, and tables in it."""

from fairlane.scheduler.planner.kv.blocks import BlockPool


def small_pool() -> BlockPool:
    return BlockPool(blocks=8, block_size=4, host_slots=4)


def table_of(pool: BlockPool, count: int) -> list[int]:
    table: list[int] = []
    pool.allocate(table, count)
    return table
