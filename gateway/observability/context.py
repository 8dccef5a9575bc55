"""What is known everywhere within a request's task: its place in a trace, and its id."""

from contextvars import ContextVar

CARRIED: ContextVar[tuple[str, str]] = ContextVar("carried", default=("", ""))
"""The `traceparent` that a worker continues, and the request's id; each empty where there is none."""


def traceparent() -> str:
    """This task's request for a worker to continue; the caller's own where we trace nothing; empty where none is."""
    return CARRIED.get()[0]


def request_id() -> str:
    """This task's request, as its answer names it; empty where none is."""
    return CARRIED.get()[1]
