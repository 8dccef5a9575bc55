"""Copies between the device pool and the host pool: blocks in, blocks out, in as few pieces as possible."""

import time
from collections.abc import Iterable
from typing import NamedTuple, Protocol

import torch

from scheduler.steps import Copy
from worker.kv_cache import KVCache


class Run(NamedTuple):
    """Consecutive blocks that go to consecutive places: one copy."""

    source: int
    target: int
    blocks: int


def merge_runs(copies: Iterable[Copy]) -> list[Run]:
    """The same copies as few runs. Their order within a direction means nothing: no block appears twice."""
    runs: list[Run] = []
    for source, target in sorted(copies):
        last = runs[-1] if runs else None
        if last and source == last.source + last.blocks and target == last.target + last.blocks:
            runs[-1] = last._replace(blocks=last.blocks + 1)
        else:
            runs.append(Run(source, target, 1))
    return runs


class Transfer(Protocol):
    """Moves blocks before a step's rows run: first out, then in, so that an incoming block may take an outgoing one's
    place."""

    def start(self, swap_out: Iterable[Copy], swap_in: Iterable[Copy]) -> None:
        """Copy. When this returns, whatever the step then writes is ordered after the copies."""

    def finish_ms(self) -> float:
        """Wall time of the last step's copies, once its results have been read on the host."""


def transfer_for(cache: KVCache) -> Transfer:
    """The mover for the cache's device."""
    return CudaTransfer(cache) if cache.device.type == "cuda" else HostTransfer(cache)


class HostTransfer:
    """Both pools lie in the same memory: plain copies, done when `start` returns."""

    def __init__(self, cache: KVCache) -> None:
        self._cache = cache
        self._ms = 0.0

    def start(self, swap_out: Iterable[Copy], swap_in: Iterable[Copy]) -> None:
        """See `Transfer.start`."""
        began = time.perf_counter()
        _copy(self._cache.pool, self._cache.host_pool, swap_out)
        _copy(self._cache.host_pool, self._cache.pool, swap_in)
        self._ms = (time.perf_counter() - began) * 1e3

    def finish_ms(self) -> float:
        """See `Transfer.finish_ms`."""
        return self._ms


class CudaTransfer:
    """Copies on a stream of their own, ordered against the compute stream by events; the host never waits.

    compute:  … step k-1 ─┬───────────────────────── wait ─ step k
    copies:               └ wait ─ swap out ─ swap in ─┘
    """

    def __init__(self, cache: KVCache) -> None:
        self._cache = cache
        self._stream = torch.cuda.Stream(cache.device)  # type: ignore[no-untyped-call]
        self._began: torch.cuda.Event | None = None
        self._ended: torch.cuda.Event | None = None

    def start(self, swap_out: Iterable[Copy], swap_in: Iterable[Copy]) -> None:
        """See `Transfer.start`."""
        out, back = list(swap_out), list(swap_in)
        self._began = self._ended = None
        if not (out or back):
            return
        compute = torch.cuda.current_stream(self._cache.device)
        self._stream.wait_stream(compute)  # the blocks going out are what earlier steps wrote
        with torch.cuda.stream(self._stream):
            self._began = self._stream.record_event(_timed_event())
            _copy(self._cache.pool, self._cache.host_pool, out)
            _copy(self._cache.host_pool, self._cache.pool, back)
            self._ended = self._stream.record_event(_timed_event())
        compute.wait_event(self._ended)  # this step writes over what went out and reads what came in

    def finish_ms(self) -> float:
        """See `Transfer.finish_ms`. The step's own results came after the copies, so this does not wait."""
        if self._began is None or self._ended is None:
            return 0.0
        self._ended.synchronize()
        return float(self._began.elapsed_time(self._ended))


def _timed_event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def _copy(source: torch.Tensor, target: torch.Tensor, copies: Iterable[Copy]) -> None:
    for run in merge_runs(copies):
        end = run.target + run.blocks
        target[run.target : end].copy_(source[run.source : run.source + run.blocks], non_blocking=True)
