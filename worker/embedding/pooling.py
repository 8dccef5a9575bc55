"""Pooling of token states into a vector, as the model's directory configures it in sentence-transformers' format.

Vectors are always normalised to unit length, because clients compare them by dot product."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch.nn.functional import normalize

from fairlane.worker.errors import ModelError
from fairlane.worker.model.files import MODULES

Mode = Literal["cls", "mean", "lasttoken"]
_MODES: Mapping[str, Mode] = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_lasttoken": "lasttoken",
}
_MODE_FIELD = "pooling_mode"
_KNOWN = ("Transformer", "Pooling", "Normalize")


@dataclass(frozen=True, slots=True)
class EmbedderParts:
    """The parts of an embedder, as `modules.json` and its files define them."""

    directory: Path
    mode: Mode
    # Maximum input in tokens, if configured below the model's context.
    longest_input: int | None


def read_parts(directory: Path) -> EmbedderParts:
    """Read an embedder's parts. Raises ModelError for an unsupported module or pooling."""
    listed = _read(directory / MODULES)
    paths: dict[str, Path] = {}
    for module in listed if isinstance(listed, list) else []:
        kind = str(module.get("type", "")).rpartition(".")[2]
        if kind not in _KNOWN:
            raise ModelError(f"model {directory.name}: an embedder's part {kind!r} is not served")
        paths[kind] = directory / str(module.get("path", ""))
    if "Transformer" not in paths or "Pooling" not in paths:
        raise ModelError(f"model {directory.name}: {MODULES} lists no transformer and pooling")
    stated = _read(paths["Transformer"] / "sentence_bert_config.json", missing={}).get("max_seq_length")
    longest = int(stated) if isinstance(stated, int) and stated > 0 else None
    return EmbedderParts(paths["Transformer"], _mode(directory.name, _read(paths["Pooling"] / "config.json")), longest)


def pool(states: torch.Tensor, mask: torch.Tensor, mode: Mode) -> torch.Tensor:
    """Pool states [rows, tokens, width], with padding on the right by `mask`, to vectors of unit length, [rows,
    width]."""
    states = states.float()
    if mode == "cls":
        pooled = states[:, 0]
    elif mode == "lasttoken":
        last = mask.sum(1) - 1
        pooled = states[torch.arange(len(states), device=states.device), last]
    else:
        weights = mask.unsqueeze(-1).float()
        pooled = (states * weights).sum(1) / weights.sum(1)
    return normalize(pooled, dim=-1)


def _mode(name: str, config: Mapping[str, Any]) -> Mode:
    asked = {
        _MODES.get(field, field) for field, value in config.items() if field.startswith(_MODE_FIELD) and value is True
    }
    if isinstance(config.get(_MODE_FIELD), str):  # the newer format
        asked.add(str(config[_MODE_FIELD]))
    found = [mode for mode in _MODES.values() if asked == {mode}]
    if not found:
        raise ModelError(f"model {name}: the pooling {' and '.join(sorted(asked)) or 'that it states'} is not served")
    return found[0]


def _read(file: Path, missing: Any = None) -> Any:  # noqa: ANN401 - JSON of any shape
    if missing is not None and not file.is_file():
        return missing
    try:
        return json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise ModelError(f"model {file.parent.name}: {file.name} cannot be read: {type(error).__name__}") from None
