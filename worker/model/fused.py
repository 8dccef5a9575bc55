"""The fused model: a decoder of the Llama family in a dozen operators per layer, instead of transformers' modules.

Queries, keys and values are computed by one product, gate and up by another, and only rows that sample leave the last
layer. On a CPU oneDNN keeps weights packed, which halves the time of small products; its private operators are tried
before use."""

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

import torch
from torch.nn.functional import embedding, linear, rms_norm, silu

from fairlane.worker.attention.backends import BACKENDS
from fairlane.worker.attention.base import AttentionBackend, Metadata
from fairlane.worker.kv.cache import KVCache, KVShape
from fairlane.worker.model.interface import Output, Packed, Rotary

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    # The most general model type of FAMILY.
    from transformers.models.qwen3.modeling_qwen3 import Qwen3Attention, Qwen3DecoderLayer, Qwen3RMSNorm

# [rows, inputs] to [rows, outputs].
Linear = Callable[[torch.Tensor], torch.Tensor]
# Number of rows that weights are packed for. It is within a few percent of the best for any number; 1 is not.
_ROWS = 64

# Model types whose layers are those of Llama, except for biases and norms on heads.
FAMILY = {"llama", "mistral", "qwen2", "qwen3"}
_ATTENTION = {"q_proj", "k_proj", "v_proj", "o_proj", "q_norm", "k_norm"}
_MLP = {"gate_proj", "up_proj", "down_proj", "act_fn"}
_LAYER = {"self_attn", "mlp", "input_layernorm", "post_attention_layernorm"}
_MODEL = {"embed_tokens", "layers", "norm", "rotary_emb"}

_log = logging.getLogger(__name__)


def make_linear(weight: torch.Tensor, bias: torch.Tensor | None = None) -> Linear:
    """Return the product with `weight` [outputs, inputs]; of a packed weight only the packed copy is kept."""
    if is_packed(weight):
        return _packed(weight, bias)
    return lambda rows: linear(rows, weight, bias)


def is_packed(weight: torch.Tensor) -> bool:
    """Return whether `make_linear` keeps a packed copy of the weight."""
    return weight.device.type == "cpu" and _packing_works(weight.dtype)


def _packed(weight: torch.Tensor, bias: torch.Tensor | None) -> Linear:
    multiply = torch.ops.mkldnn._linear_pointwise.default
    laid_out = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), _ROWS)
    return lambda rows: multiply(rows, laid_out, bias, "none", [], "")


@cache
def _packing_works(dtype: torch.dtype) -> bool:
    """Return whether torch has the operators, the processor supports `dtype`, and small products are correct."""
    weight, bias, rows = torch.eye(48, 32, dtype=dtype), torch.ones(48, dtype=dtype), torch.ones(3, 32, dtype=dtype)
    try:
        product = _packed(weight, bias)
        right = all(torch.equal(product(rows[:count]), linear(rows[:count], weight, bias)) for count in (0, 1, 3))
    except (AttributeError, RuntimeError) as error:  # the operator is missing, or unsupported on this processor
        _log.info("weights are not packed, because oneDNN's layout is unavailable: %s", str(error).partition("\n")[0])
        return False
    return right


@dataclass(frozen=True, slots=True)
class Norm:
    """Root mean square normalisation of the last axis, then a factor per channel."""

    weight: torch.Tensor  # [channels], or [heads, channels] where each head has its own
    epsilon: float

    def __call__(self, states: torch.Tensor) -> torch.Tensor:
        if self.weight.ndim > 1:
            return rms_norm(states, states.shape[-1:], None, self.epsilon) * self.weight
        return rms_norm(states, self.weight.shape, self.weight, self.epsilon)


class Projection(NamedTuple):
    """The weights of one or several products of the same input, with their outputs concatenated."""

    weight: torch.Tensor  # [outputs, inputs]
    bias: torch.Tensor | None  # [outputs]


Product = TypeVar("Product", Projection, Linear)


@dataclass(frozen=True, slots=True)
class FusedLayer(Generic[Product]):
    """One decoder layer's weights. Each product is a `Projection` as loaded by transformers, or a packed `Linear`."""

    attention_norm: Norm
    qkv: Product  # hidden to (heads + 2 kv_heads) * head_dim
    head_norm: Norm | None  # for the heads of queries and keys
    output: Product
    mlp_norm: Norm
    gate_up: Product  # hidden to gate, then up
    down: Product
    scaling: float


@dataclass(frozen=True, slots=True)
class _StepInputs:
    cosines: torch.Tensor  # [tokens, 1, head_dim]
    sines: torch.Tensor  # the same, the first half negated
    metadata: Metadata
    attention: AttentionBackend


class FusedModel:
    """See `Model`. `backend` may be changed between steps. Raises NotLlamaError for a model of another kind."""

    def __init__(
        self, name: str, causal_lm: "PreTrainedModel", shape: KVShape, *, context_length: int, backend: str = "sdpa"
    ) -> None:
        raw = RawWeights(causal_lm)
        self.name = name
        self.vocab_size = len(raw.embedding)
        self.context_length = context_length
        self.shape = shape
        self.device: torch.device = raw.embedding.device
        self.backend = backend
        self._embedding = _own(raw.embedding)
        self._layers = [_laid_out(layer) for layer in raw.layers()]
        self._norm = _own_norm(raw.norm)
        self._head = make_linear(*raw.head)
        self._rotary: Rotary = raw.rotary
        self._heads = raw.heads

    def forward(self, packed: Packed, cache: KVCache) -> Output:
        last = len(self._layers) - 1
        hidden = embedding(packed.token_ids, self._embedding)
        step = self._step(packed, hidden)
        for index, (layer, kv) in enumerate(zip(self._layers, cache.layers, strict=True)):
            attended = self._attend(layer, hidden, kv, step)
            if index == last:
                hidden, attended = hidden[packed.logit_rows], attended[packed.logit_rows]
            hidden = layer.output(attended).add_(hidden)
            gate, up = layer.gate_up(layer.mlp_norm(hidden)).chunk(2, dim=-1)
            hidden = layer.down(silu(gate).mul_(up)).add_(hidden)
        return Output(self._head(self._norm(hidden)))

    def _step(self, packed: Packed, hidden: torch.Tensor) -> _StepInputs:
        cosines, sines = self._rotary(hidden, packed.positions[None])
        sines = sines[0, :, None].clone()
        sines[..., : sines.shape[-1] // 2].neg_()
        return _StepInputs(cosines[0, :, None], sines, packed.metadata, BACKENDS[self.backend])

    def _attend(
        self, layer: FusedLayer[Linear], hidden: torch.Tensor, kv: torch.Tensor, step: _StepInputs
    ) -> torch.Tensor:
        heads, both = self._heads, self._heads + self.shape.kv_heads
        states = layer.qkv(layer.attention_norm(hidden)).view(len(hidden), -1, self.shape.head_dim)
        turned, value = _rotate(states[:, :both], layer.head_norm, step), states[:, both:]
        query, key = turned[:, :heads], turned[:, heads:]
        return step.attention.attend(query, key, value, kv, step.metadata, layer.scaling).flatten(1)


def _rotate(states: torch.Tensor, norm: Norm | None, step: _StepInputs) -> torch.Tensor:
    if norm is not None:
        states = norm(states)
    return (states * step.cosines).addcmul_(states.roll(states.shape[-1] // 2, -1), step.sines)


class NotLlamaError(Exception):
    """The model is not of the supported Llama family; the message gives the reason."""


class RawWeights:
    """A decoder's weights as loaded by transformers. Raises NotLlamaError for a model of another kind."""

    def __init__(self, causal_lm: "PreTrainedModel", *, release: bool = False) -> None:
        config = causal_lm.config
        if config.model_type not in FAMILY:
            raise NotLlamaError(f"model type {config.model_type} is not of the Llama family")
        if config.hidden_act != "silu":
            raise NotLlamaError(f"activation {config.hidden_act} is not silu")
        self._decoder = causal_lm.model
        _check_children(self._decoder, _MODEL)
        self._release = release
        self.embedding: torch.Tensor = self._decoder.embed_tokens.weight
        self.norm = _norm(self._decoder.norm)
        self.head = _projection(causal_lm.lm_head)
        self.rotary = self._decoder.rotary_emb
        self.heads = int(config.num_attention_heads)

    def layers(self) -> Iterator[FusedLayer[Projection]]:
        """Yield layer by layer; with `release`, a yielded layer's weights are removed from the transformers model."""
        for layer in self._decoder.layers:
            yield _layer(layer)
            if self._release:
                layer.to(device="meta")


def _laid_out(raw: FusedLayer[Projection]) -> FusedLayer[Linear]:
    return FusedLayer(
        attention_norm=_own_norm(raw.attention_norm),
        qkv=make_linear(*raw.qkv),
        head_norm=raw.head_norm,
        output=make_linear(*raw.output),
        mlp_norm=_own_norm(raw.mlp_norm),
        gate_up=make_linear(*raw.gate_up),
        down=make_linear(*raw.down),
        scaling=raw.scaling,
    )


def _own(weight: torch.Tensor) -> torch.Tensor:
    # The weight itself would keep the model's whole file in memory.
    return weight.clone() if is_packed(weight) else weight


def _own_norm(norm: Norm) -> Norm:
    return Norm(_own(norm.weight), norm.epsilon)


def _check_children(module: torch.nn.Module, known: set[str]) -> None:
    if others := {name for name, _ in module.named_children()} - known:
        raise NotLlamaError(f"{type(module).__name__} has an unknown {', '.join(sorted(others))}")


def _layer(layer: "Qwen3DecoderLayer") -> FusedLayer[Projection]:
    attention, mlp = layer.self_attn, layer.mlp
    _check_children(layer, _LAYER)
    _check_children(attention, _ATTENTION)
    _check_children(mlp, _MLP)
    return FusedLayer(
        attention_norm=_norm(layer.input_layernorm),
        qkv=_projection(attention.q_proj, attention.k_proj, attention.v_proj),
        head_norm=_head_norm(attention) if hasattr(attention, "q_norm") else None,
        output=_projection(attention.o_proj),
        mlp_norm=_norm(layer.post_attention_layernorm),
        gate_up=_projection(mlp.gate_proj, mlp.up_proj),
        down=_projection(mlp.down_proj),
        scaling=float(attention.scaling),
    )


def _norm(module: "Qwen3RMSNorm") -> Norm:
    return Norm(module.weight, float(module.variance_epsilon))


def _head_norm(attention: "Qwen3Attention") -> Norm:
    lines = [
        norm.weight.expand(projection.out_features // len(norm.weight), -1)
        for norm, projection in ((attention.q_norm, attention.q_proj), (attention.k_norm, attention.k_proj))
    ]
    return Norm(torch.cat(lines), float(attention.q_norm.variance_epsilon))


def _projection(*modules: torch.nn.Linear) -> Projection:
    for module in modules:
        if (
            type(module) is not torch.nn.Linear
        ):  # quantised, or with an adapter: its weight alone does not define its result
            raise NotLlamaError(f"a product is a {type(module).__name__}")
    biases: list[torch.Tensor] = [module.bias for module in modules if module.bias is not None]
    if biases and len(biases) < len(modules):
        biases = [m.weight.new_zeros(m.out_features) if m.bias is None else m.bias for m in modules]
    weights: list[torch.Tensor] = [module.weight for module in modules]
    return Projection(weights[0] if len(weights) == 1 else torch.cat(weights), torch.cat(biases) if biases else None)
