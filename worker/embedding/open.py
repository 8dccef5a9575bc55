"""Opens an embedder from the settings: loads the model, and creates its card and a planner."""

import logging

import msgspec
import torch

from fairlane.scheduler.planner.costs import CostModel
from fairlane.scheduler.planner.planner import Planner
from fairlane.scheduler.protocol.messages import ModelCard
from fairlane.worker.config import WorkerSettings
from fairlane.worker.embedding.pooling import EmbedderParts, read_parts
from fairlane.worker.embedding.runner import EmbeddingRunner
from fairlane.worker.engine.engine import Engine, OpenedEngine
from fairlane.worker.model.files import ModelFiles, fingerprint, model_card, reading, weights_digest

log = logging.getLogger(__name__)


def open_embedder(settings: WorkerSettings, files: ModelFiles) -> OpenedEngine:
    """Open the embedder. Raises ModelError."""
    from transformers import AutoModel

    section, costs, parts = settings.worker, CostModel(), read_parts(files.directory)
    inner = ModelFiles(files.name, parts.directory)
    device = section.device if section.device != "auto" else "cuda" if torch.cuda.is_available() else "cpu"
    dtype = torch.bfloat16 if section.dtype == "bfloat16" else torch.float32
    with reading(files.name):
        model = AutoModel.from_pretrained(parts.directory, dtype=dtype).to(device).eval()
        card = _card(inner, parts, int(model.config.hidden_size))
        card = msgspec.structs.replace(card, fingerprint=fingerprint(weights_digest(parts.directory), str(dtype)))
    log.info("embedding model: dimensions=%d max_input_tokens=%d", model.config.hidden_size, card.context_length)
    planner = Planner(
        lanes=settings.lanes.lanes(),
        block_size=section.block_size,
        blocks=section.max_sequences * _blocks_each(card, section.block_size),
        host_slots=0,
        max_sequences=section.max_sequences,
        max_step_tokens=section.max_step_tokens,
        costs=costs,
    )
    runner = EmbeddingRunner(
        model,
        parts.mode,
        vocab_size=card.vocab_size,
        max_batch_tokens=max(card.context_length, section.max_step_tokens),
    )
    return OpenedEngine(Engine(planner, runner), card, costs, section.max_step_tokens)


def _card(files: ModelFiles, parts: EmbedderParts, size: int) -> ModelCard:
    card = model_card(files)
    longest = min(card.context_length, parts.longest_input or card.context_length)
    return msgspec.structs.replace(
        card, context_length=longest, chat_template=None, takes_grammars=False, embedding_size=size
    )


def _blocks_each(card: ModelCard, block_size: int) -> int:
    # The planner's pool is sized so that no job waits for KV, which an embedder does not keep.
    return -(-(card.context_length + 1) // block_size)
