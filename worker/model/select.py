"""Selects the implementation of a model: the fastest that computes what transformers' modules compute.

In order of speed: native (C++, on CPUs), fused, the reference. `prove` compares the reference's logits with those of
transformers' own attention, `logit_disagreement` a faster implementation's with the reference's."""

import ctypes
import gc
import logging
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Literal

import torch

from fairlane.scheduler.planner.steps import Row, SeqId
from fairlane.worker.attention.backends import fastest_backends, in_short
from fairlane.worker.errors import ModelError
from fairlane.worker.kv.cache import KVCache
from fairlane.worker.model.files import ModelFiles, first_line
from fairlane.worker.model.fused import FusedModel, NotLlamaError
from fairlane.worker.model.interface import Model
from fairlane.worker.model.native import NativeModel
from fairlane.worker.model.packing import pack
from fairlane.worker.model.reference import TransformersModel, choose_device, load
from fairlane.worker.native.library import has_int8, is_fastest

_REFERENCE_TOLERANCE = {torch.float32: 1e-3}
# Relative error of the logits' norm in 16 bits: rounding stays well below it, a different kind of attention is well
# above.
_COARSE_REFERENCE_TOLERANCE = 0.15
_TOLERANCE = {torch.float32: 1e-4}
# Maximum error of any logit, relative to the largest logit; the attention is the same on both sides.
_COARSE_TOLERANCE = 0.1
# The same for weights rounded to 8 bits; a wrong weight makes it about 1.
INT8_TOLERANCE = 0.2
_BLOCK_SIZE = 8
_LENGTHS = {"long": 21, "short": 7}

# How weights are stored.
Stored = torch.dtype | Literal["int8"]

_log = logging.getLogger(__name__)


def load_fastest(files: ModelFiles, *, dtype: str = "auto", device: str = "auto") -> Model:
    """Load and check the reference, then a faster implementation, and keep only the one to use. Raises ModelError.

    The `dtype` int8 means bfloat16 with 8-bit weights where those are faster, and auto elsewhere. With auto, compiled
    code also stores bfloat16 where the processor does not compute in it, because it then reads half as much memory."""
    int8 = dtype == "int8" and choose_device(device).type == "cpu" and has_int8()
    if dtype == "int8":
        dtype = "bfloat16" if int8 else "auto"
        if not int8:
            _log.warning("%s is not served with weights of 8 bits: they are not faster here", files.name)
    reference = load(files, dtype=dtype, device=device)
    expected = prove(reference)
    began = time.perf_counter()
    fast: Model | None = None
    kinds: list[Stored] = ["int8"] if int8 else [torch.bfloat16] if dtype == "auto" else []
    for stored in dict.fromkeys([*kinds, reference.shape.dtype]):
        if fast is None:
            reference = _whole(reference, files, dtype, device)
            fast = build_native(reference, expected, release=True, stored=stored)
    if fast is None:
        reference = _whole(reference, files, dtype, device)
        fast = build_fused(reference, expected)
    if fast is None:
        return reference
    kind = "native" if isinstance(fast, NativeModel) else "fused"
    took_s = time.perf_counter() - began
    _log.info("the %s model of %s, on %s attention, was verified in %.1f s", kind, files.name, fast.backend, took_s)
    del reference
    _return_memory()
    return fast


def precision(model: Model) -> str:
    """Return the compute type and the bits per weight, as text."""
    bits = model.weight_bits if isinstance(model, NativeModel) else 8 * model.shape.dtype.itemsize
    return f"{model.shape.dtype}, weights of {bits} bits"


def _whole(reference: TransformersModel, files: ModelFiles, dtype: str, device: str) -> TransformersModel:
    is_apart = any(weight.is_meta for weight in reference.causal_lm.parameters())
    return load(files, dtype=dtype, device=device) if is_apart else reference


@torch.inference_mode()
def build_native(
    reference: TransformersModel,
    expected: Sequence[torch.Tensor],
    *,
    release: bool = False,
    stored: Stored | None = None,
) -> NativeModel | None:
    """Build the native model; return None if it is not the fastest or does not agree, and log the reason.

    `release` takes the weights from the reference, so that only one copy is in memory. `stored` is their type, by
    default the reference's. Keys and values have the same, or the reference's with int8."""
    int8 = stored == "int8"
    shape = replace(reference.shape, dtype=stored) if isinstance(stored, torch.dtype) else reference.shape
    if not is_fastest(shape.dtype, shape.head_dim, reference.device):
        return None
    try:
        native = NativeModel(
            reference.name,
            reference.causal_lm,
            shape,
            context_length=reference.context_length,
            release=release,
            int8=int8,
        )
        reason = logit_disagreement(native, expected, INT8_TOLERANCE if int8 else None)
    except NotLlamaError:  # building the fused model logs this
        return None
    except (AttributeError, MemoryError, RuntimeError) as error:  # it only resembles the family
        reason = first_line(error)
    if reason is None:
        return native
    _log.warning("%s is not served by compiled code, slower: %s", reference.name, reason)
    return None


@torch.inference_mode()
def build_fused(reference: TransformersModel, expected: Sequence[torch.Tensor] | None = None) -> FusedModel | None:
    """Build the fused model on the fastest attention with which it agrees; return None, with a warning, without one."""
    reasons: list[str] = []
    try:
        expected = expected or every_logit(reference)
        fused = FusedModel(
            reference.name, reference.causal_lm, reference.shape, context_length=reference.context_length
        )
        for backend in fastest_backends(reference.shape, reference.device):
            fused.backend = backend
            reason = _failure(fused, expected)
            if reason is None:
                if reasons:
                    _log.warning("%s is served with %s attention, slower: %s", fused.name, backend, "; ".join(reasons))
                return fused
            reasons.append(f"with {backend} attention {reason}")
    except (NotLlamaError, AttributeError, RuntimeError) as error:  # or it only resembles the family
        reasons.append(first_line(error))
    _log.warning("%s is served by transformers' modules, slower: %s", reference.name, "; ".join(reasons))
    return None


def _failure(fused: FusedModel, expected: Sequence[torch.Tensor]) -> str | None:
    try:
        return logit_disagreement(fused, expected)
    except Exception as error:  # noqa: BLE001 - a kernel may not compile, and a compiler may raise anything
        return f"it fails: {in_short(error)}"


@torch.inference_mode()
def prove(model: TransformersModel) -> list[torch.Tensor]:
    """Compare our attention with the model's own; return `every_logit`. Raises ModelError if they differ."""
    logits = every_logit(model)
    *_, shorts, longs = logits
    prompts = _prompts(model)
    for name, found in (("short", shorts[0]), ("long", longs[0])):
        expected = model.plain_logits(prompts[name]).float()
        error = float((found - expected).norm() / expected.norm())
        if not error <= _REFERENCE_TOLERANCE.get(model.shape.dtype, _COARSE_REFERENCE_TOLERANCE):
            raise ModelError(f"model {model.name}: its attention is not the one we know (logits differ by {error:.2g})")
    return logits


@torch.inference_mode()
def every_logit(model: Model) -> list[torch.Tensor]:
    """Return the logits of every token of the check, in float32, with which other implementations must agree."""
    return list(_logits(model))


@torch.inference_mode()
def logit_disagreement(fast: Model, logits: Sequence[torch.Tensor], limit: float | None = None) -> str | None:
    """Describe how an implementation's logits differ from the reference's by more than `limit`; None if they agree."""
    limit = limit or _TOLERANCE.get(fast.shape.dtype, _COARSE_TOLERANCE)
    for found, expected in zip(_logits(fast), logits, strict=True):
        error = float((found - expected).abs().max() / expected.abs().max())
        if not error <= limit:  # true also for NaN
            return f"its logits differ by {error:.2g} of the largest, more than {limit:.2g}"
    return None


def _logits(model: Model) -> Iterator[torch.Tensor]:
    cache = KVCache(model.shape, blocks=8, host_slots=0, block_size=_BLOCK_SIZE, device=model.device)
    long, short = (_prompts(model)[name] for name in ("long", "short"))
    for rows in (
        [_row("long", long, 0, 10, (6, 1)), _row("short", short, 0, 6, (3,))],
        [_row("short", short, 6, 7, (3,)), _row("long", long, 10, 20, (6, 1, 4))],
        [_row("long", long, 20, 21, (6, 1, 4))],
    ):
        packed = pack(rows, cache, model.backend)
        every = torch.arange(len(packed.token_ids), device=model.device)
        yield model.forward(replace(packed, logit_rows=every), cache).logits.to(torch.float32, copy=True)


def _prompts(model: Model) -> dict[str, list[int]]:
    chooser = random.Random(0)
    return {name: [chooser.randrange(model.vocab_size) for _ in range(length)] for name, length in _LENGTHS.items()}


def _row(name: str, tokens: list[int], start: int, end: int, table: tuple[int, ...]) -> Row:
    return Row(SeqId(name, 0), tuple(tokens[start:end]), start, table, samples=end - start == 1, output_index=0)


def _return_memory() -> None:
    # Transformers' modules form reference cycles, glibc keeps freed memory, and torch keeps a GPU's.
    gc.collect()
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.empty_cache()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
