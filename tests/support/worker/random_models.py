"""Models of random weights, one of each kind that is served."""

import torch
import transformers
from transformers import AutoModelForCausalLM

from fairlane.worker.model.reference import ATTENTION, TransformersModel, register_attention

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


def random_model(config: transformers.PreTrainedConfig, dtype: torch.dtype = torch.float32) -> TransformersModel:
    register_attention()
    torch.manual_seed(0)
    causal_lm = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation=ATTENTION)
    return TransformersModel("random", causal_lm.eval().requires_grad_(False))
