"""The attention backends by name, and the selection of those that agree with the reference on this machine.

Some fail only at run time: at compilation, at a certain block size, or by leaving rows unwritten."""

import logging
from collections.abc import Callable, Iterator

import torch

from fairlane.scheduler.planner.steps import Row, SeqId
from fairlane.worker.attention import cpu
from fairlane.worker.attention import triton as triton_paged
from fairlane.worker.attention.base import AttentionBackend
from fairlane.worker.attention.cpu import CpuKernel
from fairlane.worker.attention.gather import SdpaGather
from fairlane.worker.attention.triton import TritonPaged
from fairlane.worker.kv.cache import KVCache, KVShape

REFERENCE = "sdpa"
BACKENDS: dict[str, AttentionBackend] = {
    backend.name: backend for backend in (SdpaGather(), CpuKernel(), TritonPaged())
}
_SERVES: dict[str, Callable[[KVShape, torch.device], bool]] = {
    CpuKernel.name: cpu.serves,
    TritonPaged.name: triton_paged.serves,
}

_BLOCK_SIZE = 16
_BLOCKS = 80
# Each row's first position and tokens: contexts of one token, contexts of many splits, and chunks within a block.
_ROWS = ((0, 1), (16, 1), (30, 1), (700, 1), (0, 40), (37, 5), (250, 20))
_GROUP = 2
# Contents that earlier owners left in a row's last block: finite, but masked.
_RUBBISH = 1e3
_SCALING = 0.2
_TOLERANCE = {torch.float32: 1e-4}
# Relative to the largest output; rounding to 16 bits stays well below.
_COARSE_TOLERANCE = 0.02
_REASON_LETTERS = 200

_log = logging.getLogger(__name__)


def fastest_backends(shape: KVShape, device: torch.device) -> Iterator[str]:
    """Yield the names of the backends that support this shape and pass the check, fastest first, the reference last."""
    for name, serves in _SERVES.items():
        if serves(shape, device):
            reason = disagreement(BACKENDS[name], BACKENDS[REFERENCE], shape, device)
            if reason is None:
                yield name
            else:
                _log.warning("%s attention is not used: %s", name, reason)
    yield REFERENCE


@torch.inference_mode()
def disagreement(
    backend: AttentionBackend, reference: AttentionBackend, shape: KVShape, device: torch.device
) -> str | None:
    """Describe how `backend` fails or differs from `reference` by more than rounding; None if they agree."""
    try:
        found = _attend(backend, shape, device, rubbish=float("nan"))
    except Exception as error:  # noqa: BLE001 - it may compile, and a compiler may raise anything; another backend is used then
        return f"it fails: {in_short(error)}"
    expected = _attend(reference, shape, device, rubbish=0.0)
    apart = float((found - expected).abs().max() / expected.abs().max())
    limit = _TOLERANCE.get(shape.dtype, _COARSE_TOLERANCE)
    return None if apart <= limit else f"it differs by {apart:.2g} of the largest output, more than {limit:.2g}"


def in_short(error: Exception) -> str:
    """Return the error's type and first line, shortened: a compiler may write pages."""
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0][:_REASON_LETTERS]}"


def _attend(backend: AttentionBackend, shape: KVShape, device: torch.device, *, rubbish: float) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    small = KVShape(2, shape.kv_heads, shape.head_dim, shape.dtype)
    cache = KVCache(small, blocks=_BLOCKS, host_slots=0, block_size=_BLOCK_SIZE, device=device)
    rows = list(_rows())
    owned = [block for row in rows for block in row.block_table]
    cache.pool.fill_(rubbish)
    cache.pool[owned] = torch.randn(len(owned), *cache.pool.shape[1:], generator=generator).to(cache.pool)
    for row in rows:
        if left := row.context_length % _BLOCK_SIZE:
            cache.pool[row.block_table[-1], :, :, left:] = _RUBBISH
    tokens = sum(tokens for _, tokens in _ROWS)
    query = torch.randn(tokens, _GROUP * shape.kv_heads, shape.head_dim, generator=generator).to(cache.pool)
    key, value = torch.randn(2, tokens, shape.kv_heads, shape.head_dim, generator=generator).to(cache.pool)
    metadata = backend.prepare(rows, cache)
    return backend.attend(query, key, value, cache.layers[1], metadata, _SCALING).float()


def _rows() -> Iterator[Row]:
    # Blocks are taken from the end of the pool, so that no block's number equals its index.
    free = list(range(_BLOCKS))
    for number, (first, tokens) in enumerate(_ROWS):
        table = tuple(free.pop() for _ in range(-(-(first + tokens) // _BLOCK_SIZE)))
        yield Row(SeqId(str(number), 0), (0,) * tokens, first, table, samples=False, output_index=0)
