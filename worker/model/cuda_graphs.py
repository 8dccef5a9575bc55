"""Decode steps as CUDA graphs: a step of only single-token rows is one launch for the whole forward pass.

Graphs are captured for a few numbers of rows (buckets), and read their inputs from fixed tensors. Rows that pad a
bucket have no context and write nowhere."""

import logging
import time
from bisect import bisect_left
from collections.abc import Callable, Sequence

import torch

from fairlane.worker.attention.backends import in_short
from fairlane.worker.attention.base import Metadata
from fairlane.worker.attention.triton import NOWHERE, TritonPaged, table_width
from fairlane.worker.kv.cache import KVCache
from fairlane.worker.model.interface import Model, Output, Packed

# Computes from the current contents of its input tensors; returns the same tensors each time.
Replay = Callable[[], Output]
Capture = Callable[[Replay], Replay]

_SMALLEST = (1, 2, 4)
# Pairs of a maximum number of rows and the distance of buckets up to it.
_STEPS = ((64, 8), (256, 16), (1024, 64))
_WARM_UPS = 2

_log = logging.getLogger(__name__)


def bucket_sizes(max_sequences: int) -> list[int]:
    """Return the numbers of rows to capture graphs for; the last holds `max_sequences`, if any can."""
    sizes = list(_SMALLEST)
    for limit, step in _STEPS:
        sizes += range(sizes[-1] // step * step + step, limit + 1, step)
    enough = bisect_left(sizes, max_sequences)
    return sizes[: enough + 1]


class DecodeGraphs:
    """A model on one cache that replays graphs for decode steps; it delegates other steps to the model."""

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
        self._graphs = {
            size: self._captured(size, capture) for size in reversed(sizes)
        }  # smaller graphs reuse the largest one's memory
        self._sizes = sizes

    def forward(self, packed: Packed, cache: KVCache) -> Output:
        rows = len(packed.token_ids)
        is_decode = packed.metadata.numbers[0] == len(packed.token_ids) == len(packed.logit_rows)
        if cache is not self._cache or not is_decode or rows > self._sizes[-1]:
            return self._model.forward(packed, cache)
        size = self._sizes[bisect_left(self._sizes, rows)]
        self._inputs.fill(packed, size)
        return Output(self._graphs[size]().logits[:rows])

    def _captured(self, size: int, capture: Capture) -> Replay:
        packed = self._inputs.packed(size)
        return capture(lambda: self._model.forward(packed, self._cache))


def with_graphs(model: Model, cache: KVCache, max_sequences: int) -> Model:
    """Return the model with its decode steps captured on this cache, or unchanged, with a warning, if that fails."""
    if cache.device.type != "cuda" or model.backend != TritonPaged.name:
        return model
    began = time.perf_counter()
    sizes, stream = bucket_sizes(max_sequences), torch.cuda.current_stream(cache.device)
    try:
        with torch.inference_mode(), torch.cuda.device(cache.device):
            graphs = DecodeGraphs(model, cache, capture_into_one_pool(), sizes)
    except Exception as error:  # noqa: BLE001 - out of memory, an operator that synchronises, a compiler error
        torch.cuda.set_stream(stream)  # a failed capture leaves its own stream current
        torch.cuda.synchronize(cache.device)
        _log.warning("decode steps are not captured, and run slower: %s", in_short(error))
        return model
    _log.info("captured decode steps of up to %d rows in %.1f s", sizes[-1], time.perf_counter() - began)
    return graphs


def capture_into_one_pool() -> Capture:
    """Return a `Capture` whose graphs share memory, since they never run at the same time."""
    pool = torch.cuda.graph_pool_handle()
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]

    def capture(compute: Replay) -> Replay:
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(_WARM_UPS):  # compiles kernels, and lets libraries allocate workspaces
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


class _Inputs:
    def __init__(self, rows: int, width: int, device: torch.device) -> None:
        self._token_ids = torch.zeros(rows, dtype=torch.int64, device=device)
        self._positions = torch.zeros(rows, dtype=torch.int64, device=device)
        self._every = torch.arange(rows, device=device)
        self._slots = torch.full((rows,), NOWHERE, dtype=torch.int64, device=device)
        self._contexts = torch.zeros(rows, dtype=torch.int32, device=device)
        self._tables = torch.zeros((rows, width), dtype=torch.int32, device=device)
        self._no_tiles = torch.empty((0, 4), dtype=torch.int32, device=device)

    def packed(self, size: int) -> Packed:
        tensors = [self._slots[:size], self._contexts[:size], self._tables[:size], self._no_tiles]
        return Packed(self._token_ids[:size], self._positions[:size], self._every[:size], Metadata(tensors, [size]))

    def fill(self, packed: Packed, size: int) -> None:
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
