"""The interface between models and attention kernels."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from torch import Tensor

from fairlane.scheduler.planner.steps import Row
from fairlane.worker.kv.cache import KVCache


class Metadata(NamedTuple):
    """A description of one step's rows, prepared once and read by every layer."""

    tensors: list[Tensor]
    numbers: list[int]


class AttentionBackend(Protocol):
    """Writes a step's keys and values into the paged cache and attends to them. Stateless; one instance per name.

    Every backend must agree with `sdpa`, the reference. Keys are written before anything is read, so a row attends to
    itself. A row reads exactly the positions up to its own; other contents of a block do not affect the result."""

    name: str
    # It may multiply values after a row's positions by zero: the runner clears a block when a sequence enters it.
    reads_beyond: bool

    def prepare(self, rows: Sequence[Row], cache: KVCache) -> Metadata:
        """Describe `rows` in packed order: first those of one token by number of blocks, then the others."""

    def attend(
        self,
        query: Tensor,  # [tokens, heads, head_dim]
        key: Tensor,  # [tokens, kv_heads, head_dim]
        value: Tensor,  # [tokens, kv_heads, head_dim]
        kv: Tensor,  # [blocks, 2, block_size, kv_heads, head_dim], one layer's view of the cache; written
        metadata: Metadata,
        scaling: float,
    ) -> Tensor:  # [tokens, heads, head_dim], fresh memory
        """Write `key` and `value` to their slots, then attend causally within each row's sequence."""
