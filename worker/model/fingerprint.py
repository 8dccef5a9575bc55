"""A short name for what a model computes: two workers that share one may take over each other's streams.

Over the weights, the configuration (its quantisation among it) without what says nothing of the model, and the type
that is computed in. Weights of up to WHOLE_BYTES are read whole. Of larger ones every tensor is sampled at its
beginning, middle and end, beside its name, type and shape: training moves every tensor that it touches all over, so
that only an edit of a few rows of one, in between, can go unseen. Both take less than the loading does, beside which
they run.
"""

import hashlib
import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

WHOLE_BYTES = 512 * 2**20
"""About a third of a second of SHA-256, where the processor has instructions for it."""
SAMPLE_BYTES = 4_096
_PATTERNS = ("*.safetensors", "*.bin", "*.pt", "*.pth", "*.gguf")
"""Weights in order of preference: transformers loads the first kind that is there."""
_EVEN_SAMPLES = 1_024
"""Of a large file whose tensors are not listed at its head."""
_MOST_HEADER_BYTES = 100 * 2**20
_SILENT = frozenset({"_name_or_path", "architectures", "transformers_version", "torch_dtype", "dtype"})
"""Fields of a configuration that other versions of the libraries write otherwise."""


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


def _read_json(file: Path) -> dict[str, object]:
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
