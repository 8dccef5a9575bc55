"""Which models the paged attention serves exactly. The rest are refused at load, by name and reason."""

from typing import TYPE_CHECKING

from worker.model_files import ModelError

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

_OTHER_ROPE = {"dynamic", "longrope"}
"""Rotary embeddings whose angles depend on the longest sequence of the batch."""


def check_supported(name: str, config: "PreTrainedConfig") -> None:
    """Raises ModelError with the first reason why a model of this configuration cannot be served exactly."""
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
    """It has a language-model class whose attention can be replaced and that keeps no state but keys and values."""
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING

    kind = MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), None)
    kind = kind[0] if isinstance(kind, tuple) else kind
    return kind is not None and kind._supports_attention_backend and not kind._is_stateful


def _window_binds(config: "PreTrainedConfig") -> bool:
    """Some layer forgets positions within the context length."""
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
