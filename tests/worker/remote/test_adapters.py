"""Adapters of a real vLLM."""

import json
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedModel, PreTrainedTokenizerFast

from fairlane.scheduler.protocol.messages import ModelCard, Sampling, TokenDelta
from fairlane.worker.config import WorkerSection, WorkerSettings
from fairlane.worker.remote.open import open_engine
from tests.support.vllm import Vllm, needs_vllm
from tests.support.worker.hand import lease

VOCABULARY, WIDTH, HEADS, LAYERS, RANK, ALPHA = 997, 128, 2, 2, 8, 16
ADAPTED = ("q_proj", "o_proj")
PROMPT = tuple(10 + place * 31 for place in range(24))
TOKENS = 24
NEAR_TIE = 1e-3
"""Of two logits: which of them wins may depend on the order of sums."""

pytestmark = [pytest.mark.slow, needs_vllm]


@dataclass(frozen=True)
class Served:
    """A vLLM, and what it should compute by the name that it serves it by."""

    url: str
    models: dict[str, PreTrainedModel]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A model of random weights with two adapters, for as long as the module runs."""
    directory = tmp_path_factory.mktemp("adapters")
    models = {"plain": write_model(directory / "plain")}
    for number, name in enumerate(("polite", "terse"), 1):
        models[name] = write_adapter(directory / name, directory / "plain", seed=number)
    modules = [f"{name}={directory / name}" for name in models if name != "plain"]
    lora = ("--enable-lora", "--max-loras", "2", "--lora-modules", *modules, "--max-model-len", "512")
    with Vllm(directory, directory / "plain", arguments=lora) as started:
        yield Served(started.url, models)


def write_model(directory: Path) -> PreTrainedModel:
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=WIDTH, intermediate_size=64, num_hidden_layers=LAYERS,
        num_attention_heads=HEADS, num_key_value_heads=HEADS, max_position_embeddings=2_048, initializer_range=0.5,
        bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    torch.manual_seed(0)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.save_pretrained(directory)
    words = Tokenizer(WordLevel({f"w{token}": token for token in range(VOCABULARY)}, unk_token="w0"))
    PreTrainedTokenizerFast(tokenizer_object=words, eos_token="w2", unk_token="w0").save_pretrained(directory)
    return model.eval()


def write_adapter(directory: Path, under: Path, *, seed: int) -> PreTrainedModel:
    """An adapter in PEFT's format; and the model with its weights added, as it should be computed."""
    directory.mkdir()
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(under, dtype=torch.float32)
    torch.manual_seed(seed)
    tensors: dict[str, torch.Tensor] = {}
    for layer in range(LAYERS):
        for part in ADAPTED:
            name = f"model.layers.{layer}.self_attn.{part}"
            down, up = torch.randn(RANK, WIDTH) * 0.2, torch.randn(WIDTH, RANK) * 0.2
            tensors |= {f"base_model.model.{name}.lora_A.weight": down, f"base_model.model.{name}.lora_B.weight": up}
            with torch.no_grad():
                model.get_parameter(f"{name}.weight").add_(up @ down, alpha=ALPHA / RANK)
    save_file(tensors, directory / "adapter_model.safetensors")
    about = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": RANK, "lora_alpha": ALPHA, "bias": "none"}
    about |= {"target_modules": [*ADAPTED], "base_model_name_or_path": str(under)}
    (directory / "adapter_config.json").write_text(json.dumps(about))
    return model.eval()


def worked(served: Served, model: str) -> tuple[ModelCard, list[int]]:
    """The card of a worker for that model, and the tokens that it has computed."""
    section = WorkerSection(engine="vllm", engine_url=served.url, engine_model=model)
    tokens: list[int] = []
    with closing(open_engine(WorkerSettings(worker=section))) as opened:
        engine = opened.engine
        job = lease("job", PROMPT, max_tokens=TOKENS, sampling=Sampling(temperature=0.0))
        engine.add(job, time.monotonic() * 1e3)
        while engine.has_work:
            for event in engine.step(time.monotonic() * 1e3).events:
                if isinstance(event, TokenDelta):
                    tokens += event.token_ids
    return opened.card, tokens


def test_each_worker_has_its_own_model_computed(served: Served) -> None:
    found = {name: worked(served, name) for name in served.models}

    assert [card.model for card, _ in found.values()] == ["plain", "polite", "terse"]
    assert len({card.fingerprint for card, _ in found.values()}) == len(found)
    assert {(card.context_length, card.vocab_size) for card, _ in found.values()} == {(512, VOCABULARY)}
    for name, (_, tokens) in found.items():
        assert len(tokens) == TOKENS
        assert not lost(served.models[name], tokens), name
        assert all(lost(other, tokens) for mine, other in served.models.items() if mine != name)


def lost(model: PreTrainedModel, tokens: list[int]) -> list[int]:
    """Places where this model would have said something else, and not only by a hair."""
    with torch.no_grad():
        logits = model(torch.tensor([[*PROMPT, *tokens]])).logits[0, len(PROMPT) - 1 : -1]
    said = logits[torch.arange(len(tokens)), torch.tensor(tokens)]
    return [int(place) for place in torch.nonzero(logits.max(dim=-1).values - said > NEAR_TIE)]
