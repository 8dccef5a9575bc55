"""A model directory that loads in no time: random weights, a word for each of 97 tokens, float32."""

from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from tests.support.worker.word_model import CONTEXT, EOS, VOCABULARY, write_word_tokenizer


def write_tiny_model(directory: Path) -> Path:
    """Write it. Its next token depends on the whole context, so a gap or a repeat shows in all that follows."""
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=CONTEXT,
        initializer_range=0.5,
        eos_token_id=EOS,
    )
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(directory)
    write_word_tokenizer(directory)
    return directory
