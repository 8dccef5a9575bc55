"""Models of random weights that take images, small enough that a real vLLM computes them on a CPU.

The number of an image's tokens depends on its size. Qwen2-VL has tokens before and after an image, and positions of
three dimensions; Pixtral has tokens between an image's rows, which stand for nothing of it."""

import json
from pathlib import Path
from typing import Literal

import torch
from transformers import (
    LlamaConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
    PixtralVisionConfig,
    PreTrainedModel,
    Qwen2VLConfig,
    Qwen2VLForConditionalGeneration,
)

Family = Literal["qwen2_vl", "pixtral"]
FAMILIES: dict[Family, tuple[str, ...]] = {
    "qwen2_vl": ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"),
    "pixtral": ("[IMG]", "[IMG_BREAK]", "[IMG_END]"),
}
"""With the tokens that each adds to those of its language."""
IMAGES: dict[Family, str] = {"qwen2_vl": "<|vision_start|><|image_pad|><|vision_end|>", "pixtral": "[IMG]"}
"""Text of an image in the chat template."""
_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n"
    "{% if m['content'] is string %}{{ m['content'] }}{% else %}{% for part in m['content'] %}"
    "{% if part['type'] == 'image' %}IMAGE{% else %}{{ part['text'] }}{% endif %}"
    "{% endfor %}{% endif %}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_TEXT = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "max_position_embeddings": 2_048,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "initializer_range": 0.5,
}


def write_vision_model(directory: Path, language: Path, family: Family = "qwen2_vl") -> Path:
    """Write one, with the tokenizer of the model in `language` and a few tokens more."""
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer = json.loads((language / "tokenizer.json").read_text())
    first, added = len(tokenizer["model"]["vocab"]), FAMILIES[family]
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    tokenizer["added_tokens"] += [{"id": first + at, "content": name, **flags} for at, name in enumerate(added)]
    about = json.loads((language / "tokenizer_config.json").read_text())
    about.pop("added_tokens_decoder", None)
    about |= {"chat_template": _TEMPLATE.replace("IMAGE", IMAGES[family]), "extra_special_tokens": [*added]}
    processors = _of_pixtral() if family == "pixtral" else _of_qwen()
    for name, content in {"tokenizer": tokenizer, "tokenizer_config": about, **processors}.items():
        (directory / f"{name}.json").write_text(json.dumps(content))
    torch.manual_seed(0)
    model = _pixtral(first) if family == "pixtral" else _qwen(first)
    model.save_pretrained(directory)
    return directory


def _qwen(first: int) -> PreTrainedModel:
    eye = {"depth": 2, "embed_dim": 32, "hidden_size": 64, "num_heads": 2, "mlp_ratio": 2, "patch_size": 4}
    rope = {"rope_type": "default", "rope_theta": 10_000.0, "mrope_section": [4, 6, 6]}
    config = Qwen2VLConfig(
        text_config={**_TEXT, "vocab_size": first + 4, "rope_parameters": rope},
        vision_config={**eye, "initializer_range": 0.5},
        vision_start_token_id=first,
        vision_end_token_id=first + 1,
        image_token_id=first + 2,
        video_token_id=first + 3,
    )
    return Qwen2VLForConditionalGeneration(config)


def _of_qwen() -> dict[str, object]:
    sizes = {"patch_size": 4, "merge_size": 2, "temporal_patch_size": 2, "processor_class": "Qwen2VLProcessor"}
    bounds = {"min_pixels": 64, "max_pixels": 4_096, "size": {"shortest_edge": 64, "longest_edge": 4_096}}
    return {
        "preprocessor_config": {**sizes, **bounds, "image_processor_type": "Qwen2VLImageProcessor"},
        "video_preprocessor_config": {**sizes, "video_processor_type": "Qwen2VLVideoProcessor"},
    }


def _pixtral(first: int) -> PreTrainedModel:
    eye = PixtralVisionConfig(
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        image_size=64,
        patch_size=8,
        initializer_range=0.5,
    )
    config = LlavaConfig(
        vision_config=eye,
        text_config=LlamaConfig(**_TEXT, vocab_size=first + 3),
        image_token_index=first,
        image_seq_length=1,
        vision_feature_layer=-1,
        vision_feature_select_strategy="full",
    )
    return LlavaForConditionalGeneration(config)


def _of_pixtral() -> dict[str, object]:
    patch = {"height": 8, "width": 8}
    images = {"image_processor_type": "PixtralImageProcessor", "patch_size": patch, "size": {"longest_edge": 64}}
    tokens = {"image_token": "[IMG]", "image_break_token": "[IMG_BREAK]", "image_end_token": "[IMG_END]"}
    merged = {"processor_class": "PixtralProcessor", "patch_size": 8, "spatial_merge_size": 1}
    return {"processor_config": {**merged, **tokens, "image_processor": images}}
