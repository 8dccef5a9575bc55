"""The models of `tests/support/worker/models.py`, on one thread."""

from tests.support.worker.models import default_files, default_model, one_thread, tiny

__all__ = ["default_files", "default_model", "one_thread", "tiny"]
