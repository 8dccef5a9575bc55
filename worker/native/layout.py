"""Weights in the layout that the compiled products read: see `product.h`."""

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch.nn.functional import pad

from fairlane.worker.engine.kv_cache import zeros
from fairlane.worker.native.library import TILE_OUTPUTS

_ALIGNMENT = 64
"""Bytes of a cache line: no vector of a tile lies across two."""

_LEAST_SCALE = 1e-30
"""What an output is divided by that has no weight but zeros."""
_ROUNDED_AT_ONCE = 4_096
"""Outputs."""


class Arena:
    """One stretch of memory for many tensors, in large pages where the system has them. Raises MemoryError if too
    small."""

    def __init__(self, size_bytes: int) -> None:
        self._memory = zeros((size_bytes,), torch.uint8, torch.device("cpu"))
        self._used = 0

    def keep(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy in the arena: contiguous, aligned to a cache line."""
        end = self._used + tensor.numel() * tensor.itemsize
        if end > len(self._memory):
            raise MemoryError("the arena is full")
        kept = self._memory[self._used : end].view(tensor.dtype).view(tensor.shape)
        self._used = -(-end // _ALIGNMENT) * _ALIGNMENT
        return kept.copy_(tensor)


def tiled(weight: torch.Tensor) -> torch.Tensor:
    """[outputs, inputs] as tiles of outputs, padded with zeros: [tiles, inputs, 32] of float32, and of bfloat16 and
    uint8, whose inputs go by two and by four, [tiles, inputs / 2 or 4, 32] as int32. A view where nothing is padded."""
    outputs, inputs = weight.shape
    together = 4 // weight.itemsize
    whole = pad(weight, (0, -inputs % together, 0, -outputs % TILE_OUTPUTS)).contiguous()
    if together > 1:
        whole = whole.view(torch.int32)  # what moves as one is copied as one
    return whole.view(-1, TILE_OUTPUTS, whole.shape[1]).transpose(1, 2)


class Steps(NamedTuple):
    """Weights as so many steps of each output's own scale, at most 127 either way."""

    steps: torch.Tensor  # [outputs, inputs], uint8: 128 more than they are
    scales: torch.Tensor  # [outputs], float32


def in_steps(weight: torch.Tensor) -> Steps:
    """[outputs, inputs], each rounded to the nearest step of its output's scale; a part at a time, since it is done in
    float32."""
    scales = weight.abs().amax(1).to(torch.float32) / 127
    steps = torch.empty(weight.shape, dtype=torch.uint8)
    for first in range(0, len(weight), _ROUNDED_AT_ONCE):
        part = slice(first, first + _ROUNDED_AT_ONCE)
        steps[part] = (weight[part] / scales[part].clamp_min(_LEAST_SCALE)[:, None]).round_() + 128
    return Steps(steps, scales)


def interleaved(gate_up: torch.Tensor) -> torch.Tensor:
    """Weights or biases of gate, then those of up, as 16 of the one and 16 of the other in turns; padded with zeros."""
    half = TILE_OUTPUTS // 2
    parts = [pad(part, (0, 0) * (part.ndim - 1) + (0, -len(part) % half)) for part in gate_up.chunk(2)]
    return torch.stack([part.reshape(-1, half, *part.shape[1:]) for part in parts], 1).flatten(0, 2)


def room_for(parameters: Iterable[torch.Tensor]) -> int:
    """Bytes that surely hold a model's weights, tiled, however they are fused."""
    return sum(
        (len(weight) + 3 * TILE_OUTPUTS) * (weight.numel() // max(1, len(weight)) + TILE_OUTPUTS) * weight.itemsize
        for weight in parameters
        if weight.ndim > 1
    )
