"""The GPU backend: Triton kernels that read the blocks in place. Triton is imported when they first run."""

from array import array
from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec

import torch
from torch import Tensor

from fairlane.scheduler.planner.steps import Row
from fairlane.worker.attention.base import Metadata
from fairlane.worker.kv.cache import KVCache, KVShape
from fairlane.worker.kv.row_layout import int32, upload

# Head sizes that the kernels' tiles support.
HEAD_DIMS = {16, 32, 64, 128, 256}
# Slot of a padding row's token, whose key and value are not written.
NOWHERE = -1
_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
# The first GPUs that compute in bfloat16 and load shared memory asynchronously.
_LEAST_CAPABILITY = (8, 0)
# Table widths are multiples of this: a kernel is compiled again for a stride that 16 does not divide.
_TABLE_STEP = 16


class TritonPaged:
    """Decode in splits and prefill in tiles. A step of only single-token rows may be captured in a CUDA graph."""

    name = "triton"
    reads_beyond = False

    def prepare(self, rows: Sequence[Row], cache: KVCache) -> Metadata:
        """Return the metadata. Tensors: slots [tokens] int64; then, in int32, the contexts of the single-token rows,
        all rows' tables, and the other rows' tiles. Number: the single-token rows."""
        from fairlane.worker.attention.triton_kernels import TILE_FIELDS, cut_tiles, tile_tokens

        singles = sum(len(row.token_ids) == 1 for row in rows)
        widest = max([len(row.block_table) for row in rows])
        contexts = array("i", [row.context_length for row in rows[:singles]])
        tiles = array("i", cut_tiles(rows[singles:], singles, tile_tokens(cache.dtype, cache.shape.head_dim)))
        return Metadata(
            [
                cache.slots(rows),
                upload(int32(contexts), cache.device),
                upload(torch.from_numpy(cache.tables.lines(rows, table_width(widest))), cache.device),
                upload(int32(tiles).view(len(tiles) // TILE_FIELDS, TILE_FIELDS), cache.device),
            ],
            [singles],
        )

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, kv: Tensor, metadata: Metadata, scaling: float
    ) -> Tensor:
        from fairlane.worker.attention import triton_kernels

        slots, contexts, tables, tiles = metadata.tensors
        (singles,) = metadata.numbers
        out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
        with torch.cuda.device_of(query):  # type: ignore[no-untyped-call]
            triton_kernels.write(key, value, kv, slots)
            if singles:
                splits = triton_kernels.count_splits(singles, kv.shape[3], _multiprocessors(query.device))
                triton_kernels.attend_singles(query[:singles], kv, contexts, tables, out, scaling, splits)
            if len(tiles):
                triton_kernels.attend_tiles(query, kv, tiles, tables[singles:], out, scaling)
        return out


def serves(shape: KVShape, device: torch.device) -> bool:
    """Return whether the kernels support these keys and values on this device, and Triton is installed."""
    return (
        device.type == "cuda"
        and shape.head_dim in HEAD_DIMS
        and shape.dtype in _DTYPES
        and find_spec("triton") is not None
        and torch.cuda.get_device_capability(device) >= _LEAST_CAPABILITY
    )


def table_width(blocks: int) -> int:
    """Return the width of tables for this many blocks."""
    return -(-blocks // _TABLE_STEP) * _TABLE_STEP


@cache
def _multiprocessors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1
