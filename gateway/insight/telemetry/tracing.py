"""Spans of traced requests, built cheaply and passed to OpenTelemetry's processor when they end.

OpenTelemetry's own tracer runs a sampler, limits, locks and metrics for every span. With six spans per request, tracing
would cost more than serving."""

import random
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags

Value = str | int | float | bool | Sequence[str]
_SAMPLED_ROOT = TraceFlags(TraceFlags.SAMPLED | TraceFlags.RANDOM_TRACE_ID)
_UNSET = Status(StatusCode.UNSET)
_TRACEPARENT = re.compile("(?!ff)[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")
MOST_LINKS = 8


class Span:
    """A span that is not recorded. As a context it ends itself."""

    __slots__ = ()

    is_recording = False

    def child(self, name: str) -> "Span":
        return self

    def set(self, attributes: Mapping[str, Value | None]) -> None: ...

    def fail(self, why: str) -> None: ...

    def link(self, traceparent: str) -> None: ...

    def end(self, at_ns: int | None = None) -> None:
        """End the span; only the first call counts. `at_ns` is in epoch nanoseconds, now by default."""

    def end_after(self, seconds: float) -> None: ...

    def began_ago(self, seconds: float) -> None: ...

    def __enter__(self) -> "Span":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None: ...


NO_SPAN = Span()


class _Own(Resource):
    """A resource compared by identity: exporters look it up for each span, and its own hash encodes JSON."""

    __eq__ = object.__eq__
    __hash__ = object.__hash__


class Spans:
    """Creates the recorded spans of one service and passes them to the processor."""

    def __init__(self, service: str, processor: SpanProcessor) -> None:
        made = Resource.create({"service.name": service, "service.version": metadata.version("fairlane")})
        self._resource = _Own(made.attributes, made.schema_url)
        self._scope = InstrumentationScope(service)
        self._processor = processor

    def root(self, name: str, caller: SpanContext | None) -> "Kept":
        if caller is None:
            context = SpanContext(random.getrandbits(128) or 1, span_id(), is_remote=False, trace_flags=_SAMPLED_ROOT)
        else:
            context = _within(caller)
        return Kept(self, name, context, caller, SpanKind.SERVER)

    def ended(self, span: "Kept", at_ns: int) -> None:
        self._processor.on_end(
            ReadableSpan(
                span.name,
                context=span.context,
                parent=span.parent,
                resource=self._resource,
                attributes=span.attributes,
                links=span.links,
                kind=span.kind,
                status=span.status,
                start_time=span.began_ns,
                end_time=at_ns,
                instrumentation_scope=self._scope,
            )
        )


@dataclass(slots=True, eq=False)
class Kept(Span):
    """A span that is recorded."""

    _spans: Spans
    name: str
    context: SpanContext
    parent: SpanContext | None
    kind: SpanKind
    attributes: dict[str, Value] = field(default_factory=dict)
    links: list[Link] = field(default_factory=list)
    status: Status = _UNSET
    began_ns: int = field(default_factory=time.time_ns)
    is_recording: bool = True

    @property
    def traceparent(self) -> str:
        context = self.context
        return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"

    def child(self, name: str) -> "Kept":
        return Kept(self._spans, name, _within(self.context), self.context, SpanKind.INTERNAL)

    def set(self, attributes: Mapping[str, Value | None]) -> None:
        self.attributes.update({name: value for name, value in attributes.items() if value is not None})

    def fail(self, why: str) -> None:
        self.status = Status(StatusCode.ERROR, why)

    def link(self, traceparent: str) -> None:
        linked = context_of(traceparent)
        if linked is not None and linked.span_id != self.context.span_id and len(self.links) < MOST_LINKS:
            self.links.append(Link(linked))

    def end(self, at_ns: int | None = None) -> None:
        if self.is_recording:
            self.is_recording = False
            self._spans.ended(self, time.time_ns() if at_ns is None else at_ns)

    def began_ago(self, seconds: float) -> None:
        self.began_ns = time.time_ns() - int(seconds * 1e9)

    def end_after(self, seconds: float) -> None:
        self.end(min(time.time_ns(), self.began_ns + int(seconds * 1e9)))

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if error is not None:
            kind_of_error = str(getattr(error, "code", type(error).__name__))
            self.fail(kind_of_error)
            self.set({"error.type": kind_of_error})
        self.end()


def span_id() -> int:
    """Return a random span id."""
    return random.getrandbits(64) or 1


def context_of(traceparent: str) -> SpanContext | None:
    """Parse a `traceparent`; None if it is malformed."""
    found = _TRACEPARENT.fullmatch(traceparent)
    if found is None:
        return None
    trace_id, parent, flags = (int(part, 16) for part in found.groups())
    context = SpanContext(trace_id, parent, is_remote=True, trace_flags=TraceFlags(flags))
    return context if context.is_valid else None


def _within(of: SpanContext) -> SpanContext:
    return SpanContext(of.trace_id, span_id(), is_remote=False, trace_flags=of.trace_flags, trace_state=of.trace_state)
