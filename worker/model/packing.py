"""Packs a step's rows into the tensors that a model takes."""

import sys
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from fairlane.scheduler.planner.steps import Row
from fairlane.worker.attention.backends import BACKENDS
from fairlane.worker.kv.cache import KVCache
from fairlane.worker.kv.row_layout import upload
from fairlane.worker.model.interface import Packed


def packing_order(row: Row) -> int:
    """Sort key for the order that `AttentionBackend.prepare` needs: rows of one token first, by number of blocks."""
    return len(row.block_table) if len(row.token_ids) == 1 else sys.maxsize


def pack(rows: Sequence[Row], cache: KVCache, backend: str) -> Packed:
    """Lay out rows that are in packing order."""
    layout = cache.row_layout(rows)
    arrays = layout.tokens[0], layout.tokens[1], layout.ends
    token_ids, positions, logit_rows = [upload(torch.from_numpy(array), cache.device) for array in arrays]
    return Packed(token_ids, positions, logit_rows, BACKENDS[backend].prepare(rows, cache))


class Packer:
    """Packs rows. Rows that were packed ahead only receive their tokens."""

    def __init__(self, cache: KVCache, backend: str) -> None:
        self._cache = cache
        self._backend = backend
        self._ready: tuple[list[tuple[object, ...]], Packed] | None = None

    def pack_ahead(self, rows: Sequence[Row]) -> None:
        ordered = sorted(rows, key=packing_order)
        self._ready = ([*map(_layout_key, ordered)], pack(ordered, self._cache, self._backend)) if ordered else None

    def pack(self, rows: Sequence[Row]) -> Packed:
        ready, self._ready = self._ready, None
        if ready is None or ready[0] != [*map(_layout_key, rows)]:
            return pack(rows, self._cache, self._backend)
        token_ids = torch.from_numpy(np.array([row.token_ids[0] for row in rows], np.int64))
        return replace(ready[1], token_ids=upload(token_ids, self._cache.device))


def _layout_key(row: Row) -> tuple[object, ...]:
    return (row.seq, len(row.token_ids), row.first_position, row.block_table, row.samples)
