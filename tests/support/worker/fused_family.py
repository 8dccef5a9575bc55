"""The models that the fused path serves, and what a path makes of the prompts."""

import transformers

from fairlane.worker.model.interface import Model
from tests.support.worker.hand import Hand, lease
from tests.support.worker.prompts import PROMPTS
from tests.support.worker.random_models import GROUPED

FAMILY = {
    "llama": transformers.LlamaConfig(**GROUPED),
    "llama with biases": transformers.LlamaConfig(**GROUPED, attention_bias=True, mlp_bias=True),
    "llama with tied embeddings": transformers.LlamaConfig(**GROUPED, tie_word_embeddings=True),
    "llama with stretched positions": transformers.LlamaConfig(
        **GROUPED,
        rope_parameters={
            "rope_type": "llama3",
            "rope_theta": 1e4,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 16,
        },
    ),
    "mistral": transformers.MistralConfig(**GROUPED, sliding_window=None),
    "qwen2": transformers.Qwen2Config(**GROUPED),
    "qwen3": transformers.Qwen3Config(**GROUPED, head_dim=8),
    "one layer": transformers.LlamaConfig(**GROUPED | {"num_hidden_layers": 1}),
}


def generate(model: Model, *, count: int | None = None) -> list[list[int]]:
    hand = Hand(model)
    return hand.generate(
        [hand.start(lease(str(index), prompt)) for index, prompt in enumerate(PROMPTS)], 12, count=count
    )
