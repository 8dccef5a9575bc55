"""Attention over the paged cache, as one custom operator for every backend.

Write-and-attend is a single node: `torch.compile` would otherwise turn the write into a copy of the whole cache.
"""

import logging
from collections.abc import Callable, Iterator

import torch

from fairlane.worker.attention import cpu, probe
from fairlane.worker.attention import triton as triton_paged
from fairlane.worker.attention.base import AttentionBackend, Metadata
from fairlane.worker.attention.cpu import CpuKernel
from fairlane.worker.attention.gather import SdpaGather
from fairlane.worker.attention.triton import TritonPaged
from fairlane.worker.engine.kv_cache import KVShape

REFERENCE = "sdpa"
BACKENDS: dict[str, AttentionBackend] = {
    backend.name: backend for backend in (SdpaGather(), CpuKernel(), TritonPaged())
}
_SERVES: dict[str, Callable[[KVShape, torch.device], bool]] = {
    CpuKernel.name: cpu.serves,
    TritonPaged.name: triton_paged.serves,
}
"""The fastest first."""

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
    """It computes on this device what the reference does; the log says where it does not."""
    reason = probe.disagreement(BACKENDS[name], BACKENDS[REFERENCE], shape, device)
    if reason is not None:
        _log.warning("%s attention is not used: %s", name, reason)
    return reason is None


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
