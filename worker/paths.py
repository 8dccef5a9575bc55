"""Which path serves: the fastest that proves to compute what transformers' modules compute."""

import ctypes
import gc
import logging
import time
from collections.abc import Sequence

import torch

from worker import selftest
from worker.attention import fastest_backends
from worker.attention.probe import in_short
from worker.lean import LeanModel
from worker.lean_weights import NotLeanError, take_weights
from worker.model import Model, PagedModel, choose_device, load
from worker.model_files import ModelFiles
from worker.native.library import has_int8, is_fastest
from worker.native.model import NativeModel

_log = logging.getLogger(__name__)


def load_fastest(files: ModelFiles, *, dtype: str = "auto", device: str = "auto") -> Model:
    """Load and prove the reference, then a faster path, and keep only the one that serves. Raises ModelError.

    `dtype` int8 is bfloat16 with weights of 8 bits where those are faster, and auto elsewhere.
    """
    int8 = dtype == "int8" and choose_device(device).type == "cpu" and has_int8()
    if dtype == "int8":
        dtype = "bfloat16" if int8 else "auto"
        if not int8:
            _log.warning("%s is not served with weights of 8 bits: they are not faster here", files.name)
    reference = load(files, dtype=dtype, device=device)
    expected = selftest.prove(reference)
    began = time.perf_counter()
    fast: Model | None = None
    for bits in (True, False) if int8 else (False,):
        if fast is None:
            reference = _whole(reference, files, dtype, device)
            fast = native_path(reference, expected, release=True, int8=bits)
    if fast is None:
        reference = _whole(reference, files, dtype, device)
        fast = lean_path(reference, expected)
    if fast is None:
        return reference
    kind = "compiled" if isinstance(fast, NativeModel) else "lean"
    took_s = time.perf_counter() - began
    _log.info("the %s path of %s, on %s attention, is proven in %.1f s", kind, files.name, fast.backend, took_s)
    del reference
    _give_back()
    return fast


def precision(model: Model) -> str:
    """The type that it computes in, and how its weights are packed where they are."""
    bits = model.weight_bits if isinstance(model, NativeModel) else 8 * model.shape.dtype.itemsize
    return f"{model.shape.dtype}, weights of {bits} bits"


def _whole(reference: PagedModel, files: ModelFiles, dtype: str, device: str) -> PagedModel:
    """The reference with all its weights: loaded anew where it was taken apart in vain."""
    is_apart = any(weight.is_meta for weight in reference.causal_lm.parameters())
    return load(files, dtype=dtype, device=device) if is_apart else reference


@torch.inference_mode()
def native_path(
    reference: PagedModel, expected: Sequence[torch.Tensor], *, release: bool = False, int8: bool = False
) -> NativeModel | None:
    """The compiled path beside the reference, or None where it is not the fastest or does not agree; the log says why.

    `expected` is the reference's `every_logit`. Where told to release them, the reference loses its weights as they are
    taken: no two copies are held. With `int8` its weights are rounded to 8 bits.
    """
    if not is_fastest(reference.shape.dtype, reference.shape.head_dim, reference.device):
        return None
    try:
        native = NativeModel(
            reference.name,
            reference.causal_lm,
            reference.shape,
            context_length=reference.context_length,
            release=release,
            int8=int8,
        )
        reason = selftest.disagreement(native, expected, selftest.INT8_TOLERANCE if int8 else None)
    except NotLeanError:  # nor does the lean path, which says so
        return None
    except (AttributeError, MemoryError, RuntimeError) as error:  # it only looks like one of the family
        reason = str(error).partition("\n")[0]
    if reason is None:
        return native
    _log.warning("%s is not served by compiled code, slower: %s", reference.name, reason)
    return None


@torch.inference_mode()
def lean_path(reference: PagedModel, expected: Sequence[torch.Tensor] | None = None) -> LeanModel | None:
    """The lean path beside the reference, on the fastest attention with which they agree, or None; the log says why."""
    reasons: list[str] = []
    try:
        expected = expected or selftest.every_logit(reference)
        weights = take_weights(reference.causal_lm)
        for backend in fastest_backends(reference.shape, reference.device):
            lean = LeanModel(
                reference.name, weights, reference.shape, context_length=reference.context_length, backend=backend
            )
            reason = _reason(lean, expected)
            if reason is None:
                return _found(lean, reasons)
            reasons.append(f"with {backend} attention {reason}")
    except (NotLeanError, AttributeError, RuntimeError) as error:  # or it only looks like one of the family
        reasons.append(str(error).partition("\n")[0])
    _log.warning("%s is served by transformers' modules, slower: %s", reference.name, "; ".join(reasons))
    return None


def _reason(lean: LeanModel, expected: Sequence[torch.Tensor]) -> str | None:
    """Why the lean path may not serve on its attention: on another it may."""
    try:
        return selftest.disagreement(lean, expected)
    except Exception as error:  # noqa: BLE001 - a kernel may not compile, and a compiler may fail in any way
        return f"it fails: {in_short(error)}"


def _give_back() -> None:
    """Hand to the system what the reference took: transformers' modules refer to each other in circles, and glibc keeps
    what was freed; so does torch of a GPU's memory, which would be missing from the KV pool."""
    gc.collect()
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.empty_cache()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _found(lean: LeanModel, reasons: list[str]) -> LeanModel:
    if reasons:
        _log.warning("%s is served with %s attention, slower: %s", lean.name, lean.backend, "; ".join(reasons))
    return lean
