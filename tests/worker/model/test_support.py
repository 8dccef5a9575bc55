"""Models that we serve prove themselves; models that we cannot serve exactly are refused by name and reason."""

import pytest
import torch
import transformers
from transformers import AutoModelForCausalLM

from fairlane.worker.model.files import ModelError
from fairlane.worker.model.interface import ATTENTION, TransformersModel, check_supported, register_attention
from fairlane.worker.model.select import prove

SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 101}
GROUPED = SMALL | {"num_key_value_heads": 2, "intermediate_size": 40, "pad_token_id": 0, "initializer_range": 0.3}

SERVED = {
    "llama": transformers.LlamaConfig(**GROUPED),
    "mistral without window": transformers.MistralConfig(**GROUPED, sliding_window=None),
    "mistral with a window that never binds": transformers.MistralConfig(
        **GROUPED, sliding_window=4096, max_position_embeddings=2048
    ),
    "qwen2": transformers.Qwen2Config(**GROUPED),
    "qwen3": transformers.Qwen3Config(**GROUPED, head_dim=8),
    "gemma": transformers.GemmaConfig(**GROUPED, head_dim=8),
    "phi3": transformers.Phi3Config(**GROUPED),
    "olmo2": transformers.Olmo2Config(**GROUPED),
    "granite": transformers.GraniteConfig(**GROUPED),
    "mixtral": transformers.MixtralConfig(**GROUPED, sliding_window=None, num_local_experts=2),
    "gpt2": transformers.GPT2Config(n_embd=32, n_layer=2, n_head=4, vocab_size=101, initializer_range=0.3),
}

REFUSED = [
    (transformers.T5Config(), "an encoder-decoder"),
    (transformers.MistralConfig(sliding_window=64), "sliding-window attention"),
    (transformers.Gemma2Config(), "sliding-window attention"),
    (transformers.Gemma2Config(layer_types=["full_attention"] * 26), "soft-capped attention"),
    (transformers.GptOssConfig(), "sliding-window attention"),
    (transformers.DeepseekV3Config(), "multi-head latent attention"),
    (transformers.MambaConfig(), "attention of kind linear_attention"),
    (transformers.Qwen3NextConfig(), "attention of kind linear_attention"),
    (transformers.BloomConfig(), "transformers' attention interface"),
    (transformers.LlavaConfig(), "more than text"),
    (
        transformers.LlamaConfig(rope_parameters={"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}),
        "a rotary embedding that depends on the batch",
    ),
]


def random_model(config: transformers.PreTrainedConfig, dtype: torch.dtype = torch.float32) -> TransformersModel:
    register_attention()
    torch.manual_seed(0)
    causal_lm = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation=ATTENTION)
    return TransformersModel("random", causal_lm.eval().requires_grad_(False))


@pytest.mark.parametrize("config", SERVED.values(), ids=SERVED.keys())
def test_a_supported_model_computes_the_same_with_our_attention(config: transformers.PreTrainedConfig) -> None:
    check_supported("served", config)

    prove(random_model(config))


def test_the_proof_allows_the_rounding_of_sixteen_bits() -> None:
    prove(random_model(SERVED["llama"], torch.bfloat16))


@pytest.mark.parametrize(("config", "reason"), REFUSED, ids=lambda value: getattr(value, "model_type", None))
def test_a_model_that_cannot_be_served_exactly_is_refused(config: transformers.PreTrainedConfig, reason: str) -> None:
    with pytest.raises(ModelError, match=f"^model org/name: .*{reason}.* is not supported") as refusal:
        check_supported("org/name", config)

    assert config.model_type in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_the_proof_refuses_attention_that_no_rule_knows() -> None:
    differential = transformers.DiffLlamaConfig(**GROUPED, eos_token_id=1)  # attends twice per layer and subtracts
    check_supported("differential", differential)

    with pytest.raises(ModelError, match="its attention is not the one we know"):
        prove(random_model(differential))


def test_a_model_that_looks_ahead_is_refused() -> None:
    with pytest.raises(ModelError, match="attention that looks ahead is not supported"):
        random_model(transformers.BertConfig(**SMALL, intermediate_size=40))
