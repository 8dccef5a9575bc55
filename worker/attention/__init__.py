"""Attention over the paged cache, as one custom operator for every backend.

Write-and-attend is a single node: `torch.compile` would otherwise turn the write into a copy of the whole cache.
"""

import torch

from worker.attention import cpu
from worker.attention.base import AttentionBackend, Metadata
from worker.attention.cpu import CpuKernel
from worker.attention.sdpa import SdpaGather
from worker.kv_cache import KVShape

REFERENCE = "sdpa"
BACKENDS: dict[str, AttentionBackend] = {backend.name: backend for backend in (SdpaGather(), CpuKernel())}


def fastest_backends(shape: KVShape, device: torch.device) -> list[str]:
    """Names of the backends that serve such keys and values here, the fastest first, the reference last."""
    return [CpuKernel.name, REFERENCE] if cpu.serves(shape, device) else [REFERENCE]


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
