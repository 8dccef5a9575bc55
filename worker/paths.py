"""Which of the two paths serves: the lean one where it proves to compute what transformers' modules compute."""

import gc
import logging
import time

import torch

from worker import selftest
from worker.attention import fastest_backends
from worker.lean import LeanModel
from worker.lean_weights import NotLeanError, take_weights
from worker.model import Model, PagedModel, load
from worker.model_files import ModelFiles

_log = logging.getLogger(__name__)


def load_fastest(files: ModelFiles, *, dtype: str = "auto", device: str = "auto") -> Model:
    """Load and prove the reference, then the lean path, and keep only the one that serves. Raises ModelError."""
    reference = load(files, dtype=dtype, device=device)
    selftest.prove(reference)
    began = time.perf_counter()
    lean = lean_path(reference)
    if lean is None:
        return reference
    _log.info(
        "the lean path of %s, on %s attention, is proven in %.1f s",
        files.name,
        lean.backend,
        time.perf_counter() - began,
    )
    del reference
    gc.collect()  # transformers' modules refer to each other in circles
    return lean


@torch.inference_mode()
def lean_path(reference: PagedModel) -> LeanModel | None:
    """The lean path beside the reference, on the fastest attention with which they agree, or None; the log says why."""
    reasons: list[str] = []
    try:
        weights = take_weights(reference.causal_lm)
        for backend in fastest_backends(reference.shape, reference.device):
            lean = LeanModel(
                reference.name, weights, reference.shape, context_length=reference.context_length, backend=backend
            )
            reason = _reason(lean, reference)
            if reason is None:
                return _found(lean, reasons)
            reasons.append(f"with {backend} attention {reason}")
    except (NotLeanError, AttributeError, RuntimeError) as error:  # or it only looks like one of the family
        reasons.append(str(error).partition("\n")[0])
    _log.warning("%s is served by transformers' modules, slower: %s", reference.name, "; ".join(reasons))
    return None


def _reason(lean: LeanModel, reference: PagedModel) -> str | None:
    """Why the lean path may not serve on its attention: on another it may."""
    try:
        return selftest.disagreement(lean, reference)
    except RuntimeError as error:
        return f"it fails: {str(error).partition(chr(10))[0]}"


def _found(lean: LeanModel, reasons: list[str]) -> LeanModel:
    if reasons:
        _log.warning("%s is served with %s attention, slower: %s", lean.name, lean.backend, "; ".join(reasons))
    return lean
