"""The attention backends by name, and which of them serve here: each must compute what the reference computes.

Some fail only where they run: at compiling, at a block size, or silently, by rows left unwritten. So each is tried on
this device, over rows like those of real steps, before it may serve.
"""

import logging
from collections.abc import Callable, Iterator

import torch

from fairlane.scheduler.planner.steps import Row, SeqId
from fairlane.worker.attention import cpu
from fairlane.worker.attention import triton as triton_paged
from fairlane.worker.attention.base import AttentionBackend, Metadata
from fairlane.worker.attention.cpu import CpuKernel
from fairlane.worker.attention.gather import SdpaGather
from fairlane.worker.attention.triton import TritonPaged
from fairlane.worker.engine.kv_cache import KVCache, KVShape

REFERENCE = "sdpa"
BACKENDS: dict[str, AttentionBackend] = {
    backend.name: backend for backend in (SdpaGather(), CpuKernel(), TritonPaged())
}
_SERVES: dict[str, Callable[[KVShape, torch.device], bool]] = {
    CpuKernel.name: cpu.serves,
    TritonPaged.name: triton_paged.serves,
}
"""The fastest first."""

_BLOCK_SIZE = 16
_BLOCKS = 80
_ROWS = ((0, 1), (16, 1), (30, 1), (700, 1), (0, 40), (37, 5), (250, 20))
"""Each row's first position and tokens: contexts of one token, of many splits, and chunks amid a block."""
_GROUP = 2
"""Query heads of each key head."""
_RUBBISH = 1e3
"""What earlier owners left in a row's last block: finite, and without weight."""
_SCALING = 0.2
_TOLERANCE = {torch.float32: 1e-4}
_COARSE_TOLERANCE = 0.02
"""Relative to the largest output; rounding to 16 bits stays well below."""
_REASON_LETTERS = 200

_log = logging.getLogger(__name__)


def fastest_backends(shape: KVShape, device: torch.device) -> Iterator[str]:
    """Names of the backends that serve such keys and values here, the fastest first, the reference last.

    Each is proven when it is asked for: what is never asked for need not be compiled.
    """
    for name, serves in _SERVES.items():
        if serves(shape, device) and _agrees(name, shape, device):
            yield name
    yield REFERENCE


def _agrees(name: str, shape: KVShape, device: torch.device) -> bool:
    reason = disagreement(BACKENDS[name], BACKENDS[REFERENCE], shape, device)
    if reason is not None:
        _log.warning("%s attention is not used: %s", name, reason)
    return reason is None


@torch.inference_mode()
def disagreement(
    backend: AttentionBackend, reference: AttentionBackend, shape: KVShape, device: torch.device
) -> str | None:
    """How `backend` differs from `reference` by more than rounding, or fails; None where they agree."""
    try:
        found = _attend(backend, shape, device, rubbish=float("nan"))
    except Exception as error:  # noqa: BLE001 - it may compile, and a compiler may fail in any way; others serve then
        return f"it fails: {in_short(error)}"
    expected = _attend(reference, shape, device, rubbish=0.0)
    apart = float((found - expected).abs().max() / expected.abs().max())
    limit = _TOLERANCE.get(shape.dtype, _COARSE_TOLERANCE)
    return None if apart <= limit else f"it differs by {apart:.2g} of the largest output, more than {limit:.2g}"


def in_short(error: Exception) -> str:
    """What failed, in part of a line: a compiler may write pages."""
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0][:_REASON_LETTERS]}"


def _attend(backend: AttentionBackend, shape: KVShape, device: torch.device, *, rubbish: float) -> torch.Tensor:
    """The outputs of all rows over a pool whose other blocks hold `rubbish`: [tokens, heads, head_dim], float32."""
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
    """Their blocks are taken from the end of the pool, so that none stands where its number would suggest."""
    free = list(range(_BLOCKS))
    for number, (first, tokens) in enumerate(_ROWS):
        table = tuple(free.pop() for _ in range(-(-(first + tokens) // _BLOCK_SIZE)))
        yield Row(SeqId(str(number), 0), (0,) * tokens, first, table, samples=False, output_index=0)


@torch.library.custom_op("fairlane::paged_attention", mutates_args=("kv",))
def paged_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    kv: torch.Tensor,
    tensors: list[torch.Tensor],
    numbers: list[int],
    scaling: float,
    backend: str,
) -> torch.Tensor:
    """`AttentionBackend.attend` of the named backend; the shapes are written there."""
    return BACKENDS[backend].attend(query, key, value, kv, Metadata(tensors, numbers), scaling)


@paged_attention.register_fake
def _(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    kv: torch.Tensor,
    tensors: list[torch.Tensor],
    numbers: list[int],
    scaling: float,
    backend: str,
) -> torch.Tensor:
    return query.new_empty(query.shape)
