"""The Llama family in one call of compiled code per step: nothing of Python or torch runs between its operators.

What `worker.model.fused` computes operator by operator, on weights in the layout of `worker.native.layout`. The table
of rotations grows with the positions that are seen.
"""

from typing import TYPE_CHECKING

import torch
from torch.nn.functional import pad

from fairlane.worker.engine.kv_cache import KVCache, KVShape
from fairlane.worker.model.fused import Norm
from fairlane.worker.model.fused_weights import Fused, NotLeanError, RawLayer, RawWeights
from fairlane.worker.model.interface import Likeliest, Output, Packed, Rotary
from fairlane.worker.native.layout import Arena, in_steps, interleaved, room_for, tiled
from fairlane.worker.native.library import TILE_OUTPUTS, CLayer, CModel, CNorm, CStep, CWeights, kernels

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_FIRST_POSITIONS = 1024
"""Rotations that the table begins with."""


class NativeModel:
    """The compiled path. Keys and values live in whichever cache `forward` is given. Raises NotLeanError for a model of
    another kind. With `int8` the weights are rounded to 8 bits, keys and values stay bfloat16."""

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
        self.name = name
        self.shape = shape
        self.context_length = context_length
        self.device = torch.device("cpu")
        compiled = kernels()[shape.dtype]
        self._decode = compiled.decode_int8 if int8 and compiled.decode_int8 else compiled.decode
        self.weight_bits = 8 if self._decode is compiled.decode_int8 else 8 * shape.dtype.itemsize
        self._rotations = _Rotations(causal_lm.model.rotary_emb)
        self._weights = _Weights(causal_lm, shape, release=release, int8=self.weight_bits == 8)
        self.vocab_size = self._weights.vocabulary
        self._logits = torch.empty((0, self.vocab_size))
        """Of the last step, whose memory is the next one's: megabytes, which the system may take several milliseconds
        to take back."""

    def forward(self, packed: Packed, cache: KVCache) -> Output:
        """Compute the rows, write their keys and values, and return the logits of those that sample, in float32."""
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
        """Those of at least so many positions, be they more than the model's context: nothing checks what is read."""
        known = len(self._table[0])
        if known < positions:
            self._table = self._computed(max(positions, 2 * known))
        return self._table

    def _computed(self, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        cosines, sines = self._rotary(torch.empty(0, dtype=torch.float32), torch.arange(count)[None])
        half = cosines.shape[-1] // 2  # the other half is the same
        return cosines[0, :, :half].contiguous(), sines[0, :, :half].contiguous()


class _Weights:
    """A decoder's weights laid out, and the structures that point to them."""

    def __init__(self, causal_lm: "PreTrainedModel", shape: KVShape, *, release: bool, int8: bool) -> None:
        raw = RawWeights(causal_lm, release=release)
        hidden = raw.embedding.shape[1]
        if hidden % 8 or (raw.heads * shape.head_dim) % 8:
            raise NotLeanError(f"a hidden size of {hidden} is no multiple of 8")
        self._int8 = int8
        self.vocabulary = len(raw.embedding)
        self._arena = Arena(room_for((*causal_lm.parameters(), raw.embedding)))
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
            None if shared else self._keep(raw.embedding),
            self._norm(raw.norm),
            self._linear(raw.head),
        )

    def _layer(self, raw: RawLayer) -> CLayer:
        gate_up, down = raw.gate_up, raw.down
        bias = None if gate_up.bias is None else interleaved(gate_up.bias)
        return CLayer(
            self._norm(raw.attention_norm),
            self._linear(raw.qkv),
            self._norm(raw.head_norm),
            self._linear(raw.output),
            self._norm(raw.mlp_norm),
            self._linear(Fused(interleaved(gate_up.weight), bias)),
            self._linear(Fused(pad(down.weight, (0, -down.weight.shape[1] % 16)), down.bias)),
            raw.scaling,
        )

    def _linear(self, fused: Fused) -> CWeights:
        outputs, inputs = fused.weight.shape
        bias = None if fused.bias is None else self._line(fused.bias)
        if not self._int8:
            return CWeights(self._keep(tiled(fused.weight)), bias, None, inputs, outputs)
        steps, scales = in_steps(fused.weight)
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
