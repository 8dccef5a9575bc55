"""Page-lock the host pool where it lies, so that a GPU copies from and to it without the processor.

Not by `pin_memory`, which makes a second pool and rounds its size up to a power of two. A driver may refuse one very
large registration, so it is made in chunks of whole blocks; a copy may not cross from one registration to the next.
"""

import math
import weakref
from typing import Protocol, cast

import torch

_CHUNK_BYTES = 2**30
_PAGE_BYTES = 4096
"""Registrations hold whole pages: two must not meet within one."""


class PageLockError(Exception):
    """The driver refuses; the message says how much it was asked for."""


class _Runtime(Protocol):
    def cudaHostRegister(self, address: int, size: int, flags: int) -> int:  # noqa: N802 - CUDA's name
        """Zero where it succeeds."""

    def cudaHostUnregister(self, address: int) -> int:  # noqa: N802
        """Zero where it succeeds."""


def blocks_per_chunk(block_bytes: int) -> int:
    """The number of blocks of one registration: whole pages, and up to `_CHUNK_BYTES` where that is possible."""
    unit = _PAGE_BYTES // math.gcd(block_bytes, _PAGE_BYTES)
    return max(1, _CHUNK_BYTES // (block_bytes * unit)) * unit


def page_lock(pool: torch.Tensor) -> None:
    """Register a pool [blocks, ...] for as long as the tensor lives. Raises PageLockError."""
    if pool.numel() == 0:
        return
    runtime = cast(_Runtime, torch.cuda.cudart())  # type: ignore[no-untyped-call]
    locked: list[int] = []
    weakref.finalize(pool, _release, runtime, locked).atexit = False  # the driver may be gone by then
    step = blocks_per_chunk(pool[0].nbytes)
    for start in range(0, len(pool), step):
        chunk = pool[start : start + step]
        if int(runtime.cudaHostRegister(chunk.data_ptr(), chunk.nbytes, 0)) != 0:
            raise PageLockError(f"the driver cannot lock {pool.nbytes / 2**20:.1f} MiB")
        locked.append(chunk.data_ptr())


def _release(runtime: _Runtime, locked: list[int]) -> None:
    for address in locked:
        runtime.cudaHostUnregister(address)
