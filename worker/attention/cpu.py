"""The CPU backend: a C++ kernel that reads the blocks in place, compiled at first use. Without it `sdpa` is used."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from fairlane.scheduler.planner.steps import Row
from fairlane.worker.attention.base import Metadata
from fairlane.worker.kv.cache import KVCache, KVShape
from fairlane.worker.native.library import HEAD_DIMS, is_compiled, kernels


class CpuKernel:
    """Computes as exactly as `sdpa`: sums are float32, regardless of the cache's type."""

    name = "cpu"
    reads_beyond = False

    def prepare(self, rows: Sequence[Row], cache: KVCache) -> Metadata:
        """Return the metadata. Tensors: the tokens' slots; per row its first token, tokens, first position and start of
        its table; the array that holds the tables. Number: one more than the highest position."""
        layout = cache.row_layout(rows)
        columns = layout.starts, layout.counts, layout.firsts, cache.tables.starts(rows)
        table = torch.from_numpy(np.array(columns, np.int64).T.copy())
        return Metadata([cache.slots(rows), table, cache.tables.flat], [layout.longest])

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, kv: Tensor, metadata: Metadata, scaling: float
    ) -> Tensor:
        slots, rows, tables = metadata.tensors
        tokens, heads, head_dim = query.shape
        for states in (query, key, value):
            if states.stride()[1:] != (head_dim, 1):
                raise RuntimeError("heads must be contiguous")
        out = torch.empty(query.shape, dtype=query.dtype)
        # fmt: off
        unknown = kernels()[query.dtype].attend(
            query.data_ptr(), query.stride(0), key.data_ptr(), key.stride(0), value.data_ptr(), value.stride(0),
            kv.data_ptr(), kv.stride(0), kv.stride(1), out.data_ptr(), slots.data_ptr(), tokens,
            rows.data_ptr(), len(rows), tables.data_ptr(), kv.shape[2], heads, key.shape[1], head_dim,
            scaling, torch.get_num_threads(),
        )
        # fmt: on
        if unknown:
            raise RuntimeError(f"the attention kernel does not support head size {head_dim}")
        return out


def serves(shape: KVShape, device: torch.device) -> bool:
    """Return whether the kernel supports these keys and values, and was compiled."""
    known = shape.head_dim in HEAD_DIMS and shape.dtype in (torch.float32, torch.bfloat16)
    return known and device.type == "cpu" and is_compiled()
