"""The Llama family in one call of compiled code per step: with neither Python nor torch between its operators."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch.nn.functional import pad

from fairlane.worker.kv.cache import KVCache, KVShape, zeros
from fairlane.worker.model.fused import FusedLayer, Norm, NotLlamaError, Projection, RawWeights
from fairlane.worker.model.interface import Likeliest, Output, Packed, Rotary
from fairlane.worker.native.library import TILE_OUTPUTS, CLayer, CModel, CNorm, CStep, CWeights, kernels

if TYPE_CHECKING:
    from transformers import PreTrainedModel

# Initial number of positions in the table of rotations.
_FIRST_POSITIONS = 1024
# Alignment in bytes: a cache line, so that no vector of a tile spans two lines.
_ALIGNMENT = 64
# Scale of an output whose weights are all zero.
_LEAST_SCALE = 1e-30
# Number of outputs whose weights are widened to float32 at a time.
_ROUNDED_AT_ONCE = 4_096


class NativeModel:
    """See `Model`. With `int8` the weights are rounded to 8 bits. Raises NotLlamaError for a model of another kind."""

    backend = "cpu"

    def __init__(
        self,
        name: str,
        causal_lm: "PreTrainedModel",
        shape: KVShape,
        *,
        context_length: int,
        release: bool = False,
        int8: bool = False,
    ) -> None:
        """The weights are rounded to `shape.dtype`."""
        self.name = name
        self.shape = shape
        self.context_length = context_length
        self.device = torch.device("cpu")
        compiled = kernels()[shape.dtype]
        self._decode = compiled.decode_int8 if int8 and compiled.decode_int8 else compiled.decode
        self.weight_bits = 8 if self._decode is compiled.decode_int8 else 8 * shape.dtype.itemsize
        self._rotations = _Rotations(causal_lm.model.rotary_emb)
        self._weights = _NativeWeights(causal_lm, shape, release=release, int8=self.weight_bits == 8)
        self.vocab_size = self._weights.vocabulary
        # The next step reuses the logits' memory, because the system takes milliseconds to reclaim megabytes.
        self._logits = torch.empty((0, self.vocab_size))

    def forward(self, packed: Packed, cache: KVCache) -> Output:
        slots, rows, tables = packed.metadata.tensors
        cosines, sines = self._rotations.upto(packed.metadata.numbers[0])
        samples = len(packed.logit_rows)
        if len(self._logits) < samples:
            self._logits = torch.empty((samples, self.vocab_size))
        logits, highest = self._logits[:samples], torch.empty(samples)
        tokens = torch.empty(samples, dtype=torch.int64)
        # fmt: off
        step = CStep(
            packed.token_ids.data_ptr(), packed.positions.data_ptr(), slots.data_ptr(), len(slots),
            rows.data_ptr(), len(rows), tables.data_ptr(),
            packed.logit_rows.data_ptr(), samples, cosines.data_ptr(), sines.data_ptr(),
            cache.pool.data_ptr(), cache.block_size, logits.data_ptr(), tokens.data_ptr(), highest.data_ptr(),
            torch.get_num_threads(),
        )
        # fmt: on
        self._decode(self._weights.model, step)
        return Output(logits, Likeliest(tokens, highest))


class _Rotations:
    """Cosines and sines [positions, head_dim / 2] of all positions so far, float32."""

    def __init__(self, rotary: Rotary) -> None:
        self._rotary = rotary
        self._table = self._computed(_FIRST_POSITIONS)

    def upto(self, positions: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return a table with at least this many positions, since the kernel does not check."""
        known = len(self._table[0])
        if known < positions:
            self._table = self._computed(max(positions, 2 * known))
        return self._table

    def _computed(self, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        cosines, sines = self._rotary(torch.empty(0, dtype=torch.float32), torch.arange(count)[None])
        half = cosines.shape[-1] // 2  # the other half is the same
        return cosines[0, :, :half].contiguous(), sines[0, :, :half].contiguous()


class _NativeWeights:
    def __init__(self, causal_lm: "PreTrainedModel", shape: KVShape, *, release: bool, int8: bool) -> None:
        raw = RawWeights(causal_lm, release=release)
        hidden = raw.embedding.shape[1]
        if hidden % 8 or (raw.heads * shape.head_dim) % 8:
            raise NotLlamaError(f"hidden size {hidden} is not a multiple of 8")
        self._int8, self._dtype = int8, shape.dtype
        self.vocabulary = len(raw.embedding)
        self._arena = Arena(room_for((*causal_lm.parameters(), raw.embedding), shape.dtype.itemsize))
        self._kept: list[torch.Tensor] = []
        shared = raw.head.weight.data_ptr() == raw.embedding.data_ptr() and not int8
        layers = [self._layer(layer) for layer in raw.layers()]
        self._layers = (CLayer * len(layers))(*layers)
        self.model = CModel(
            self._layers,
            len(layers),
            hidden,
            raw.heads,
            shape.kv_heads,
            shape.head_dim,
            None if shared else self._keep(raw.embedding.to(shape.dtype)),
            self._norm(raw.norm),
            self._linear(raw.head),
        )

    def _layer(self, raw: FusedLayer[Projection]) -> CLayer:
        gate_up, down = raw.gate_up, raw.down
        bias = None if gate_up.bias is None else interleaved(gate_up.bias)
        return CLayer(
            self._norm(raw.attention_norm),
            self._linear(raw.qkv),
            self._norm(raw.head_norm),
            self._linear(raw.output),
            self._norm(raw.mlp_norm),
            self._linear(Projection(interleaved(gate_up.weight), bias)),
            self._linear(Projection(pad(down.weight, (0, -down.weight.shape[1] % 16)), down.bias)),
            raw.scaling,
        )

    def _linear(self, product: Projection) -> CWeights:
        outputs, inputs = product.weight.shape
        bias = None if product.bias is None else self._line(product.bias)
        if not self._int8:
            return CWeights(self._keep(tiled(product.weight.to(self._dtype))), bias, None, inputs, outputs)
        steps, scales = quantised(product.weight)
        return CWeights(self._keep(tiled(steps)), bias, self._line(scales), inputs, outputs)

    def _norm(self, norm: Norm | None) -> CNorm:
        return CNorm() if norm is None else CNorm(self._floats(norm.weight), norm.epsilon)

    def _keep(self, weight: torch.Tensor) -> int:
        return self._arena.keep(weight).data_ptr()

    def _line(self, outputs: torch.Tensor) -> int:
        return self._floats(pad(outputs, (0, -len(outputs) % TILE_OUTPUTS)))

    def _floats(self, tensor: torch.Tensor) -> int:
        self._kept.append(tensor.to(torch.float32).contiguous().clone())
        return self._kept[-1].data_ptr()


class Arena:
    """One memory region for many tensors, in huge pages if possible. Raises MemoryError if it is too small."""

    def __init__(self, size_bytes: int) -> None:
        self._memory = zeros((size_bytes,), torch.uint8, torch.device("cpu"))
        self._used = 0

    def keep(self, tensor: torch.Tensor) -> torch.Tensor:
        end = self._used + tensor.numel() * tensor.itemsize
        if end > len(self._memory):
            raise MemoryError("the arena is full")
        kept = self._memory[self._used : end].view(tensor.dtype).view(tensor.shape)
        self._used = -(-end // _ALIGNMENT) * _ALIGNMENT
        return kept.copy_(tensor)


def tiled(weight: torch.Tensor) -> torch.Tensor:
    """Tile [outputs, inputs] by outputs, padded with zeros, as [tiles, inputs, 32] for float32.

    Inputs of bfloat16 and uint8 are grouped by two and by four: [tiles, inputs / 2 or 4, 32] as int32."""
    outputs, inputs = weight.shape
    together = 4 // weight.itemsize
    whole = pad(weight, (0, -inputs % together, 0, -outputs % TILE_OUTPUTS)).contiguous()
    if together > 1:
        whole = whole.view(torch.int32)  # copies whole words
    return whole.view(-1, TILE_OUTPUTS, whole.shape[1]).transpose(1, 2)


class QuantisedWeights(NamedTuple):
    """Weights as multiples of a scale per output, between -127 and 127."""

    steps: torch.Tensor  # [outputs, inputs], uint8: 128 more than the step
    scales: torch.Tensor  # [outputs], float32


def quantised(weight: torch.Tensor) -> QuantisedWeights:
    """Round `weight` [outputs, inputs] to multiples of each output's scale; in parts, since it widens them."""
    scales = weight.abs().amax(1).to(torch.float32) / 127
    steps = torch.empty(weight.shape, dtype=torch.uint8)
    for first in range(0, len(weight), _ROUNDED_AT_ONCE):
        part = slice(first, first + _ROUNDED_AT_ONCE)
        steps[part] = (weight[part] / scales[part].clamp_min(_LEAST_SCALE)[:, None]).round_() + 128
    return QuantisedWeights(steps, scales)


def interleaved(gate_up: torch.Tensor) -> torch.Tensor:
    """Interleave the weights or biases of gate and up, 16 of each in turn, padded with zeros."""
    half = TILE_OUTPUTS // 2
    parts = [pad(part, (0, 0) * (part.ndim - 1) + (0, -len(part) % half)) for part in gate_up.chunk(2)]
    return torch.stack([part.reshape(-1, half, *part.shape[1:]) for part in parts], 1).flatten(0, 2)


def room_for(parameters: Iterable[torch.Tensor], itemsize: int) -> int:
    """Return an upper bound on the bytes of a model's tiled weights, however they are fused."""
    return sum(
        (len(weight) + 3 * TILE_OUTPUTS) * (weight.numel() // max(1, len(weight)) + TILE_OUTPUTS) * itemsize
        for weight in parameters
        if weight.ndim > 1
    )
