"""The CPU's backend: a small C++ kernel that reads the blocks where they lie, compiled at first use.

Torch's own attention needs the blocks gathered first, and takes two to ten times as long on the result. Without a
compiler there is no kernel, and `sdpa` serves.
"""

import ctypes
import logging
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import torch

from scheduler.steps import Row
from worker.attention.base import Metadata
from worker.attention.build import BuildError, load_library
from worker.kv_cache import KVCache, KVShape

HEAD_DIMS = {8, 16, 32, 64, 96, 128}
"""What the kernel is compiled for."""
_P, _N = ctypes.c_void_p, ctypes.c_int64
_SIGNATURE = (
    _P,
    _N,
    _P,
    _N,
    _P,
    _N,
    _P,
    _N,
    _N,
    _P,
    _P,
    _N,
    _P,
    _N,
    _P,
    _N,
    _N,
    _N,
    _N,
    _N,
    ctypes.c_float,
    ctypes.c_int,
)
_SOURCE = Path(__file__).with_name("cpu.cpp")

_log = logging.getLogger(__name__)


class CpuKernel:
    """As exact as `sdpa`: sums are float32, whatever the cache holds."""

    name = "cpu"

    def prepare(self, rows: Sequence[Row], cache: KVCache) -> Metadata:
        """Tensors: the tokens' slots, the rows' first token, tokens and first position, and their block tables."""
        widest = max(len(row.block_table) for row in rows)
        spans, start = [], 0
        for row in rows:
            spans.append((start, len(row.token_ids), row.first_position))
            start += len(row.token_ids)
        tables = [[*row.block_table, *[cache.blocks] * (widest - len(row.block_table))] for row in rows]
        return Metadata([cache.slots(rows), torch.tensor(spans), torch.tensor(tables)], [])

    def attend(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        kv: torch.Tensor,
        metadata: Metadata,
        scaling: float,
    ) -> torch.Tensor:
        """See `AttentionBackend.attend`."""
        slots, rows, tables = metadata.tensors
        tokens, heads, head_dim = query.shape
        for states in (query, key, value):
            if states.stride()[1:] != (head_dim, 1):
                raise RuntimeError("heads must lie one after another")
        out = torch.empty(query.shape, dtype=query.dtype)
        # fmt: off
        unknown = _kernels()[query.dtype](
            query.data_ptr(), query.stride(0), key.data_ptr(), key.stride(0), value.data_ptr(), value.stride(0),
            kv.data_ptr(), kv.stride(0), kv.stride(1), out.data_ptr(), slots.data_ptr(), tokens,
            rows.data_ptr(), len(rows), tables.data_ptr(), tables.shape[1], kv.shape[2], heads, key.shape[1], head_dim,
            scaling, torch.get_num_threads(),
        )
        # fmt: on
        if unknown:
            raise RuntimeError(f"the attention kernel knows no head size of {head_dim}")
        return out


def serves(shape: KVShape, device: torch.device) -> bool:
    """The kernel knows such keys and values, and could be compiled here."""
    known = shape.head_dim in HEAD_DIMS and shape.dtype in (torch.float32, torch.bfloat16)
    return known and device.type == "cpu" and is_compiled()


@cache
def is_compiled() -> bool:
    """Compile and load the kernel, or find it compiled."""
    try:
        _kernels()
    except BuildError as error:
        _log.warning("attention is torch's own, slower: the kernel could not be compiled (%s)", error)
        return False
    return True


@cache
def _kernels() -> dict[torch.dtype, Callable[..., int]]:
    library = load_library(_SOURCE)
    found: dict[torch.dtype, Callable[..., int]] = {}
    for dtype, kernel in ((torch.float32, library.attend_float32), (torch.bfloat16, library.attend_bfloat16)):
        kernel.argtypes = _SIGNATURE
        found[dtype] = kernel
    return found
