"""The compiled kernels and their signatures. The structures are those of `decoder.h` and `product.h`."""

import ctypes
import logging
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import NamedTuple

import torch

from fairlane.worker.native.build import BuildError, load_library

HEAD_DIMS = {8, 16, 32, 64, 96, 128}
"""What attention is compiled for."""
TILE_OUTPUTS = 32
"""Outputs of a product that are computed together: weights are laid out so, and padded to it."""
_P, _N = ctypes.c_void_p, ctypes.c_int64
# fmt: off
_ATTEND = (
    _P, _N, _P, _N, _P, _N, _P, _N, _N, _P, _P, _N, _P, _N, _P, _N, _N, _N, _N, ctypes.c_float, ctypes.c_int,
)
# fmt: on
_SOURCE = Path(__file__).with_name("kernels.cpp")

_log = logging.getLogger(__name__)


class CNorm(ctypes.Structure):
    """`Norm`."""

    _fields_ = (("weight", _P), ("epsilon", ctypes.c_double))


class CWeights(ctypes.Structure):
    """`Weights`."""

    _fields_ = (("tiles", _P), ("bias", _P), ("scales", _P), ("inputs", _N), ("outputs", _N))


class CLayer(ctypes.Structure):
    """`Layer`."""

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
    """`Model`."""

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
    """`Step`."""

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
    """Those for one type of keys and values. Each returns 1 where the head size is not compiled."""

    attend: Callable[..., int]
    decode: Callable[..., int]
    """With weights of that type."""
    decode_int8: Callable[..., int] | None
    """With weights of 8 bits, beside bfloat16 alone."""


@cache
def kernels() -> dict[torch.dtype, Kernels]:
    """Compile and load them, or find them compiled. Raises BuildError."""
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
    """The kernels are there, compiled now or earlier."""
    try:
        kernels()
    except BuildError as error:
        _log.warning("attention is torch's own, slower: the kernel could not be compiled (%s)", error)
        return False
    return True


def has_int8() -> bool:
    """Weights of 8 bits are faster here than those of 16: the processor multiplies bytes too, 512 bits at once."""
    found: dict[str, object] = getattr(torch.cpu, "get_capabilities", dict)()
    return bool(found.get("avx512_vnni")) and is_fastest(torch.bfloat16, min(HEAD_DIMS), torch.device("cpu"))


def is_fastest(dtype: torch.dtype, head_dim: int, device: torch.device) -> bool:
    """The compiled products are faster here than any of torch's: where the processor multiplies 512 bits at once, in
    bfloat16 too if the weights are, but has no matrix unit, which only oneDNN drives."""
    found: dict[str, object] = getattr(torch.cpu, "get_capabilities", dict)()
    needed = {torch.float32: ("avx512_f",), torch.bfloat16: ("avx512_f", "avx512_bf16")}.get(dtype)
    if device.type != "cpu" or head_dim not in HEAD_DIMS or needed is None or not all(map(found.get, needed)):
        return False
    return not (dtype == torch.bfloat16 and found.get("amx_bf16")) and is_compiled()
