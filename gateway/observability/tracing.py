"""Spans of the requests that are traced, made in a few steps each and given to OpenTelemetry's processor at their end.

Its own tracer asks a sampler, limits, locks and metrics for every span: a request that has six of them would pay more
for being traced than for being answered. Which requests are traced at all, `gateway.observability.metrics` decides.
"""

import random
import time
from collections.abc import Mapping

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

Value = str | int | float | bool
_SAMPLED_ROOT = TraceFlags(TraceFlags.SAMPLED | TraceFlags.RANDOM_TRACE_ID)
_UNSET = Status(StatusCode.UNSET)


class Span:
    """One that nobody keeps. A context that ends it."""

    __slots__ = ()

    @property
    def is_recording(self) -> bool:
        """What it is told is kept."""
        return False

    def tell(self, attributes: Mapping[str, Value | None]) -> None:
        """Those that are there."""

    def fail(self, why: str) -> None:
        """It has ended in an error."""

    def end(self) -> None:
        """Once."""

    def __enter__(self) -> "Span":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        """Nothing to do."""


NO_SPAN = Span()


class _Own(Resource):
    """What all our spans are of: exporters look it up for each, and by its attributes it is found from their JSON."""

    __eq__ = object.__eq__
    __hash__ = object.__hash__


class Spans:
    """Where those go that are kept, all of one service."""

    def __init__(self, service: str, processor: SpanProcessor) -> None:
        made = Resource.create({"service.name": service})
        self._resource = _Own(made.attributes, made.schema_url)
        self._scope = InstrumentationScope(service)
        self._processor = processor

    def root(self, name: str, caller: SpanContext | None) -> "Kept":
        """A request's own, in the caller's trace if there is one."""
        if caller is None:
            context = SpanContext(random.getrandbits(128) or 1, span_id(), is_remote=False, trace_flags=_SAMPLED_ROOT)
        else:
            context = _within(caller)
        return Kept(self, name, context, caller, SpanKind.SERVER)

    def ended(self, span: "Kept") -> None:
        """Give it to the processor."""
        self._processor.on_end(
            ReadableSpan(
                span.name,
                context=span.context,
                parent=span.parent,
                resource=self._resource,
                attributes=span.attributes,
                kind=span.kind,
                status=span.status,
                start_time=span.began_ns,
                end_time=time.time_ns(),
                instrumentation_scope=self._scope,
            )
        )


class Kept(Span):
    """One that is kept."""

    __slots__ = ("_spans", "attributes", "began_ns", "context", "has_ended", "kind", "name", "parent", "status")

    def __init__(
        self, spans: Spans, name: str, context: SpanContext, parent: SpanContext | None, kind: SpanKind
    ) -> None:
        self._spans = spans
        self.name = name
        self.context = context
        self.parent = parent
        self.kind = kind
        self.attributes: dict[str, Value] = {}
        self.status = _UNSET
        self.began_ns = time.time_ns()
        self.has_ended = False

    @property
    def is_recording(self) -> bool:
        """What it is told is kept."""
        return not self.has_ended

    @property
    def traceparent(self) -> str:
        """For a worker to continue (W3C Trace Context, version 00)."""
        context = self.context
        return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"

    def child(self, name: str) -> "Kept":
        """A stage of it."""
        return Kept(self._spans, name, _within(self.context), self.context, SpanKind.INTERNAL)

    def tell(self, attributes: Mapping[str, Value | None]) -> None:
        """Those that are there."""
        self.attributes.update({name: value for name, value in attributes.items() if value is not None})

    def fail(self, why: str) -> None:
        """It has ended in an error."""
        self.status = Status(StatusCode.ERROR, why)

    def end(self) -> None:
        """Once."""
        if not self.has_ended:
            self.has_ended = True
            self._spans.ended(self)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if error is not None:
            self.fail(type(error).__name__)
        self.end()


def span_id() -> int:
    """A fresh one."""
    return random.getrandbits(64) or 1


def _within(of: SpanContext) -> SpanContext:
    """Of a new span in the same trace."""
    return SpanContext(of.trace_id, span_id(), is_remote=False, trace_flags=of.trace_flags, trace_state=of.trace_state)
