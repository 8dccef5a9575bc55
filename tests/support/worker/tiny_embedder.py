"""A directory in the form of sentence-transformers: a tiny BERT with random weights, and a tokenizer of words."""

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

WORDS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", *(f"w{number}" for number in range(60)))
WIDTH = 32
LONGEST = 24
"""Tokens of an input, with the two marks."""


def write_tiny_embedder(directory: Path, *, pooling: Mapping[str, object] | None = None, parts: str = "") -> Path:
    """Write it. `pooling`: its configuration, means by default; `parts`: a further module."""
    directory.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(WORDS),
        hidden_size=WIDTH,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=48,
        max_position_embeddings=64,
        initializer_range=0.5,
    )
    BertModel(config).eval().save_pretrained(directory)
    tokenizer = Tokenizer(models.WordLevel({word: index for index, word in enumerate(WORDS)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    marks = [("[CLS]", WORDS.index("[CLS]")), ("[SEP]", WORDS.index("[SEP]"))]
    tokenizer.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=marks)
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="[UNK]", pad_token="[PAD]", cls_token="[CLS]", sep_token="[SEP]"
    ).save_pretrained(directory)
    modules = ["Transformer", "Pooling", "Normalize", *([parts] if parts else [])]
    paths = {"Transformer": "", "Pooling": "1_Pooling"}
    listed = [{"path": paths.get(name, name), "type": f"sentence_transformers.models.{name}"} for name in modules]
    (directory / "modules.json").write_text(json.dumps(listed))
    (directory / "1_Pooling").mkdir(exist_ok=True)
    told = {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False} if pooling is None else pooling
    (directory / "1_Pooling" / "config.json").write_text(json.dumps(told))
    (directory / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": LONGEST}))
    return directory


def reference(directory: Path, token_ids: list[int], mode: str = "mean") -> list[float]:
    """The vector of one input, alone and without padding, by transformers' own model."""
    model = BertModel.from_pretrained(directory).eval()
    with torch.inference_mode():
        states = model(input_ids=torch.tensor([token_ids])).last_hidden_state[0]
    pooled = {"mean": states.mean(0), "cls": states[0], "lasttoken": states[-1]}[mode]
    return [float(number) for number in pooled / pooled.norm()]
