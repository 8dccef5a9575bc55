"""The models of the worker's tests, for benchmarks that put work into an engine."""

from tests.worker.conftest import default_files, default_model, tiny

__all__ = ["default_files", "default_model", "tiny"]
