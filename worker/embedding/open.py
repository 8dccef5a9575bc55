"""Opens an embedder from the settings: loads the model, and creates its card and a planner."""

import logging

import msgspec
import torch

from fairlane.scheduler.planner.costs import CostModel
from fairlane.scheduler.planner.planner import Planner
from fairlane.worker.config import WorkerSettings
from fairlane.worker.embedding.pooling import read_parts
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
        card = model_card(inner)
        card = msgspec.structs.replace(
            card,
            context_length=min(card.context_length, parts.longest_input or card.context_length),
            chat_template=None,
            takes_grammars=False,
            embedding_size=int(model.config.hidden_size),
            fingerprint=fingerprint(weights_digest(parts.directory), str(dtype)),
        )
    log.info("embedding model: dimensions=%d max_input_tokens=%d", model.config.hidden_size, card.context_length)
    # No job waits for KV, which an embedder does not keep. The planner expects one token after each prompt.
    blocks_each = -(-(card.context_length + 1) // section.block_size)
    planner = Planner(
        lanes=settings.lanes.lanes(),
        block_size=section.block_size,
        blocks=section.max_sequences * blocks_each,
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
