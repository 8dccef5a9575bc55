"""Take a lean decoder's weights from a transformers model of the Llama family.

The family is recognised by its model type; that the layers hold what is expected of them is checked here, that they
compute what is expected by `worker.model.select`.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol, cast

import torch

from fairlane.worker.model.fused import Layer, Norm, Weights, is_packed, make_linear
from fairlane.worker.model.interface import Rotary

if TYPE_CHECKING:
    from transformers import PreTrainedModel

FAMILY = {"llama", "mistral", "qwen2", "qwen3"}
"""Model types whose layers are those of Llama, but for biases and norms on heads."""
_ATTENTION = {"q_proj", "k_proj", "v_proj", "o_proj", "q_norm", "k_norm"}
_MLP = {"gate_proj", "up_proj", "down_proj", "act_fn"}
_LAYER = {"self_attn", "mlp", "input_layernorm", "post_attention_layernorm"}
_MODEL = {"embed_tokens", "layers", "norm", "rotary_emb"}


class _Module(Protocol):
    def named_children(self) -> Iterable[tuple[str, torch.nn.Module]]:
        """As of torch.nn.Module."""


class _Norm(Protocol):
    weight: torch.Tensor
    variance_epsilon: float


class _Attention(_Module, Protocol):
    q_proj: torch.nn.Linear
    k_proj: torch.nn.Linear
    v_proj: torch.nn.Linear
    o_proj: torch.nn.Linear
    q_norm: _Norm
    k_norm: _Norm
    scaling: float


class _Mlp(_Module, Protocol):
    gate_proj: torch.nn.Linear
    up_proj: torch.nn.Linear
    down_proj: torch.nn.Linear


class _Layer(_Module, Protocol):
    def to(self, *, device: str) -> object:
        """As of torch.nn.Module."""

    self_attn: _Attention
    mlp: _Mlp
    input_layernorm: _Norm
    post_attention_layernorm: _Norm


class _Decoder(_Module, Protocol):
    embed_tokens: torch.nn.Embedding
    layers: Iterable[_Layer]
    norm: _Norm
    rotary_emb: Rotary


class NotLeanError(Exception):
    """The lean path does not know this model; the message says why."""


class Fused(NamedTuple):
    """What several products of the same input need, their outputs side by side."""

    weight: torch.Tensor  # [outputs, inputs]
    bias: torch.Tensor | None  # [outputs]


@dataclass(frozen=True, slots=True)
class RawLayer:
    """One decoder layer's weights, not laid out yet."""

    attention_norm: Norm
    qkv: Fused
    head_norm: Norm | None
    output: Fused
    mlp_norm: Norm
    gate_up: Fused
    down: Fused
    scaling: float


class RawWeights:
    """A decoder's weights as transformers holds them. Raises NotLeanError for a model of another kind."""

    def __init__(self, causal_lm: "PreTrainedModel", *, release: bool = False) -> None:
        config = causal_lm.config
        if config.model_type not in FAMILY:
            raise NotLeanError(f"model type {config.model_type} is not of the Llama family")
        if config.hidden_act != "silu":
            raise NotLeanError(f"activation {config.hidden_act} is not silu")
        self._decoder = cast(_Decoder, causal_lm.model)
        _check_children(self._decoder, _MODEL)
        self._release = release
        self.embedding: torch.Tensor = self._decoder.embed_tokens.weight
        self.norm = _norm(self._decoder.norm)
        self.head = _fused(causal_lm.lm_head)
        self.rotary = self._decoder.rotary_emb
        self.heads = int(config.num_attention_heads)

    def layers(self) -> Iterator[RawLayer]:
        """Layer by layer; where told to release them, one that was taken is no longer the model's."""
        for layer in self._decoder.layers:
            yield _layer(layer)
            if self._release:
                layer.to(device="meta")


def take_weights(causal_lm: "PreTrainedModel") -> Weights:
    """Fused and laid out anew; the rotary module is the model's own, and all that is not packed. Raises
    NotLeanError."""
    raw = RawWeights(causal_lm)
    return Weights(
        embedding=_own(raw.embedding),
        layers=[_laid_out(layer) for layer in raw.layers()],
        norm=_own_norm(raw.norm),
        head=make_linear(*raw.head),
        rotary=raw.rotary,
        heads=raw.heads,
    )


def _laid_out(raw: RawLayer) -> Layer:
    return Layer(
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
    """A copy where the products have theirs: else this alone would keep the model's whole file in memory."""
    return weight.clone() if is_packed(weight) else weight


def _own_norm(norm: Norm) -> Norm:
    return Norm(_own(norm.weight), norm.epsilon)


def _check_children(module: _Module, known: set[str]) -> None:
    if others := {name for name, _ in module.named_children()} - known:
        raise NotLeanError(f"{type(module).__name__} holds an unknown {', '.join(sorted(others))}")


def _layer(layer: _Layer) -> RawLayer:
    attention, mlp = layer.self_attn, layer.mlp
    _check_children(layer, _LAYER)
    _check_children(attention, _ATTENTION)
    _check_children(mlp, _MLP)
    return RawLayer(
        attention_norm=_norm(layer.input_layernorm),
        qkv=_fused(attention.q_proj, attention.k_proj, attention.v_proj),
        head_norm=_head_norm(attention) if hasattr(attention, "q_norm") else None,
        output=_fused(attention.o_proj),
        mlp_norm=_norm(layer.post_attention_layernorm),
        gate_up=_fused(mlp.gate_proj, mlp.up_proj),
        down=_fused(mlp.down_proj),
        scaling=float(attention.scaling),
    )


def _norm(module: _Norm) -> Norm:
    return Norm(module.weight, float(module.variance_epsilon))


def _head_norm(attention: _Attention) -> Norm:
    """Both norms as one, a line of weights for each head."""
    lines = [
        norm.weight.expand(projection.out_features // len(norm.weight), -1)
        for norm, projection in ((attention.q_norm, attention.q_proj), (attention.k_norm, attention.k_proj))
    ]
    return Norm(torch.cat(lines), float(attention.q_norm.variance_epsilon))


def _fused(*modules: torch.nn.Linear) -> Fused:
    for module in modules:
        if type(module) is not torch.nn.Linear:  # quantised, or with an adapter: its weight is not all that it computes
            raise NotLeanError(f"a product is a {type(module).__name__}")
    biases: list[torch.Tensor] = [module.bias for module in modules if module.bias is not None]
    if biases and len(biases) < len(modules):
        biases = [m.weight.new_zeros(m.out_features) if m.bias is None else m.bias for m in modules]
    weights: list[torch.Tensor] = [module.weight for module in modules]
    return Fused(weights[0] if len(weights) == 1 else torch.cat(weights), torch.cat(biases) if biases else None)
