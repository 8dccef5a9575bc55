"""A model directory without weights, for workers whose engine is elsewhere: a word for each of 97 tokens."""

import json
from pathlib import Path

from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast

VOCABULARY = 97
CONTEXT = 4_096
EOS = 2


def write_word_model(directory: Path) -> Path:
    """Write its configuration and its tokenizer."""
    directory.mkdir(parents=True, exist_ok=True)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": VOCABULARY,
        "max_position_embeddings": CONTEXT,
        "eos_token_id": EOS,
    }
    (directory / "config.json").write_text(json.dumps(config))
    write_word_tokenizer(directory)
    return directory


def write_word_tokenizer(directory: Path) -> None:
    """`w5 w6` for the tokens 5 and 6."""
    words = Tokenizer(WordLevel({f"w{token}": token for token in range(VOCABULARY)}, unk_token="w0"))
    PreTrainedTokenizerFast(tokenizer_object=words, eos_token=f"w{EOS}", unk_token="w0").save_pretrained(directory)
