"""The paged KV cache: a pool of blocks on the device, and one of the same blocks in host memory.

`pool[block, layer, key or value, slot, kv_head, channel]`: a block is contiguous over all layers, so a swap is a few
large copies. The pool's last block has no owner, stays zero, and pads block tables."""

import math
import mmap
import sys
import weakref
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch

from fairlane.scheduler.planner.steps import Row
from fairlane.worker.errors import EngineError
from fairlane.worker.kv.row_layout import BlockTables, RowLayout, upload

_CHUNK_BYTES = 2**30
# A registration covers whole pages; two must not share one.
_PAGE_BYTES = 4096
# Share of the free memory for a device pool without a configured size; the rest is left for the host pool or
# activations.
_DEVICE_SHARE = {"cpu": 0.35, "cuda": 0.9}
_HOST_SHARE = 0.15
# Python's anonymous memory is shared by default, and shared memory has no huge pages.
_PRIVATE = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_ANONYMOUS") else {}
# Maximum size of the host pool, in device pools; a larger one would never be full.
_HOST_REPEATS = 4


class KVMemoryError(EngineError):
    """The pools cannot be as large as configured; the message names the setting in one line."""


def blocks_per_chunk(block_bytes: int) -> int:
    """Return the blocks per registration: whole pages, and up to `_CHUNK_BYTES` if possible."""
    unit = _PAGE_BYTES // math.gcd(block_bytes, _PAGE_BYTES)
    return max(1, _CHUNK_BYTES // (block_bytes * unit)) * unit


def pin(pool: torch.Tensor) -> None:
    """Pin a pool [blocks, ...] for the lifetime of the tensor. Raises KVMemoryError.

    `pin_memory` would allocate a second pool. The driver may refuse one very large registration, hence the chunks."""
    if pool.numel() == 0:
        return
    runtime: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    pinned: list[int] = []
    weakref.finalize(pool, _release, runtime, pinned).atexit = False  # the driver may be unloaded at exit
    step = blocks_per_chunk(pool[0].nbytes)
    for start in range(0, len(pool), step):
        chunk = pool[start : start + step]
        if int(runtime.cudaHostRegister(chunk.data_ptr(), chunk.nbytes, 0)) != 0:
            raise KVMemoryError(f"host_kv_memory: the driver cannot lock {pool.nbytes / 2**20:.1f} MiB")
        pinned.append(chunk.data_ptr())


def _release(runtime: Any, pinned: list[int]) -> None:  # noqa: ANN401 - the driver's untyped module
    for address in pinned:
        runtime.cudaHostUnregister(address)


@dataclass(frozen=True, slots=True)
class KVShape:
    """The shape of one token's keys and values."""

    layers: int
    kv_heads: int
    head_dim: int
    dtype: torch.dtype

    def block_bytes(self, block_size: int) -> int:
        return 2 * self.layers * block_size * self.kv_heads * self.head_dim * self.dtype.itemsize


def size_pools(
    block_bytes: int, *, device: torch.device, kv_bytes: int | None, host_bytes: int | None, most_blocks: int
) -> tuple[int, int]:
    """Return the numbers of blocks and of host slots, from the configured sizes or, where None, from the free memory.

    `most_blocks` bounds a pool sized from free memory. Raises KVMemoryError if a configured size is not free."""
    free_device, free_host = free_bytes(device)
    blocks = _blocks("kv_memory", kv_bytes, free_device, block_bytes, _DEVICE_SHARE[device.type], most_blocks)
    if device.type == "cpu":
        free_host -= blocks * block_bytes
    host_most = min(most_blocks, _HOST_REPEATS * blocks)
    if host_bytes == 0:
        return blocks, 0
    return blocks, _blocks("host_kv_memory", host_bytes, free_host, block_bytes, _HOST_SHARE, host_most)


def free_bytes(device: torch.device) -> tuple[int, int]:
    """Return the free memory of the device and of the host, in bytes; on a CPU both are the same memory."""
    host = min(int(psutil.virtual_memory().available), container_free_bytes())
    return (int(torch.cuda.mem_get_info(device)[0]) if device.type == "cuda" else host), host


def container_free_bytes(group: Path = Path("/sys/fs/cgroup")) -> int:
    """Return the unused part of the container's memory limit (cgroup v2, then v1); `sys.maxsize` without a limit."""
    for limit, used in (
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ):
        try:
            return max(0, int((group / limit).read_text()) - int((group / used).read_text()))
        except (OSError, ValueError):  # the file is missing, or contains "max"
            continue
    return sys.maxsize


def _blocks(setting: str, asked: int | None, free: int, block_bytes: int, share: float, most: int) -> int:
    if asked is None:
        blocks = min(int(free * share) // block_bytes, most)
        if blocks < 1:
            raise KVMemoryError(f"{setting}: {_mib(free)} free are too few for one block of {_mib(block_bytes)}")
        return blocks
    if asked > free:
        raise KVMemoryError(f"{setting}: {_mib(asked)} asked for, {_mib(free)} free")
    if asked < block_bytes:
        raise KVMemoryError(f"{setting}: {_mib(asked)} hold no block; one takes {_mib(block_bytes)}")
    return asked // block_bytes


def _mib(size: int) -> str:
    return f"{size / 2**20:.1f} MiB"


class KVCache:
    """Both pools' memory, and the location of each row's tokens in it. The planner tracks who owns which blocks."""

    def __init__(
        self, shape: KVShape, *, blocks: int, host_slots: int, block_size: int, device: torch.device | str = "cpu"
    ) -> None:
        block = (shape.layers, 2, block_size, shape.kv_heads, shape.head_dim)
        self.shape = shape
        self.block_size = block_size
        self.blocks = blocks
        self.host_slots = host_slots
        self.device = torch.device(device)
        self.dtype = shape.dtype
        self.pool = zeros((blocks + 1, *block), shape.dtype, self.device)
        self.layers = self.pool.unbind(1)  # views: [blocks + 1, 2, block_size, kv_heads, head_dim] each
        self.tables = BlockTables()
        self._row_layout: tuple[Sequence[Row], RowLayout] | None = None
        self.host_pool = zeros((host_slots, *block), shape.dtype, torch.device("cpu"))
        if self.device.type == "cuda":
            pin(self.host_pool)

    def row_layout(self, rows: Sequence[Row]) -> RowLayout:
        if self._row_layout is None or self._row_layout[0] is not rows:
            self._row_layout = rows, RowLayout(rows, self.block_size, self._block_pages * self.block_size)
        return self._row_layout[1]

    def slots(self, rows: Sequence[Row]) -> torch.Tensor:
        """Return the line of a layer's memory for the key of each packed token: [tokens], int64."""
        return upload(torch.from_numpy(self.row_layout(rows).tokens[2]), self.device)

    def pages(self, rows: Sequence[Row]) -> torch.Tensor:
        """Return the key pages of each row's blocks in a layer's memory, padded with the zero block: [rows, widest]."""
        layout = self.row_layout(rows)
        widths = layout.widths
        table = np.full((len(rows), widths.max()), self.blocks, dtype=np.int64)
        table[np.arange(table.shape[1]) < widths[:, None]] = layout.blocks
        return upload(torch.from_numpy(table * self._block_pages), self.device)

    def clear_entered(self, rows: Iterable[Row]) -> None:
        """Zero the blocks that these rows write for the first time in their sequence.

        An earlier owner's contents are masked, but a masked NaN is still NaN, and would fail the new owner."""
        entered = [block for row in rows for block in row.block_table[-(-row.first_position // self.block_size) :]]
        if entered:
            self.pool.index_fill_(0, upload(torch.tensor(entered, dtype=torch.int64), self.device), 0.0)

    @property
    def _block_pages(self) -> int:
        return 2 * self.shape.layers


def zeros(size: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Return zeros; on a CPU from anonymous memory, which takes no physical memory before it is used."""
    count = math.prod(size)
    if device.type != "cpu" or count == 0:
        return torch.zeros(size, dtype=dtype, device=device)
    memory = mmap.mmap(-1, count * dtype.itemsize, **_PRIVATE)
    if hasattr(mmap, "MADV_HUGEPAGE"):  # blocks are scattered: small pages cost a TLB miss for nearly every one
        with suppress(OSError):  # a kernel without huge pages
            memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=dtype).view(size)
