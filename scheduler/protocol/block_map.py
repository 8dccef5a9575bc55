"""The owner of each KV block of a worker, for operators. Holds tenant ids and names only, never a token.

Workers publish it through the store only while an operator watches."""

from typing import Literal, get_args

import msgspec

# Device blocks: free; held by a running or a stopped (waiting) sequence; clean: held, with a copy in host memory, so
# that evicting it is free; cached: idle, with a reusable prefix. Host slots: free; swapped out; copy of a device block.
BlockState = Literal["free", "running", "waiting", "clean", "cached", "swapped", "copy"]
STATES: tuple[BlockState, ...] = get_args(BlockState)
NOBODY = -1
OTHERS = ""
# Maximum number of tenants in one map: those with the most blocks.
MAX_TENANTS = 64
# In a larger pool one cell represents several neighbouring blocks, with the state of most of them.
MAX_CELLS = 4_096

# (number of neighbouring blocks, tenant index, lane index, state index); NOBODY where there is no tenant or lane.
Run = tuple[int, int, int, int]


class BlockMap(msgspec.Struct, frozen=True, kw_only=True):
    """One worker's device and host pools, in block order."""

    worker: str = ""
    # Unix time.
    at_ms: int = 0
    blocks: int
    block_size: int
    host_blocks: int
    tenants: tuple[str, ...]
    lanes: tuple[str, ...]
    states: tuple[str, ...] = STATES
    runs: tuple[Run, ...]
    host_runs: tuple[Run, ...]


class WatchBlocks(msgspec.Struct, frozen=True, kw_only=True, tag="watch_blocks"):
    """Ask a worker to publish its block map about once a second, for `for_ms` from now."""

    for_ms: int
