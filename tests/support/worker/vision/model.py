"""A LLaVA of random weights, small enough that a real vLLM computes it on a CPU: an image becomes four tokens."""

import json
import re
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import CLIPVisionConfig, LlamaConfig, LlavaConfig, LlavaForConditionalGeneration

IMAGE_TOKENS = 4
IMAGE = "<image>"
CONTEXT = 2_048
_SIDE, _PATCH = 28, 14
_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n"
    "{% if m['content'] is string %}{{ m['content'] }}{% else %}{% for part in m['content'] %}"
    "{% if part['type'] == 'image' %}<image>{% else %}{{ part['text'] }}{% endif %}"
    "{% endfor %}{% endif %}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def write_vision_model(directory: Path, language: Path) -> Path:
    """Write it, with the tokenizer of the model in `language` and a token more. The next token depends on the image."""
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer = json.loads((language / "tokenizer.json").read_text())
    token = len(tokenizer["model"]["vocab"])
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    tokenizer["added_tokens"].append({"id": token, "content": IMAGE, **flags})
    about = json.loads((language / "tokenizer_config.json").read_text())
    about.pop("added_tokens_decoder", None)
    about |= {"chat_template": _TEMPLATE, "extra_special_tokens": [IMAGE], "processor_class": "LlavaProcessor"}
    seen = {"height": _SIDE, "width": _SIDE}
    images = {"image_processor_type": "CLIPImageProcessor", "crop_size": seen, "size": {"shortest_edge": _SIDE}}
    processor = {
        "processor_class": "LlavaProcessor",
        "image_processor": images,
        "image_token": IMAGE,
        "patch_size": _PATCH,
        "num_additional_image_tokens": 1,
        "vision_feature_select_strategy": "default",
    }
    _write(directory, {"tokenizer": tokenizer, "tokenizer_config": about, "processor_config": processor})
    _write_weights(directory, token)
    return directory


def _write_weights(directory: Path, image_token: int) -> None:
    eye = CLIPVisionConfig(
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        image_size=_SIDE,
        patch_size=_PATCH,
        projection_dim=32,
    )
    text = LlamaConfig(
        vocab_size=image_token + 1,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=CONTEXT,
        bos_token_id=1,
        eos_token_id=2,
        initializer_range=0.5,
    )
    config = LlavaConfig(
        vision_config=eye, text_config=text, image_token_index=image_token, image_seq_length=IMAGE_TOKENS
    )
    torch.manual_seed(0)
    model = LlavaForConditionalGeneration(config)
    model.save_pretrained(directory)
    saved = load_file(directory / "model.safetensors")
    # vLLM knows the names of published models, to which newer releases of transformers do not convert every part.
    named = {
        re.sub(r"^vision_tower\.(?!vision_model\.)", "vision_tower.vision_model.", name): saved[name] for name in saved
    }
    save_file(named, directory / "model.safetensors", metadata={"format": "pt"})


def _write(directory: Path, files: dict[str, object]) -> None:
    for name, content in files.items():
        (directory / f"{name}.json").write_text(json.dumps(content))
