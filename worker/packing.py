"""A step's rows as the model takes them: one after another, in tensors on its device.

Where a forward pass leaves the host idle the next step's rows are laid out meanwhile, before their tokens are known.
"""

import sys
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from scheduler.steps import Row
from worker.attention import BACKENDS
from worker.kv_cache import KVCache
from worker.model import Packed
from worker.upload import upload


def packing_order(row: Row) -> int:
    """Sorts rows as `AttentionBackend.prepare` wants them: those of one token first, in growing number of blocks."""
    return len(row.block_table) if len(row.token_ids) == 1 else sys.maxsize


def pack(rows: Sequence[Row], cache: KVCache, backend: str) -> Packed:
    """Lay out rows that are in packing order."""
    spans = cache.spans(rows)
    arrays = spans.tokens[0], spans.tokens[1], spans.ends
    token_ids, positions, logit_rows = [upload(torch.from_numpy(array), cache.device) for array in arrays]
    return Packed(token_ids, positions, logit_rows, BACKENDS[backend].prepare(rows, cache))


class Packer:
    """Packs rows, those that were made ready in no time."""

    def __init__(self, cache: KVCache, backend: str) -> None:
        self._cache = cache
        self._backend = backend
        self._ready: tuple[list[tuple[object, ...]], Packed] | None = None

    def make_ready(self, rows: Sequence[Row]) -> None:
        """Lay out what the next `pack` may be asked for: rows of one token each, whichever it will be."""
        ordered = sorted(rows, key=packing_order)
        self._ready = ([*map(_place, ordered)], pack(ordered, self._cache, self._backend)) if ordered else None

    def pack(self, rows: Sequence[Row]) -> Packed:
        """Lay out rows that are in packing order."""
        ready, self._ready = self._ready, None
        if ready is None or ready[0] != [*map(_place, rows)]:
            return pack(rows, self._cache, self._backend)
        token_ids = torch.from_numpy(np.array([row.token_ids[0] for row in rows], np.int64))
        return replace(ready[1], token_ids=upload(token_ids, self._cache.device))


def _place(row: Row) -> tuple[object, ...]:
    """All that a row's layout depends on; not what its tokens are."""
    return (row.seq, len(row.token_ids), row.first_position, row.block_table, row.samples)
