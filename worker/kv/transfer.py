"""Swaps: copies of blocks between the device pool and the host pool, in as few copies as possible."""

import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch

from fairlane.scheduler.planner.steps import Copy
from fairlane.worker.kv.cache import KVCache, blocks_per_chunk
from fairlane.worker.kv.row_layout import upload

# Size of each half of the staging area. A step that swaps out more than both halves hold waits for the host link.
_STAGING_BYTES = 512 * 2**20
# Maximum share of the device pool for one half.
_STAGING_SHARE = 1 / 16
_ANYWHERE = sys.maxsize

Bytes = npt.NDArray[np.uint8]


class CopyRun(NamedTuple):
    """Consecutive blocks with consecutive targets, copied at once."""

    source: int
    target: int
    blocks: int


def merge_runs(
    copies: Iterable[Copy], *, source_chunk: int = _ANYWHERE, target_chunk: int = _ANYWHERE
) -> list[CopyRun]:
    """Merge copies, whose order does not matter, into few runs, none of which crosses a multiple of a chunk."""
    runs: list[CopyRun] = []
    for source, target in sorted(copies):
        last = runs[-1] if runs else None
        follows = last and source == last.source + last.blocks and target == last.target + last.blocks
        if last and follows and source % source_chunk and target % target_chunk:
            runs[-1] = last._replace(blocks=last.blocks + 1)
        else:
            runs.append(CopyRun(source, target, 1))
    return runs


def staging_blocks(blocks: int, block_bytes: int) -> int:
    """Return the number of blocks in each half of the staging area, for a pool of `blocks`."""
    return max(1, min(_STAGING_BYTES // block_bytes, int(blocks * _STAGING_SHARE)))


class Transfer(Protocol):
    """Moves blocks before a step runs: first out, then in, so that an incoming block may replace an outgoing one."""

    def start(self, swap_out: Iterable[Copy], swap_in: Iterable[Copy]) -> None:
        """Start the copies. Whatever the step writes afterwards is ordered after them."""

    def finish_ms(self) -> float:
        """Return the time by which the last step's copies delayed its rows; 0.0 if not known yet."""


def transfer_for(cache: KVCache) -> Transfer:
    """Return the `Transfer` for the cache's device."""
    return CudaTransfer(cache) if cache.device.type == "cuda" else HostTransfer(cache)


class HostTransfer:
    """Copies within host memory, by the calling thread, because torch's copies would wait for threads on cores that may
    be busy."""

    def __init__(self, cache: KVCache) -> None:
        self._pool, self._host_pool = _lines(cache.pool), _lines(cache.host_pool)
        self._ms = 0.0

    def start(self, swap_out: Iterable[Copy], swap_in: Iterable[Copy]) -> None:
        began = time.perf_counter()
        _move(self._pool, self._host_pool, merge_runs(swap_out))
        _move(self._host_pool, self._pool, merge_runs(swap_in))
        self._ms = (time.perf_counter() - began) * 1e3

    def finish_ms(self) -> float:
        return self._ms


class CudaTransfer:
    """Copies on two separate streams, synchronised with the compute stream by events; the host never waits.

        compute:  … step k-1 ─ gather ┬───────────── wait ─ step k
        out:                          ├ staged blocks to the host ─ …
        in:                           └ blocks from the host ┘

    Outgoing blocks are first gathered into a staging area, at the speed of device memory, so that step k may overwrite
    them at once. The copy to the host takes a hundred times as long, and delays only other swaps."""

    def __init__(self, cache: KVCache) -> None:
        self._cache = cache
        block_bytes = cache.shape.block_bytes(cache.block_size)
        self._chunk = blocks_per_chunk(block_bytes)
        size = staging_blocks(cache.blocks, block_bytes) if cache.host_slots else 0
        self._halves = [_Half(cache.pool.new_empty((size, *cache.pool.shape[1:]))) for _ in range(2)]
        self._out = torch.cuda.Stream(cache.device)  # type: ignore[no-untyped-call]
        self._in = torch.cuda.Stream(cache.device)  # type: ignore[no-untyped-call]
        self._began: torch.cuda.Event | None = None
        self._ended: torch.cuda.Event | None = None

    def start(self, swap_out: Iterable[Copy], swap_in: Iterable[Copy]) -> None:
        out, back = sorted(swap_out, key=lambda copy: copy.target), list(swap_in)
        self._began = self._ended = None
        if not (out or back):
            return
        compute = torch.cuda.current_stream(self._cache.device)
        self._began = compute.record_event(_timed_event())
        for piece in _pieces(out, len(self._halves[0].blocks)):
            self._send(piece, compute)
        if back:
            self._fetch(back, compute)
        self._ended = compute.record_event(_timed_event())

    def finish_ms(self) -> float:
        if self._began is None or self._ended is None or not self._ended.query():  # type: ignore[no-untyped-call]
            return 0.0
        return float(self._began.elapsed_time(self._ended))

    def _send(self, piece: Sequence[Copy], compute: torch.cuda.Stream) -> None:
        # Gather blocks in the order of their host slots, so that adjacent slots need one copy.
        half = self._halves[0]
        self._halves.reverse()
        compute.wait_event(half.left)
        blocks = upload(torch.tensor([copy.source for copy in piece], dtype=torch.int64), self._cache.device)
        torch.index_select(_words(self._cache.pool), 0, blocks, out=_words(half.blocks[: len(piece)]))
        self._out.wait_stream(compute)
        with torch.cuda.stream(self._out):
            staged = (Copy(place, copy.target) for place, copy in enumerate(piece))
            _copy(half.blocks, self._cache.host_pool, merge_runs(staged, target_chunk=self._chunk))
            half.left.record(self._out)

    def _fetch(self, back: Sequence[Copy], compute: torch.cuda.Stream) -> None:
        self._in.wait_stream(compute)
        self._in.wait_stream(self._out)  # an incoming block may still be on its way out
        with torch.cuda.stream(self._in):
            _copy(self._cache.host_pool, self._cache.pool, merge_runs(back, source_chunk=self._chunk))
        compute.wait_stream(self._in)


class _Half:
    # Half of the staging area: while one is filled, the other is copied to the host.
    def __init__(self, blocks: torch.Tensor) -> None:
        self.blocks = blocks
        # Recorded when its contents have reached the host pool.
        self.left = torch.cuda.Event()  # type: ignore[no-untyped-call]


def _pieces(copies: Sequence[Copy], most: int) -> Iterator[Sequence[Copy]]:
    return (copies[start : start + most] for start in range(0, len(copies), most))


def _words(blocks: torch.Tensor) -> torch.Tensor:
    # Words of 8 bytes copy faster than single numbers.
    return blocks.flatten(1).view(torch.int64)


def _lines(pool: torch.Tensor) -> Bytes:
    return pool.flatten(1).view(torch.uint8).numpy()


def _move(source: Bytes, target: Bytes, runs: Iterable[CopyRun]) -> None:
    for run in runs:
        end = run.target + run.blocks
        np.copyto(target[run.target : end], source[run.source : run.source + run.blocks])


def _timed_event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def _copy(source: torch.Tensor, target: torch.Tensor, runs: Iterable[CopyRun]) -> None:
    for run in runs:
        end = run.target + run.blocks
        target[run.target : end].copy_(source[run.source : run.source + run.blocks], non_blocking=True)
