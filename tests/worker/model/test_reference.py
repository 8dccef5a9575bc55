"""Models that we serve prove themselves; models that we cannot serve exactly are refused by name and reason."""

import pytest
import torch
import transformers

from fairlane.worker.errors import ModelError
from fairlane.worker.model.reference import check_supported
from fairlane.worker.model.select import prove
from tests.support.worker.random_models import GROUPED, SERVED, SMALL, random_model

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
