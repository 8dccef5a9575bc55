"""All that this gateway measures: every metric and span name of it stands here, every label is of a closed set.

No prompt, completion or key anywhere: spans and labels carry ids, counts and words of ours.
"""

import functools
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar, Token
from typing import Generic, TypeVar

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, ParentBased
from opentelemetry.trace import NoOpTracerProvider, Span, SpanKind, Status, StatusCode, Tracer
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from gateway.directory import Model
from quotas.store import Charge

SERVICE = "fairlane-gateway"
PROVIDER = "fairlane"
SPANS = ("authenticate", "reserve", "admit", "queue", "settle")
"""Children of a request's own span."""

_PREFIX = "fairlane_gateway_"
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
_TOKEN_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.5, 1.0, 2.5)
_OTHER = "other"
_propagator = TraceContextTextMapPropagator()
_NO_SPAN = nullcontext(trace.INVALID_SPAN)
_unrecorded: ContextVar[str | None] = ContextVar("unrecorded", default=None)
"""The `traceparent` that a request carries on of which no span is kept; None: spans are kept, if anywhere."""


def tracer_provider(exporter: SpanExporter | None) -> TracerProvider | None:
    """Sends spans where the exporter does; None where there is none. Which requests have any, `Telemetry` decides."""
    if exporter is None:
        return None
    provider = TracerProvider(resource=Resource.create({"service.name": SERVICE}), sampler=ParentBased(ALWAYS_ON))
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return provider


M = TypeVar("M", Counter, Gauge, Histogram)


class Labelled(Generic[M]):
    """A metric whose children are looked up once for each set of labels, of which there are few."""

    def __init__(self, metric: M) -> None:
        self.labels: Callable[..., M] = functools.cache(metric.labels)


class Telemetry:
    """The metrics in a registry of their own, and the tracer."""

    def __init__(self, provider: TracerProvider | None = None, *, sample: float = 1.0, max_tenants: int = 100) -> None:
        """`sample`: share of requests without a caller's trace that start one."""
        self._is_tracing = provider is not None
        self._sample = sample
        self._tracer: Tracer = (provider or NoOpTracerProvider()).get_tracer(SERVICE)
        self._max_tenants = max_tenants
        self._tenants: set[str] = set()
        self.registry = CollectorRegistry()
        self.requests = self._counter(
            "requests", "Requests by how they ended; code: ok, or the error's", "endpoint", "lane", "code"
        )
        self.flights = self._counter(
            "flights", "Jobs by how they ended; what was refused is no flight", "lane", "outcome"
        )
        self.tokens = self._counter(
            "tokens", "Tokens charged; tenants beyond the first few count as `other`", "tenant", "lane", "kind"
        )
        self.preemptions = self._counter("preemptions", "Preemptions that jobs went through", "lane")
        self.in_flight = self._gauge("in_flight", "Requests admitted and not ended", "lane")
        self.time_to_first_token = self._histogram(
            "time_to_first_token_seconds", "From arrival to the first token", _SECONDS
        )
        self.time_per_output_token = self._histogram(
            "time_per_output_token_seconds", "Mean time from one token of a request to the next", _TOKEN_SECONDS
        )
        self.duration = self._histogram("request_duration_seconds", "From arrival to the end of the answer", _SECONDS)
        self.queued = self._gauge("lane_queued", "Jobs that wait for a worker", "model", "lane")
        self.oldest_wait = self._gauge("lane_oldest_wait_seconds", "Age of the oldest", "model", "lane")
        self.workers = self._gauge("workers", "Workers that take jobs of a model", "model")
        self.store_up = self._level("store_up", "1 while the store answers")
        self.quota_store_up = self._level("quota_store_up", "1 while the store of budgets answers")
        self.store_openings = self._level("store_openings", "Times so far that a store was found to be away")
        self.unreported = self._level("unreported", "Requests admitted without the store, and not charged there yet")
        self.settlements_in_hand = self._level("settlements_in_hand", "Settlements that wait for a worker or the store")
        self.reaped = self._level("reaped", "Lapsed reservations settled here so far")
        self.wasted_tokens = self._level("wasted_tokens", "Tokens published here so far that nobody is charged")

    def tenant_label(self, tenant: str) -> str:
        """The tenant's name in metrics: the first few by name, the others together."""
        if tenant not in self._tenants and len(self._tenants) < self._max_tenants:
            self._tenants.add(tenant)
        return tenant if tenant in self._tenants else _OTHER

    def charged(self, tenant: str, lane: str, charge: Charge) -> None:
        """One flight's settlement."""
        name = self.tenant_label(tenant)
        self.tokens.labels(name, lane, "prompt").inc(charge.prompt_tokens)
        self.tokens.labels(name, lane, "output").inc(charge.output_tokens)
        self.flights.labels(lane, charge.outcome).inc()
        self.preemptions.labels(lane).inc(charge.preemptions)

    def observe_fleet(self, models: Iterable[Model]) -> None:
        """The last picture of queues and workers."""
        for model in models:
            self.workers.labels(model.name).set(sum(not worker.draining for worker in model.workers))
            for lane, depth in model.depths.items():
                self.queued.labels(model.name, lane.value).set(depth.queued)
                self.oldest_wait.labels(model.name, lane.value).set(depth.oldest_wait_ms / 1e3)

    def _counter(self, name: str, documentation: str, *labels: str) -> Labelled[Counter]:
        return Labelled(Counter(f"{_PREFIX}{name}", documentation, labels, registry=self.registry))

    def _gauge(self, name: str, documentation: str, *labels: str) -> Labelled[Gauge]:
        return Labelled(Gauge(f"{_PREFIX}{name}", documentation, labels, registry=self.registry))

    def _level(self, name: str, documentation: str) -> Gauge:
        return Gauge(f"{_PREFIX}{name}", documentation, registry=self.registry)

    def _histogram(self, name: str, documentation: str, buckets: tuple[float, ...]) -> Labelled[Histogram]:
        found = Histogram(f"{_PREFIX}{name}", documentation, ["lane"], buckets=buckets, registry=self.registry)
        return Labelled(found)

    def exposition(self) -> bytes:
        """Prometheus' text. Takes a while where there are many tenants: call it in a thread."""
        return generate_latest(self.registry)

    def request_span(self, name: str, headers: Sequence[tuple[bytes, bytes]]) -> AbstractContextManager[Span]:
        """One request's own span, in the caller's trace if it sent one.

        The share of requests that is not traced costs hardly anything: it is drawn here, before a span is made.
        """
        context = _callers_context(headers)
        if context is None:
            if not self._is_tracing:
                return _Unrecorded("")
            if random.random() >= self._sample:
                return _Unrecorded(_unsampled())
        span = self._tracer.start_span(name, context=context, kind=SpanKind.SERVER, record_exception=False)
        if span.is_recording():
            return trace.use_span(span, end_on_exit=True, record_exception=False)
        return _Unrecorded(_traceparent(trace.set_span_in_context(span)))

    def span(self, name: str) -> AbstractContextManager[Span]:
        """A child of the current span, for the length of a block that has none itself."""
        if not is_recording():
            return _NO_SPAN
        return _Child(self._tracer.start_span(name))

    def open_span(self, name: str) -> Span:
        """A child of the current span that its owner ends."""
        return self._tracer.start_span(name) if is_recording() else trace.INVALID_SPAN


class _Unrecorded:
    """A request of which no span is kept, that only carries a trace's id on: nine requests of ten, so cheap."""

    __slots__ = ("_token", "_traceparent")

    def __init__(self, traceparent: str) -> None:
        self._traceparent = traceparent
        self._token: Token[str | None] | None = None

    def __enter__(self) -> Span:
        self._token = _unrecorded.set(self._traceparent)
        return trace.INVALID_SPAN

    def __exit__(self, *_: object) -> None:
        if self._token is not None:
            _unrecorded.reset(self._token)


class _Child:
    """A span for the length of a block, that is never the current one: what begins within is no child of it."""

    __slots__ = ("_span",)

    def __init__(self, span: Span) -> None:
        self._span = span

    def __enter__(self) -> Span:
        return self._span

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        if error is not None:
            self._span.set_status(Status(StatusCode.ERROR, type(error).__name__))
        self._span.end()


def is_recording() -> bool:
    """Spans of this task's request are kept: what they would say is worth finding out."""
    return _unrecorded.get() is None and trace.get_current_span().is_recording()


def traceparent() -> str:
    """The current span for a worker to continue; the caller's own where we trace nothing; empty where there is none."""
    carried = _unrecorded.get()
    return _traceparent() if carried is None else carried


def _traceparent(context: Context | None = None) -> str:
    carrier: dict[str, str] = {}
    _propagator.inject(carrier, context)
    return carrier.get("traceparent", "")


def _unsampled() -> str:
    """A new trace of which nobody is to keep anything (W3C Trace Context, version 00)."""
    return f"00-{random.getrandbits(128) or 1:032x}-{random.getrandbits(64) or 1:016x}-00"


def _callers_context(headers: Sequence[tuple[bytes, bytes]]) -> Context | None:
    """The caller's trace; None where it sent none that is well-formed."""
    carrier = {
        name.decode(): value.decode("latin-1") for name, value in headers if name in (b"traceparent", b"tracestate")
    }
    if not carrier:
        return None
    context = _propagator.extract(carrier)
    return context if trace.get_current_span(context).get_span_context().is_valid else None


def set_attributes(span: Span, attributes: Mapping[str, str | int | float | bool | None]) -> None:
    """Those that are there."""
    if span.is_recording():
        span.set_attributes({name: value for name, value in attributes.items() if value is not None})


def current_span() -> Span:
    """The innermost span of this task."""
    return trace.get_current_span()
