"""Which of the two paths serves: the lean one where it proves to compute what transformers' modules compute."""

import gc
import logging
import time

import torch

from worker import selftest
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
    _log.info("the lean path of %s is proven, in %.1f s", files.name, time.perf_counter() - began)
    del reference
    gc.collect()  # transformers' modules refer to each other in circles
    return lean


@torch.inference_mode()
def lean_path(reference: PagedModel) -> LeanModel | None:
    """The lean path beside the reference, or None where it yields; the log says why."""
    try:
        lean = LeanModel(
            reference.name,
            take_weights(reference.causal_lm),
            reference.shape,
            context_length=reference.context_length,
            backend=reference.backend,
        )
        why_not = selftest.disagreement(lean, reference)
    except NotLeanError as reason:
        why_not = str(reason)
    except (RuntimeError, AttributeError, TypeError) as error:  # a model that only looks like one of the family
        why_not = f"{type(error).__name__}: {error}".partition("\n")[0]
    if why_not is None:
        return lean
    _log.warning("%s is served by transformers' modules, slower: %s", reference.name, why_not)
    return None
