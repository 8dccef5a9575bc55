"""Triton: where a position's keys lie in the paged pool, and the kernel that writes a step's keys and values.

Offsets count elements, in 64 bits: a pool may hold more than 2^31 of them. Within a block a layer's keys are one page,
its values the next; only the stride from block to block depends on the number of layers.
"""

from collections.abc import Callable
from typing import Protocol, cast

import torch
import triton
import triton.language as tl

NOWHERE = -1
"""The slot of a token whose key and value are not written at all: those of a row that only fills up a batch."""
LOG2_E = 1.4426950408889634
"""Scores are scaled by it, since the hardware's exponential is to base 2."""


class Kernel(Protocol):
    """What `jit` makes of a function: launched with a grid in brackets, or called by another one of its kind."""

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        """The launch of one program for each place of the grid."""

    def __call__(self, *arguments: object) -> tl.tensor:
        """Inlined where another kernel calls it."""


jit = cast(Callable[[Callable[..., object]], Kernel], triton.jit)
"""Triton's decorator, typed."""


@jit
def line_offsets(
    table: tl.tensor,  # pointer to one sequence's blocks, int32
    positions: tl.tensor,  # [any], int32
    wanted: tl.tensor,  # [any], bool: of the others nothing is read
    block_stride: tl.int64,
    line: tl.constexpr,  # elements of one token's keys: kv_heads * head_dim
    block_size: tl.constexpr,
) -> tl.tensor:
    """Offsets of the positions' keys in a layer's view; their values stand one page further."""
    blocks = tl.load(table + positions // block_size, mask=wanted, other=0)
    return blocks.to(tl.int64) * block_stride + (positions % block_size) * line


def write(key: torch.Tensor, value: torch.Tensor, kv: torch.Tensor, slots: torch.Tensor) -> None:
    """Put keys and values [tokens, kv_heads, head_dim] at their slots (`KVCache.slots`), or nowhere."""
    tokens, kv_heads, head_dim = key.shape
    line = kv_heads * head_dim
    _write[(tokens,)](
        key,
        value,
        kv,
        slots,
        key.stride(0),
        key.stride(1),
        value.stride(0),
        value.stride(1),
        kv.stride(1),
        line=line,
        span=triton.next_power_of_2(line),
        head_dim=head_dim,
        num_warps=4,
    )


@jit
def _write(
    key: tl.tensor,
    value: tl.tensor,
    kv: tl.tensor,
    slots: tl.tensor,
    key_token: tl.int64,
    key_head: tl.int64,
    value_token: tl.int64,
    value_head: tl.int64,
    page: tl.int64,
    line: tl.constexpr,
    span: tl.constexpr,
    head_dim: tl.constexpr,
) -> None:
    """One program writes one token."""
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + token)
    channels = tl.arange(0, span)
    inside = (channels < line) & (slot >= 0)
    heads, parts = channels // head_dim, channels % head_dim
    target = kv + slot * line + channels
    tl.store(target, tl.load(key + token * key_token + heads * key_head + parts, mask=inside), mask=inside)
    tl.store(target + page, tl.load(value + token * value_token + heads * value_head + parts, mask=inside), mask=inside)
