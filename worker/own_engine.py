"""Opens an engine in this process from the settings: loads, verifies and measures the model, and creates its card."""

import logging
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import torch

from fairlane.scheduler.planner.costs import CostModel
from fairlane.worker.config import WorkerSettings
from fairlane.worker.embedding.open import open_embedder
from fairlane.worker.engine.build import build_engine
from fairlane.worker.engine.engine import OpenedEngine
from fairlane.worker.engine.grammar import Grammars
from fairlane.worker.model.files import fingerprint, is_embedder, model_card, reading, resolve, weights_digest

log = logging.getLogger(__name__)


def open_engine(settings: WorkerSettings) -> OpenedEngine:
    """Open the model's engine. Raises ModelError, KVMemoryError."""
    section, costs = settings.worker, CostModel()
    torch.set_num_threads(section.threads or usable_cores())
    files = resolve(settings.model, settings.models_directory)
    if is_embedder(files.directory):
        return open_embedder(settings, files)
    card = model_card(files, draws=section.generation_config)
    grammars: Grammars | None = None
    try:
        grammars = Grammars(
            card, most_bytes=section.grammar_memory, most_tenant_bytes=section.grammar_memory_per_tenant
        )
    except ValueError as error:
        log.warning("grammars are disabled, because the tokenizer does not support them: %s", error)
        card = msgspec.structs.replace(card, takes_grammars=False)
    with ThreadPoolExecutor(1) as aside:  # hashing the weights overlaps with loading them
        weights = aside.submit(weights_digest, files.directory)
        engine, precision = build_engine(files, section, settings.lanes.lanes(), costs, grammars)
        with reading(files.name):
            card = msgspec.structs.replace(card, fingerprint=fingerprint(weights.result(), precision))
    return OpenedEngine(engine, card, costs, section.max_step_tokens)


def usable_cores(group: Path = Path("/sys/fs/cgroup")) -> int:
    """Return the number of usable cores: the affinity, or less by the container's quota (cgroup v2)."""
    cores = len(os.sched_getaffinity(0))
    try:
        quota, period = (group / "cpu.max").read_text().split()
        return max(1, min(cores, int(quota) // int(period)))
    except (OSError, ValueError):  # the file is missing, or contains "max"
        return cores
