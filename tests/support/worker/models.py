"""Fixtures: a tiny random model that runs in milliseconds, and the default model for what must be real."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from fairlane.scheduler.protocol.settings import DEFAULT_MODEL
from fairlane.worker.model.files import ModelFiles, resolve
from fairlane.worker.model.reference import ATTENTION, TransformersModel, load, register_attention


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """Compute on one thread, whatever an engine of an earlier test chose: threads that wait for each other on busy
    cores made tiny models ten times slower."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def tiny() -> TransformersModel:
    """Two layers, four heads on two key heads, float32: everything that matters, and nothing that takes time."""
    register_attention()
    config = LlamaConfig(
        vocab_size=97,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        initializer_range=0.5,  # large enough that the next token depends on the context
    )
    torch.manual_seed(0)
    causal_lm = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation=ATTENTION)
    return TransformersModel("tiny", causal_lm.eval().requires_grad_(False))


@pytest.fixture(scope="session")
def default_files(models_dir: Path) -> ModelFiles:
    return resolve(DEFAULT_MODEL, models_dir)


@pytest.fixture(scope="session")
def default_model(default_files: ModelFiles) -> TransformersModel:
    return load(default_files, dtype="float32", device="cpu")
