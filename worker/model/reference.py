"""The reference: a transformers model with our attention. Models that it cannot serve exactly are refused at load."""

import logging
import time
from typing import TYPE_CHECKING, Protocol, cast

import torch

from fairlane.worker.attention.backends import BACKENDS, REFERENCE
from fairlane.worker.attention.base import Metadata
from fairlane.worker.errors import ModelError
from fairlane.worker.kv.cache import KVCache, KVShape
from fairlane.worker.model.files import ModelFiles, reading
from fairlane.worker.model.interface import Output, Packed
from fairlane.worker.native.processor import supports

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel


# Rotary embeddings whose angles depend on the longest sequence of the batch.
_OTHER_ROPE = {"dynamic", "longrope"}
# Name of our attention in transformers' registry.
ATTENTION = "fairlane_paged"
# Arguments of the attention interface that change the result, and that our attention does not support.
_UNSERVED = {
    "sliding_window": "sliding-window attention",
    "softcap": "soft-capped attention",
    "s_aux": "attention sinks",
    "position_bias": "a position bias",
}

_log = logging.getLogger(__name__)


def check_supported(name: str, config: "PreTrainedConfig") -> None:
    """Raise ModelError with the first reason why a model of this configuration cannot be served exactly."""
    for found, reason in _reasons(config):
        if found:
            raise ModelError(f"model {name}: {reason} is not supported (model type {config.model_type})")


def _reasons(config: "PreTrainedConfig") -> list[tuple[bool, str]]:
    return [
        (bool(getattr(config, "is_encoder_decoder", False)), "an encoder-decoder"),
        (config.get_text_config() is not config, "more than text"),
        (bool(getattr(config, "kv_lora_rank", None)), "multi-head latent attention"),
        (_window_binds(config), "sliding-window attention"),
        (bool(_other_layers(config)), f"attention of kind {', '.join(_other_layers(config))}"),
        (getattr(config, "attn_logit_softcapping", None) is not None, "soft-capped attention"),
        (bool(getattr(config, "use_bidirectional_attention", False)), "bidirectional attention"),
        (bool(_rope_types(config) & _OTHER_ROPE), "a rotary embedding that depends on the batch"),
        (not _is_causal_lm(config), "anything but a causal language model on transformers' attention interface"),
        (not getattr(config, "max_position_embeddings", None), "an unlimited or unknown context length"),
    ]


def _is_causal_lm(config: "PreTrainedConfig") -> bool:
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING

    kind = MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), None)
    kind = kind[0] if isinstance(kind, tuple) else kind
    return kind is not None and kind._supports_attention_backend and not kind._is_stateful


def _window_binds(config: "PreTrainedConfig") -> bool:
    window = getattr(config, "sliding_window", None)
    if window is None or not getattr(config, "use_sliding_window", True):
        return False
    layers = getattr(config, "layer_types", None) or ["sliding_attention"]
    return "sliding_attention" in layers and window < (getattr(config, "max_position_embeddings", None) or 0)


def _other_layers(config: "PreTrainedConfig") -> list[str]:
    known = {"full_attention", "sliding_attention"}
    return sorted(set(getattr(config, "layer_types", None) or ()) - known)


def _rope_types(config: "PreTrainedConfig") -> set[str]:
    parameters = getattr(config, "rope_parameters", None) or {}
    nested = [parameters, *(value for value in parameters.values() if isinstance(value, dict))]
    return {str(entry["rope_type"]) for entry in nested if "rope_type" in entry}


class _AttentionModule(Protocol):
    layer_idx: int
    head_dim: int
    is_causal: bool
    # Set in each step: the layer's view of the cache, and the metadata.
    fairlane_layer: tuple[torch.Tensor, Metadata]


class TransformersModel:
    """The reference: transformers' modules."""

    backend = REFERENCE

    def __init__(self, name: str, causal_lm: "PreTrainedModel") -> None:
        config = causal_lm.config
        self.name = name
        self.vocab_size = int(config.vocab_size)
        self.context_length = int(config.max_position_embeddings)
        self.causal_lm = causal_lm
        self._modules = _attention_modules(name, causal_lm)
        self.device: torch.device = causal_lm.device
        self.shape = KVShape(
            layers=len(self._modules),
            kv_heads=int(getattr(config, "num_key_value_heads", None) or config.num_attention_heads),
            head_dim=self._modules[0].head_dim,
            dtype=causal_lm.dtype,
        )

    def forward(self, packed: Packed, cache: KVCache) -> Output:
        for module, kv in zip(self._modules, cache.layers, strict=True):
            module.fairlane_layer = kv, packed.metadata
        output = self.causal_lm(
            input_ids=packed.token_ids[None],
            position_ids=packed.positions[None],
            use_cache=False,
            logits_to_keep=packed.logit_rows,
        )
        return Output(output.logits[0])

    def plain_logits(self, token_ids: list[int]) -> torch.Tensor:
        """Return the last token's logits by transformers' own attention, without any cache: [vocabulary]."""
        ids = torch.tensor([token_ids], device=self.device)
        self.causal_lm.set_attn_implementation("eager")
        try:
            output = self.causal_lm(
                input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False, logits_to_keep=1
            )
            logits: torch.Tensor = output.logits[0, -1]
            return logits
        finally:
            self.causal_lm.set_attn_implementation(ATTENTION)


def load(files: ModelFiles, *, dtype: str = "auto", device: str = "auto") -> TransformersModel:
    """Load the model with our attention. Raises ModelError if it cannot be served exactly."""
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.utils.logging import disable_progress_bar

    register_attention()
    disable_progress_bar()
    place = choose_device(device)
    began = time.perf_counter()
    with reading(files.name):
        config = AutoConfig.from_pretrained(files.directory)
        check_supported(files.name, config)
        causal_lm = AutoModelForCausalLM.from_pretrained(
            files.directory,
            dtype=choose_dtype(dtype, place),
            attn_implementation=ATTENTION,
            device_map=str(place) if place.type != "cpu" else None,
        )
    model = TransformersModel(files.name, causal_lm.eval().requires_grad_(False))
    _log.info("loaded %s in %.1f s: %s on %s", files.name, time.perf_counter() - began, model.shape.dtype, place)
    return model


def register_attention() -> None:
    """Register our attention with transformers. No mask function is registered, so that no mask is built."""
    from transformers import AttentionInterface

    AttentionInterface.register(ATTENTION, _attend)


def choose_device(name: str) -> torch.device:
    """Return the device; `auto` is the first GPU, if there is one. Raises ModelError for a GPU that does not exist."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    device = torch.device(name)
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ModelError(f"device {name}: there is no such GPU")
    return device


def choose_dtype(name: str, device: torch.device) -> torch.dtype:
    """Return the dtype; `auto` is bfloat16 if the hardware computes in it, else float32."""
    if name != "auto":
        return {"float32": torch.float32, "bfloat16": torch.bfloat16}[name]
    if device.type == "cuda":
        return torch.bfloat16
    computes = any(map(supports, ("amx_bf16", "avx512_bf16", "bf16")))
    return torch.bfloat16 if computes else torch.float32


def _attention_modules(name: str, causal_lm: "PreTrainedModel") -> list[_AttentionModule]:
    found = [m for m in causal_lm.modules() if hasattr(m, "is_causal") and hasattr(m, "layer_idx")]
    modules = sorted(cast("list[_AttentionModule]", found), key=lambda module: module.layer_idx)
    if len(modules) != causal_lm.config.num_hidden_layers:
        raise ModelError(f"model {name}: more or less than one attention per layer is not supported")
    if not all(module.is_causal for module in modules):
        raise ModelError(f"model {name}: attention that looks ahead is not supported")
    return modules


def _attend(
    module: _AttentionModule,
    query: torch.Tensor,  # [1, heads, tokens, head_dim]
    key: torch.Tensor,  # [1, kv_heads, tokens, head_dim]
    value: torch.Tensor,  # [1, kv_heads, tokens, head_dim]
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    **others: object,
) -> tuple[torch.Tensor, None]:
    kv, metadata = module.fairlane_layer
    _refuse_unserved(others)
    queries, keys, values = (packed[0].transpose(0, 1) for packed in (query, key, value))
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    attended = BACKENDS[REFERENCE].attend(queries, keys, values, kv, metadata, scale)
    return attended[None], None


def _refuse_unserved(others: dict[str, object]) -> None:
    # `check_supported` accepts a window that is never exceeded.
    for argument in _UNSERVED.keys() & others.keys():
        if others[argument] is not None and argument != "sliding_window":
            raise ModelError(f"{_UNSERVED[argument]} is not supported")
