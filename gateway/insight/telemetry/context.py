"""Context variables of a request's task: its trace and its id."""

from contextvars import ContextVar

# The `traceparent` for a worker to continue, and the request's id. Either may be empty.
CARRIED: ContextVar[tuple[str, str]] = ContextVar("carried", default=("", ""))


def traceparent() -> str:
    """Return the `traceparent` for a worker to continue: the caller's own without tracing; may be empty."""
    return CARRIED.get()[0]


def request_id() -> str:
    """Return the id of this task's request; empty outside a request."""
    return CARRIED.get()[1]
