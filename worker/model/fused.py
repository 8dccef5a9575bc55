"""The lean path: a decoder of the Llama family in a dozen operators per layer, beside transformers' modules.

The same sums in fewer calls: queries, keys and values are one product, gate and up another, weights are laid out for
the processor, and only rows that sample leave the last layer. `worker.model.fused_weights` takes the weights from a
loaded model; `worker.model.select` decides whether this path may serve.

Matrix products with weights in the layout that the processor's kernels want, laid out once and not in every call.

`torch.nn.functional.linear` rearranges a weight each time it is used. oneDNN keeps it arranged: half the time of a
lone token's product in bfloat16, half the time of any product in float32 where MKL does not know the processor. Torch
has the operators for its own compiler and calls them private, so they are tried before they are trusted.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import torch
from torch.nn.functional import embedding, linear, rms_norm, silu

from fairlane.worker.attention.backends import BACKENDS
from fairlane.worker.attention.base import AttentionBackend, Metadata
from fairlane.worker.engine.kv_cache import KVCache, KVShape
from fairlane.worker.model.interface import Output, Packed, Rotary

Linear = Callable[[torch.Tensor], torch.Tensor]
"""[rows, inputs] to [rows, outputs]."""
_ROWS = 64
"""The number of rows that weights are laid out for. Within a few percent the best at any, which 1 is not."""

_log = logging.getLogger(__name__)


def make_linear(weight: torch.Tensor, bias: torch.Tensor | None = None) -> Linear:
    """The product with `weight` [outputs, inputs]; of a packed one nothing but the packed copy is kept."""
    if is_packed(weight):
        return _packed(weight, bias)
    return lambda rows: linear(rows, weight, bias)


def is_packed(weight: torch.Tensor) -> bool:
    """A product with it has a copy of its own."""
    return weight.device.type == "cpu" and _packing_works(weight.dtype)


def _packed(weight: torch.Tensor, bias: torch.Tensor | None) -> Linear:
    multiply = torch.ops.mkldnn._linear_pointwise.default
    laid_out = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), _ROWS)
    return lambda rows: multiply(rows, laid_out, bias, "none", [], "")


@cache
def _packing_works(dtype: torch.dtype) -> bool:
    """Torch has the operators, the processor computes in `dtype`, and small products come out right."""
    weight, bias, rows = torch.eye(48, 32, dtype=dtype), torch.ones(48, dtype=dtype), torch.ones(3, 32, dtype=dtype)
    try:
        product = _packed(weight, bias)
        right = all(torch.equal(product(rows[:count]), linear(rows[:count], weight, bias)) for count in (0, 1, 3))
    except (AttributeError, RuntimeError) as error:  # no such operator, or not on this processor
        _log.info("weights stay as they are, for lack of oneDNN's layout: %s", str(error).partition("\n")[0])
        return False
    return right


@dataclass(frozen=True, slots=True)
class Norm:
    """Root mean square normalisation of the last axis, then a factor for each channel."""

    weight: torch.Tensor  # [channels], or [heads, channels] where each head has its own
    epsilon: float

    def __call__(self, states: torch.Tensor) -> torch.Tensor:
        """The same shape."""
        if self.weight.ndim > 1:
            return rms_norm(states, states.shape[-1:], None, self.epsilon) * self.weight
        return rms_norm(states, self.weight.shape, self.weight, self.epsilon)


@dataclass(frozen=True, slots=True)
class Layer:
    """One decoder layer's weights."""

    attention_norm: Norm
    qkv: Linear  # hidden to (heads + 2 kv_heads) * head_dim
    head_norm: Norm | None  # of the queries' and the keys' heads
    output: Linear
    mlp_norm: Norm
    gate_up: Linear  # hidden to gate, then up
    down: Linear
    scaling: float


@dataclass(frozen=True, slots=True)
class Weights:
    """A whole decoder's."""

    embedding: torch.Tensor  # [vocabulary, hidden]
    layers: Sequence[Layer]
    norm: Norm
    head: Linear  # hidden to vocabulary
    rotary: Rotary
    heads: int


@dataclass(frozen=True, slots=True)
class _Step:
    """What all layers of one step share."""

    cosines: torch.Tensor  # [tokens, 1, head_dim]
    sines: torch.Tensor  # the same, the first half negated
    metadata: Metadata
    attention: AttentionBackend


class LeanModel:
    """The lean path. Keys and values live in whichever cache `forward` is given."""

    def __init__(
        self, name: str, weights: Weights, shape: KVShape, *, context_length: int, backend: str = "sdpa"
    ) -> None:
        self.name = name
        self.vocab_size = len(weights.embedding)
        self.context_length = context_length
        self.shape = shape
        self.device: torch.device = weights.embedding.device
        self.backend = backend
        self._weights = weights

    def forward(self, packed: Packed, cache: KVCache) -> Output:
        """Compute the rows, write their keys and values, and return the logits of those that sample."""
        weights = self._weights
        last = len(weights.layers) - 1
        hidden = embedding(packed.token_ids, weights.embedding)
        step = self._step(packed, hidden)
        for index, (layer, kv) in enumerate(zip(weights.layers, cache.layers, strict=True)):
            attended = self._attend(layer, hidden, kv, step)
            if index == last:
                hidden, attended = hidden[packed.logit_rows], attended[packed.logit_rows]
            hidden = _feed_forward(layer, layer.output(attended).add_(hidden))
        return Output(weights.head(weights.norm(hidden)))

    def _step(self, packed: Packed, hidden: torch.Tensor) -> _Step:
        cosines, sines = self._weights.rotary(hidden, packed.positions[None])
        sines = sines[0, :, None].clone()
        sines[..., : sines.shape[-1] // 2].neg_()
        return _Step(cosines[0, :, None], sines, packed.metadata, BACKENDS[self.backend])

    def _attend(self, layer: Layer, hidden: torch.Tensor, kv: torch.Tensor, step: _Step) -> torch.Tensor:
        """[tokens, hidden] to [tokens, heads * head_dim], keys and values written."""
        heads, both = self._weights.heads, self._weights.heads + self.shape.kv_heads
        states = layer.qkv(layer.attention_norm(hidden)).view(len(hidden), -1, self.shape.head_dim)
        turned, value = _rotate(states[:, :both], layer.head_norm, step), states[:, both:]
        query, key = turned[:, :heads], turned[:, heads:]
        return step.attention.attend(query, key, value, kv, step.metadata, layer.scaling).flatten(1)


def _rotate(states: torch.Tensor, norm: Norm | None, step: _Step) -> torch.Tensor:
    """Turn queries and keys by their positions: [tokens, heads, head_dim]."""
    if norm is not None:
        states = norm(states)
    return (states * step.cosines).addcmul_(states.roll(states.shape[-1] // 2, -1), step.sines)


def _feed_forward(layer: Layer, hidden: torch.Tensor) -> torch.Tensor:
    gate, up = layer.gate_up(layer.mlp_norm(hidden)).chunk(2, dim=-1)
    return layer.down(silu(gate).mul_(up)).add_(hidden)
