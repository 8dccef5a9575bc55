"""The GPU's backend: Triton kernels that read the blocks where they lie. Triton is imported when they first run."""

from array import array
from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec

import torch

from fairlane.scheduler.planner.steps import Row
from fairlane.worker.attention.base import Metadata
from fairlane.worker.engine.kv_cache import KVCache, KVShape
from fairlane.worker.engine.row_layout import int32, upload

HEAD_DIMS = {16, 32, 64, 128, 256}
"""Head sizes that the kernels' tiles can have."""
NOWHERE = -1
"""The slot of a token whose key and value are not written: of a row that only fills up a batch."""
_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_LEAST_CAPABILITY = (8, 0)
"""The first GPUs that compute in bfloat16 and load shared memory beside computing."""
_TABLE_STEP = 16
"""Tables are a multiple of it wide: a kernel is compiled anew for a stride that 16 does not divide."""


class TritonPaged:
    """Decode in splits and prefill in tiles. A step of single-token rows alone may be captured in a CUDA graph."""

    name = "triton"
    reads_beyond = False

    def prepare(self, rows: Sequence[Row], cache: KVCache) -> Metadata:
        """Tensors: slots [tokens] int64; contexts of the single-token rows, all rows' tables, the others' tiles, int32.

        Numbers: how many rows have a single token.
        """
        from fairlane.worker.attention.triton_kernels import TILE_FIELDS, cut_tiles, tile_tokens

        singles = sum(len(row.token_ids) == 1 for row in rows)
        contexts = array("i", [row.context_length for row in rows[:singles]])
        tiles = array("i", cut_tiles(rows[singles:], singles, tile_tokens(cache.dtype, cache.shape.head_dim)))
        return Metadata(
            [
                cache.slots(rows),
                upload(int32(contexts), cache.device),
                upload(_tables(rows, cache), cache.device),
                upload(int32(tiles).view(len(tiles) // TILE_FIELDS, TILE_FIELDS), cache.device),
            ],
            [singles],
        )

    def attend(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        kv: torch.Tensor,
        metadata: Metadata,
        scaling: float,
    ) -> torch.Tensor:
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
    """The kernels know such keys and values, and Triton and a GPU that is young enough are here."""
    return (
        device.type == "cuda"
        and shape.head_dim in HEAD_DIMS
        and shape.dtype in _DTYPES
        and find_spec("triton") is not None
        and torch.cuda.get_device_capability(device) >= _LEAST_CAPABILITY
    )


def _tables(rows: Sequence[Row], cache: KVCache) -> torch.Tensor:
    """[rows, blocks], int32. What follows a short one is never read."""
    widest = max([len(row.block_table) for row in rows])
    return torch.from_numpy(cache.tables.lines(rows, table_width(widest)))


def table_width(blocks: int) -> int:
    """The width of tables that hold so many blocks."""
    return -(-blocks // _TABLE_STEP) * _TABLE_STEP


@cache
def _multiprocessors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1
