"""The compiled kernels: builds them once per processor, loads them, and declares their signatures.

`torch.utils.cpp_extension.load` is not used: it needs ninja, and a process that is killed while it compiles leaves a
lock behind that blocks all later ones."""

import ctypes
import hashlib
import logging
import os
import platform
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import NamedTuple

import torch

from fairlane.worker.directory_lock import locked
from fairlane.worker.native.processor import compiler_flags, supports

# Head sizes that attention is compiled for.
HEAD_DIMS = {8, 16, 32, 64, 96, 128}
# Outputs of a product that are computed together; weights are tiled accordingly, and padded to a multiple.
TILE_OUTPUTS = 32
_P, _N = ctypes.c_void_p, ctypes.c_int64
# fmt: off
_ATTEND = (
    _P, _N, _P, _N, _P, _N, _P, _N, _N, _P, _P, _N, _P, _N, _P, _N, _N, _N, _N, ctypes.c_float, ctypes.c_int,
)
# fmt: on
_FLAGS = ("-O3", "-std=c++20", "-fPIC", "-shared", "-fopenmp")
_LIMIT_S = 300.0
# No other user may write to a library that is loaded.
_MODE = 0o755
_SOURCE = Path(__file__).with_name("kernels.cpp")

_log = logging.getLogger(__name__)


class CNorm(ctypes.Structure):
    """Mirrors `Norm` in `operators.h`."""

    _fields_ = (("weight", _P), ("epsilon", ctypes.c_double))


class CWeights(ctypes.Structure):
    """Mirrors `Weights` in `product.h`."""

    _fields_ = (("tiles", _P), ("bias", _P), ("scales", _P), ("inputs", _N), ("outputs", _N))


class CLayer(ctypes.Structure):
    """Mirrors `Layer` in `decoder.h`."""

    _fields_ = (
        ("attention_norm", CNorm),
        ("qkv", CWeights),
        ("head_norm", CNorm),
        ("output", CWeights),
        ("mlp_norm", CNorm),
        ("gate_up", CWeights),
        ("down", CWeights),
        ("scaling", ctypes.c_double),
    )


class CModel(ctypes.Structure):
    """Mirrors `Model` in `decoder.h`."""

    _fields_ = (
        ("layers", ctypes.POINTER(CLayer)),
        ("layer_count", _N),
        ("hidden", _N),
        ("heads", _N),
        ("kv_heads", _N),
        ("head_dim", _N),
        ("embedding", _P),
        ("norm", CNorm),
        ("head", CWeights),
    )


class CStep(ctypes.Structure):
    """Mirrors `Step` in `decoder.h`."""

    _fields_ = (
        ("token_ids", _P),
        ("positions", _P),
        ("slots", _P),
        ("tokens", _N),
        ("rows", _P),
        ("row_count", _N),
        ("tables", _P),
        ("logit_rows", _P),
        ("samples", _N),
        ("cosines", _P),
        ("sines", _P),
        ("kv", _P),
        ("block_size", _N),
        ("logits", _P),
        ("likeliest", _P),
        ("highest", _P),
        ("threads", _N),
    )


class Kernels(NamedTuple):
    """The kernels for one type of keys and values. Each returns 1 if the head size is not compiled."""

    attend: Callable[..., int]
    # A decoder step, with weights of the same type.
    decode: Callable[..., int]
    # The same with 8-bit weights; only for bfloat16.
    decode_int8: Callable[..., int] | None


@cache
def kernels() -> dict[torch.dtype, Kernels]:
    """Load the kernels, and compile them if necessary. Raises BuildError."""
    library = load_library(_SOURCE)
    found: dict[torch.dtype, Kernels] = {}
    for dtype in (torch.float32, torch.bfloat16):
        name = str(dtype).removeprefix("torch.")
        attend, decode = library[f"attend_{name}"], library[f"decode_{name}"]
        attend.argtypes = _ATTEND
        decode_int8 = library["decode_int8"] if dtype == torch.bfloat16 else None
        for each in filter(None, (decode, decode_int8)):
            each.argtypes = (ctypes.POINTER(CModel), ctypes.POINTER(CStep))
        found[dtype] = Kernels(attend, decode, decode_int8)
    return found


@cache
def is_compiled() -> bool:
    """Return whether the kernels could be compiled or were compiled before."""
    try:
        kernels()
    except BuildError as error:
        _log.warning("attention is torch's own, slower: the kernel could not be compiled (%s)", error)
        return False
    return True


def has_int8() -> bool:
    """Return whether 8-bit weights are faster here: the processor must multiply bytes too, 512 bits at once."""
    return supports("avx512_vnni") and is_fastest(torch.bfloat16, min(HEAD_DIMS), torch.device("cpu"))


def is_fastest(dtype: torch.dtype, head_dim: int, device: torch.device) -> bool:
    """Return whether the compiled products are faster here than any of torch's.

    They are if the processor has vector products of floats, to which bfloat16 is widened if necessary, and no matrix
    unit of this type, which only oneDNN uses."""
    if device.type != "cpu" or head_dim not in HEAD_DIMS or dtype not in (torch.float32, torch.bfloat16):
        return False
    if not (supports("avx512_f") or supports("avx2", "fma3")):
        return False
    return not (dtype == torch.bfloat16 and supports("amx_bf16")) and is_compiled()


class BuildError(Exception):
    """The library could not be built; the message gives the reason in one line."""


def load_library(source: Path, cache: Path | None = None) -> ctypes.CDLL:
    """Load the library built from `source` and the adjacent headers, and build it if necessary. Raises BuildError."""
    try:
        texts = [path.read_text() for path in (source, *sorted(source.parent.glob("*.h")))]
        made_for = f"{texts} {_FLAGS} {compiler_flags()} {_processor()}"
        cache = cache or Path.home() / ".cache" / "fairlane"
        library = cache / f"{source.stem}-{hashlib.sha256(made_for.encode()).hexdigest()[:16]}.so"
        cache.mkdir(mode=_MODE, parents=True, exist_ok=True)
        _check_writers(cache)
        with locked(cache):  # if several processes start together, only one compiles
            if library.exists():
                _check_writers(library)
                with suppress(OSError):  # truncated by a crash, or built for another C library: build it again
                    return ctypes.CDLL(str(library))
            _compile(source, library)
            return ctypes.CDLL(str(library))
    except (OSError, RuntimeError) as error:  # not writable, no home directory, or not loadable
        raise BuildError(str(error).partition("\n")[0]) from error


def compiler() -> str | None:
    """Return the C++ compiler's path, or None."""
    return shutil.which("g++") or shutil.which("c++")


def _check_writers(path: Path) -> None:
    """Raise BuildError if another user may write to the path, since the library runs as this process."""
    status = path.stat()
    if status.st_uid not in (0, os.geteuid()) or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise BuildError(f"{path} belongs to another user, or others may write to it")


def _compile(source: Path, library: Path) -> None:
    command = compiler()
    if command is None:
        raise BuildError("there is no C++ compiler")
    _log.info("compiling %s, once for this processor", source.name)
    with tempfile.TemporaryDirectory(dir=library.parent) as directory:
        made = Path(directory) / library.name
        try:
            done = subprocess.run(
                [command, *_FLAGS, *compiler_flags(), str(source), "-o", str(made)],
                capture_output=True,
                text=True,
                timeout=_LIMIT_S,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise BuildError(f"{command} did not finish within {_LIMIT_S:.0f} s") from error
        if done.returncode != 0:
            raise BuildError(f"{command}: {_first_error(done.stderr)}")
        made.chmod(_MODE)
        os.replace(made, library)


def _first_error(output: str) -> str:
    lines = output.strip().splitlines() or ["failed"]
    return next((line for line in lines if "error" in line), lines[0])


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line for line in lines if line.startswith(("flags", "Features"))), platform.processor())
