"""Whose each KV block of a worker is: what operators watch. Ids of tenants and names alone, never a token.

Sent through the store while somebody watches, and not at all otherwise.
"""

from typing import Literal, get_args

import msgspec

BlockState = Literal["free", "running", "waiting", "clean", "cached", "swapped", "copy"]
"""Of a device block: free; held by a sequence that runs, or by one that was stopped; held, with a copy in host memory,
so that taking it costs nothing; idle, with a prefix that may be asked for again. Of a host slot: free, holding what was
swapped out, or a copy of a device block."""
STATES: tuple[BlockState, ...] = get_args(BlockState)
NOBODY = -1
OTHERS = ""
"""Stands for the tenants that are not named."""
MOST_TENANTS = 64
"""That one map names, those with most blocks."""
MOST_CELLS = 4_096
"""Of one map: in a larger pool a cell stands for several neighbouring blocks, as most of them are."""

Run = tuple[int, int, int, int]
"""So many neighbouring blocks, of which tenant and lane, in which state: each by its place, NOBODY for none."""


class BlockMap(msgspec.Struct, frozen=True, kw_only=True):
    """One worker's pools, in the order of their blocks."""

    worker: str = ""
    at_ms: int = 0
    """Unix time."""
    blocks: int
    block_size: int
    """Tokens of a block."""
    host_blocks: int
    tenants: tuple[str, ...]
    lanes: tuple[str, ...]
    states: tuple[str, ...] = STATES
    runs: tuple[Run, ...]
    host_runs: tuple[Run, ...]


class WatchBlocks(msgspec.Struct, frozen=True, kw_only=True, tag="watch_blocks"):
    """A gateway's word to a worker: tell the map about each second, for so long from now."""

    for_ms: int
