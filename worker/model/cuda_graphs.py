"""Decode steps as CUDA graphs: a step of single-token rows alone is one launch for the whole forward pass.

A graph repeats what was captured: the same kernels on the same memory. So graphs are captured once for a few numbers of
rows (buckets), read their inputs from tensors that stay, and rows that only fill up a bucket have no context and write
nowhere. A step that fits no bucket is computed without graphs.
"""

import logging
import time
from bisect import bisect_left
from collections.abc import Callable, Sequence

import torch

from fairlane.worker.attention.backends import in_short
from fairlane.worker.attention.base import Metadata
from fairlane.worker.attention.triton import NOWHERE, TritonPaged, table_width
from fairlane.worker.engine.kv_cache import KVCache
from fairlane.worker.model.interface import Model, Output, Packed

Replay = Callable[[], Output]
"""Computes from what its input tensors hold when it is called; returns the same tensors each time."""
Capture = Callable[[Replay], Replay]
"""Captures a computation as a graph."""

_SMALLEST = (1, 2, 4)
_STEPS = ((64, 8), (256, 16), (1024, 64))
"""Up to so many rows, buckets are so far apart. A row that fills one up costs like a real one, but for attention."""
_WARM_UPS = 2

_log = logging.getLogger(__name__)


def bucket_sizes(max_sequences: int) -> list[int]:
    """The numbers of rows that graphs are captured for; the last holds `max_sequences`, if any can."""
    sizes = list(_SMALLEST)
    for limit, step in _STEPS:
        sizes += range(sizes[-1] // step * step + step, limit + 1, step)
    enough = bisect_left(sizes, max_sequences)
    return sizes[: enough + 1]


class DecodeGraphs:
    """A model on one cache whose decode steps are replayed graphs; other steps it leaves to the model."""

    def __init__(self, model: Model, cache: KVCache, capture: Capture, sizes: Sequence[int]) -> None:
        self.name = model.name
        self.vocab_size = model.vocab_size
        self.context_length = model.context_length
        self.shape = model.shape
        self.device = model.device
        self.backend = model.backend
        self._model = model
        self._cache = cache
        self._inputs = _Inputs(sizes[-1], table_width(-(-model.context_length // cache.block_size)), cache.device)
        self._graphs = {size: self._captured(size, capture) for size in reversed(sizes)}  # the smaller share its memory
        self._sizes = sizes

    def forward(self, packed: Packed, cache: KVCache) -> Output:
        rows = len(packed.token_ids)
        if cache is not self._cache or not _is_decode(packed) or rows > self._sizes[-1]:
            return self._model.forward(packed, cache)
        size = self._sizes[bisect_left(self._sizes, rows)]
        self._inputs.fill(packed, size)
        return Output(self._graphs[size]().logits[:rows])

    def _captured(self, size: int, capture: Capture) -> Replay:
        packed = self._inputs.packed(size)
        return capture(lambda: self._model.forward(packed, self._cache))


def with_graphs(model: Model, cache: KVCache, max_sequences: int) -> Model:
    """The model with its decode steps captured on this cache, or as it is where that cannot be; the log says why."""
    if cache.device.type != "cuda" or model.backend != TritonPaged.name:
        return model
    began = time.perf_counter()
    sizes, stream = bucket_sizes(max_sequences), torch.cuda.current_stream(cache.device)
    try:
        with torch.inference_mode(), torch.cuda.device(cache.device):
            graphs = DecodeGraphs(model, cache, capture_into_one_pool(), sizes)
    except Exception as error:  # noqa: BLE001 - out of memory, an operator that waits for the host, a compiler's refusal
        torch.cuda.set_stream(stream)  # a capture that fails leaves its own behind
        torch.cuda.synchronize(cache.device)
        _log.warning("decode steps are not captured, slower: %s", in_short(error))
        return model
    _log.info("captured decode steps of up to %d rows in %.1f s", sizes[-1], time.perf_counter() - began)
    return graphs


def capture_into_one_pool() -> Capture:
    """Captures whose graphs share memory: they never run at the same time."""
    pool = torch.cuda.graph_pool_handle()
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]

    def capture(compute: Replay) -> Replay:
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(_WARM_UPS):  # compiles kernels, and lets libraries allocate what they keep
                compute()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
            found = compute()

        def replay() -> Output:
            graph.replay()
            return found

        return replay

    return capture


def _is_decode(packed: Packed) -> bool:
    """Single-token rows alone, and all of them sample."""
    return packed.metadata.numbers[0] == len(packed.token_ids) == len(packed.logit_rows)


class _Inputs:
    """The tensors that all graphs read: each the first rows of them."""

    def __init__(self, rows: int, width: int, device: torch.device) -> None:
        self._token_ids = torch.zeros(rows, dtype=torch.int64, device=device)
        self._positions = torch.zeros(rows, dtype=torch.int64, device=device)
        self._every = torch.arange(rows, device=device)
        self._slots = torch.full((rows,), NOWHERE, dtype=torch.int64, device=device)
        self._contexts = torch.zeros(rows, dtype=torch.int32, device=device)
        self._tables = torch.zeros((rows, width), dtype=torch.int32, device=device)
        self._no_tiles = torch.empty((0, 4), dtype=torch.int32, device=device)

    def packed(self, size: int) -> Packed:
        """The inputs of the graph for `size` rows."""
        tensors = [self._slots[:size], self._contexts[:size], self._tables[:size], self._no_tiles]
        return Packed(self._token_ids[:size], self._positions[:size], self._every[:size], Metadata(tensors, [size]))

    def fill(self, packed: Packed, size: int) -> None:
        """Copy a step's rows in; rows that fill up `size` read and write nothing, and keep their last, valid tokens."""
        rows = len(packed.token_ids)
        slots, contexts, tables, _ = packed.metadata.tensors
        self._token_ids[:rows].copy_(packed.token_ids)
        self._positions[:rows].copy_(packed.positions)
        self._slots[:rows].copy_(slots)
        self._contexts[:rows].copy_(contexts)
        self._tables[:rows, : tables.shape[1]].copy_(tables)
        if rows < size:
            self._slots[rows:size].fill_(NOWHERE)
            self._contexts[rows:size].zero_()
