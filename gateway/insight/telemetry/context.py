"""The context variable of a request's task: its trace and its id."""

from contextvars import ContextVar

import msgspec

from fairlane.gateway.insight.telemetry.tracing import NO_SPAN, Span


class Carried(msgspec.Struct, frozen=True):
    """What the task of a request carries; outside a request the default values."""

    # The root span.
    span: Span = NO_SPAN
    # For a worker to continue: the caller's own without tracing; may be empty.
    traceparent: str = ""
    request_id: str = ""


_NO_REQUEST = Carried()
CARRIED: ContextVar[Carried] = ContextVar("carried", default=_NO_REQUEST)
