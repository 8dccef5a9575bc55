"""Attention over the paged cache, as one custom operator for every backend.

Write-and-attend is a single node: `torch.compile` would otherwise turn the write into a copy of the whole cache.
"""

import torch

from worker.attention.base import AttentionBackend, Metadata
from worker.attention.sdpa import SdpaGather

BACKENDS: dict[str, AttentionBackend] = {backend.name: backend for backend in (SdpaGather(),)}


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
