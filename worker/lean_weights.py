"""Take a lean decoder's weights from a transformers model of the Llama family.

The family is recognised by its model type; that the layers hold what is expected of them is checked here, that they
compute what is expected by `worker.selftest`.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol, cast

import torch

from worker.lean import Layer, Norm, Weights
from worker.linear import Linear, make_linear
from worker.model import Rotary

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


def take_weights(causal_lm: "PreTrainedModel") -> Weights:
    """Fused and laid out anew; embedding, norms and the rotary module are the model's own. Raises NotLeanError."""
    config = causal_lm.config
    if config.model_type not in FAMILY:
        raise NotLeanError(f"model type {config.model_type} is not of the Llama family")
    if config.hidden_act != "silu":
        raise NotLeanError(f"activation {config.hidden_act} is not silu")
    decoder = cast(_Decoder, causal_lm.model)
    _check_children(decoder, _MODEL)
    return Weights(
        embedding=decoder.embed_tokens.weight,
        layers=[_layer(layer) for layer in decoder.layers],
        norm=_norm(decoder.norm),
        head=_fused(causal_lm.lm_head),
        rotary=decoder.rotary_emb,
        heads=int(config.num_attention_heads),
    )


def _check_children(module: _Module, known: set[str]) -> None:
    if others := {name for name, _ in module.named_children()} - known:
        raise NotLeanError(f"{type(module).__name__} holds an unknown {', '.join(sorted(others))}")


def _layer(layer: _Layer) -> Layer:
    attention, mlp = layer.self_attn, layer.mlp
    _check_children(layer, _LAYER)
    _check_children(attention, _ATTENTION)
    _check_children(mlp, _MLP)
    return Layer(
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


def _fused(*modules: torch.nn.Linear) -> Linear:
    """One product for several of the same input, their outputs side by side."""
    biases: list[torch.Tensor] = [module.bias for module in modules if module.bias is not None]
    if biases and len(biases) < len(modules):
        biases = [m.weight.new_zeros(m.out_features) if m.bias is None else m.bias for m in modules]
    weights: list[torch.Tensor] = [module.weight for module in modules]
    return make_linear(weights[0] if len(weights) == 1 else torch.cat(weights), torch.cat(biases) if biases else None)
