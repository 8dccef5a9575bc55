"""Errors that prevent a worker from serving, each with a one-line message. They need no torch."""


class EngineError(Exception):
    """The engine cannot be opened."""


class ModelError(Exception):
    """The model cannot be served."""
