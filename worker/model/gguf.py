"""Converts a GGUF file, once, into the safetensors directory that transformers loads.

Block-quantised weights are stored as bfloat16, whose rounding (2^-9) is far below the step of the quantisation. Files
that hold plain floats keep their own type."""

import functools
import hashlib
import io
import logging
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from pathlib import Path
from typing import TYPE_CHECKING

from fairlane.worker.directory_lock import locked

if TYPE_CHECKING:
    import torch

# Version of the conversion. Increase it when the conversion changes, so that older results are not used.
_CONVERSION = 1
_SAMPLES, _SAMPLE_BYTES = 64, 65_536
_ABANDONED_S = 3_600.0

_log = logging.getLogger(__name__)


def convert(gguf: Path, models_dir: Path) -> Path:
    """Return the directory under `models_dir` with the safetensors form of `gguf`; convert it if it does not exist.

    The directory appears complete, by one rename. Raises OSError, and any exception of transformers for an invalid
    file."""
    target = models_dir / f"{gguf.stem}-{_digest(gguf)}"
    if target.is_dir():
        return target.resolve()
    models_dir.mkdir(parents=True, exist_ok=True)
    with locked(models_dir):  # if several processes start together, only one converts
        if not target.is_dir():
            _convert(gguf, target)
    return target.resolve()


def _convert(gguf: Path, target: Path) -> None:
    models_dir = target.parent
    _remove_abandoned(models_dir)
    unfinished = Path(tempfile.mkdtemp(prefix=".converting-", dir=models_dir))
    try:
        _unpack(gguf, unfinished)
        unfinished.rename(target)
    except OSError as error:
        if not target.is_dir():  # otherwise another process was first, with the same result
            raise OSError(f"cannot write {target} ({error.strerror or error})") from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _digest(file: Path) -> str:
    # Samples from the whole file, since another fine-tune has the same size.
    size = file.stat().st_size
    digest = hashlib.sha256(f"{_CONVERSION} {size}".encode())
    with file.open("rb") as stream:
        for sample in range(_SAMPLES):
            stream.seek(max(0, size - _SAMPLE_BYTES) * sample // (_SAMPLES - 1))
            digest.update(stream.read(_SAMPLE_BYTES))
    return digest.hexdigest()[:12]


def _remove_abandoned(models_dir: Path) -> None:
    for path in models_dir.glob(".converting-*"):
        if time.time() - path.stat().st_mtime > _ABANDONED_S:
            shutil.rmtree(path, ignore_errors=True)


def _unpack(gguf: Path, directory: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    source = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    _log.info("converting %s (once)", gguf.name)
    with _parsed_once(), redirect_stderr(io.StringIO()):  # the libraries' progress bars
        try:
            dtype = _stored_dtype(gguf)
            tokenizer = AutoTokenizer.from_pretrained(**source)
            unpacked = GgufConfig(dequantize=True)  # packed weights are slow to compute with
            model = AutoModelForCausalLM.from_pretrained(**source, quantization_config=unpacked, dtype=dtype)
        except OSError as error:  # transformers' error for a bad file; any other OSError is a write error
            raise ValueError(str(error)) from error
        if isinstance(eos := model.config.eos_token_id, int):  # transformers 5.17 uses bos instead
            tokenizer.eos_token = tokenizer.convert_ids_to_tokens(eos)
        model.save_pretrained(directory, save_original_format=False)
        tokenizer.save_pretrained(directory)


@contextmanager
def _parsed_once() -> Iterator[None]:
    """Parse each GGUF file once: transformers creates a reader per call, and parsing takes over a second."""
    import gguf

    parse = gguf.GGUFReader
    gguf.GGUFReader = functools.cache(parse)
    try:
        yield
    finally:
        gguf.GGUFReader = parse


def _stored_dtype(gguf: Path) -> "torch.dtype":
    import torch
    from gguf import GGMLQuantizationType, GGUFReader

    plain = {GGMLQuantizationType.F32: torch.float32, GGMLQuantizationType.F16: torch.float16}
    matrices = {tensor.tensor_type for tensor in GGUFReader(str(gguf)).tensors if len(tensor.shape) > 1}
    return plain.get(matrices.pop(), torch.bfloat16) if len(matrices) == 1 else torch.bfloat16
