"""All metrics of a gateway, and its tracer. Labels have closed sets of values; no label or span contains content."""

import platform
import random
from collections.abc import Iterable, Sequence
from functools import partial
from importlib import metadata

from opentelemetry.sdk.trace import SpanProcessor
from opentelemetry.trace import SpanContext
from prometheus_client import CollectorRegistry, Gauge, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

from fairlane.gateway.insight.fleet_metrics.recorder import Ended, Recorder
from fairlane.gateway.insight.telemetry.collectors import Distribution, FastCounter, Labels, Series, Total
from fairlane.gateway.insight.telemetry.context import CARRIED, Carried
from fairlane.gateway.insight.telemetry.fleet_gauges import FleetGauges
from fairlane.gateway.insight.telemetry.tracing import NO_SPAN, Span, Spans, context_of, span_id
from fairlane.quotas.store import Charge

SERVICE = "fairlane-gateway"
PROVIDER = "fairlane"

_PREFIX = "fairlane_gateway_"
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0)
_TOKEN_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.5, 1.0, 2.5)
_OTHER = "other"
# Tenant label of requests without a valid key.
_NO_TENANT = "none"
VERSION = metadata.version("fairlane")


class Telemetry:
    """The metrics, in their own registry, and the tracer."""

    def __init__(self, processor: SpanProcessor | None = None, *, sample: float = 1.0, max_tenants: int = 0) -> None:
        """`processor` receives ended spans; None disables tracing. `sample` is the share of requests without a caller's
        trace that are traced. `max_tenants` bounds the tenants with their own label; 0 drops the label."""
        self._spans = None if processor is None else Spans(SERVICE, processor)
        self._sample = sample
        self._max_tenants = max_tenants
        self._tenants: set[str] = set()
        self.fleet_metrics = Recorder()
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self.fleet = FleetGauges(self.registry)
        by_tenant = ("tenant",) if max_tenants else ()
        self._requests(by_tenant)
        self._latencies(by_tenant)
        self._state()
        self._batches()

    def _requests(self, by_tenant: Labels) -> None:
        self.requests = self._counter(
            "requests", "Number of requests by their end; `code` is `ok` or the error's.", "endpoint", "lane", "code"
        )
        self.refusals = self._counter("refusals", "Number of requests that ended with an error.", *by_tenant, "code")
        self.replays = self._counter("replays", "Number of responses replayed for an idempotency key.", "endpoint")
        self.shadow_refusals = self._counter(
            "shadow_refusals", "Number of requests admitted despite a limit in shadow mode.", *by_tenant, "limit"
        )
        self.jobs = self._counter("flights", "Number of jobs of admitted requests by their end.", "lane", "outcome")
        self.tokens = self._counter(
            "tokens", "Number of tokens charged; tenants after the first few are `other`.", *by_tenant, "lane", "kind"
        )
        self.preemptions = self._counter("preemptions", "Number of preemptions of jobs.", "lane")
        in_flight = f"{_PREFIX}in_flight", "Number of requests admitted and not ended."
        self.in_flight = FastCounter(partial(GaugeMetricFamily, *in_flight, labels=("lane",)), self.registry)

    def _latencies(self, by_tenant: Labels) -> None:
        labels = ("lane", "model", *by_tenant)
        self.time_to_first_token = self._histogram(
            "time_to_first_token_seconds", "Time from a request's arrival to its first token, in seconds.", labels
        )
        self.queue_wait = self._histogram(
            "queue_wait_seconds", "Time from enqueueing a job to the step that begins its prefill, in seconds.", labels
        )
        self.time_per_output_token = self._histogram(
            "time_per_output_token_seconds", "Mean time between a request's tokens, in seconds.", labels, _TOKEN_SECONDS
        )
        self.inter_token_gap = self._histogram(
            "inter_token_gap_seconds",
            "Time between arrivals of a request's tokens, in seconds.",
            labels,
            _TOKEN_SECONDS,
        )
        self.duration = self._histogram("request_duration_seconds", "Time to a response's end, in seconds.", labels)

    def _state(self) -> None:
        self.store_up = self._gauge("store_up", "1 while the store answers, else 0.")
        self.quota_store_up = self._gauge("quota_store_up", "1 while the store of budgets answers, else 0.")
        self.store_fault = self._gauge("store_fault", "1 while the last check found this fault, else 0.", "fault")
        self.store_openings = self._total("store_openings", "Number of times that a store became unavailable.")
        self.connections = self._gauge("connections", "Number of open connections of the tenants' port.")
        self.most_connections = self._gauge("max_connections", "Maximum number of connections of the tenants' port.")
        self.connections_cut = self._total("connections_cut", "Number of connections without a key closed for others.")
        self.malformed = self._total("malformed_requests", "Number of requests that are invalid HTTP or too large.")
        self.unreported = self._gauge(
            "unreported", "Number of requests admitted without the store and not charged yet."
        )
        self.settlements_in_hand = self._gauge("settlements_in_hand", "Number of settlements that are not finished.")
        self.reaped = self._total("reaped", "Number of lapsed reservations of dead gateways that were settled here.")
        self.records_dropped = self._total("request_records_dropped", "Number of requests that ended without a record.")
        self.ledger_exported = self._total("ledger_exported", "Number of entries of the ledger exported here.")
        self.ledger_lost = self._total("ledger_lost", "Number of entries of the ledger dropped before their export.")
        self.wasted_tokens = self._total("wasted_tokens", "Number of tokens received here without being charged.")
        self.links = self._gauge("links", "Number of open links from workers.")
        self.links_refused = self._total(
            "links_refused", "Number of workers' connections that proved no right to a link."
        )
        self.links_lost = self._total("links_lost", "Number of links that ended while they carried jobs.")
        build = self._gauge("build_info", "1, with the versions of Fairlane and Python as labels.", "version", "python")
        build.labels(VERSION, platform.python_version()).set(1)

    def _batches(self) -> None:
        self.batches_open = self._gauge("batches_open", "Number of batches that this gateway runs.")
        self.batches = self._counter(
            "batches", "Number of batches that ended here: completed, failed, expired or cancelled.", "status"
        )
        self.batch_lines = self._counter(
            "batch_lines",
            "Number of lines of batches by their end: completed, failed, expired or cancelled.",
            "outcome",
        )

    def _whose(self, tenant: str) -> Labels:
        if not self._max_tenants:
            return ()
        if not tenant:
            return (_NO_TENANT,)
        if tenant not in self._tenants and len(self._tenants) < self._max_tenants:
            self._tenants.add(tenant)
        return (tenant if tenant in self._tenants else _OTHER,)

    def ended(self, request: Ended, *, endpoint: str, model: str, is_refusal: bool, took_s: float) -> None:
        """Count a finished request. Latencies include only requests with a response, whole or in part."""
        lane, code, ttft_s = request.lane, request.code, request.ttft_s
        self.requests.add(endpoint, lane, code)
        whose = self._whose(request.tenant)
        if is_refusal:
            self.refusals.add(*whose, code)
        if ttft_s is not None:
            self.time_to_first_token.series(lane, model, *whose).observe(ttft_s)
        if ttft_s is not None or not is_refusal:
            self.duration.series(lane, model, *whose).observe(took_s)
        self.fleet_metrics.ended(request)

    def gaps(self, lane: str, model: str, tenant: str) -> Series:
        return self.inter_token_gap.series(lane, model, *self._whose(tenant))

    def generated(self, lane: str, model: str, tenant: str, *, queued_s: float | None, pace_s: float | None) -> None:
        """Count a finished generation: time until its prefill, and mean time per token. None if unknown."""
        whose = self._whose(tenant)
        if queued_s is not None:
            self.queue_wait.series(lane, model, *whose).observe(queued_s)
        if pace_s is not None:
            self.time_per_output_token.series(lane, model, *whose).observe(pace_s)

    def refused_line(self, tenant: str, code: str) -> None:
        self.refusals.add(*self._whose(tenant), code)

    def charged(self, tenant: str, lane: str, charge: Charge) -> None:
        whose = self._whose(tenant)
        self.tokens.add(*whose, lane, "prompt", by=charge.prompt_tokens)
        self.tokens.add(*whose, lane, "output", by=charge.output_tokens)
        self.jobs.add(lane, charge.outcome)
        self.fleet_metrics.charged(tenant, charge.output_tokens)
        self.preemptions.add(lane, by=charge.preemptions)

    def shadowed(self, tenant: str, limits: Iterable[str]) -> None:
        for limit in set(limits):
            self.shadow_refusals.add(*self._whose(tenant), limit)

    def _counter(self, name: str, documentation: str, *labels: str) -> FastCounter:
        return FastCounter(partial(CounterMetricFamily, _PREFIX + name, documentation, labels=labels), self.registry)

    def _total(self, name: str, documentation: str) -> Total:
        return Total(f"{_PREFIX}{name}", documentation, self.registry)

    def _gauge(self, name: str, documentation: str, *labels: str) -> Gauge:
        return Gauge(f"{_PREFIX}{name}", documentation, labels, registry=self.registry)

    def _histogram(
        self, name: str, documentation: str, labels: Labels, bounds: tuple[float, ...] = _SECONDS
    ) -> Distribution:
        family = partial(HistogramMetricFamily, _PREFIX + name, documentation, labels=labels)
        return Distribution(family, bounds, self.registry)

    def exposition(self) -> bytes:
        """Return the metrics in Prometheus' text format. Slow with many tenants: call it in a thread."""
        return generate_latest(self.registry)

    def request_span(
        self, name: str, headers: Sequence[tuple[bytes, bytes]], request_id: str, link: str = ""
    ) -> "_Request":
        """Return the context of a request's root span, in the caller's trace if it sent one; `link`: a traceparent.

        Sampling is decided before a span is made."""
        caller = _callers_trace(headers)
        if self._spans is None:
            trace = "" if caller is None else _traceparent(caller.trace_id, caller)
        elif caller is None and random.random() >= self._sample:
            trace = _traceparent(random.getrandbits(128) or 1)
        elif caller is not None and not caller.trace_flags.sampled:
            trace = _traceparent(caller.trace_id)
        else:
            span = self._spans.root(name, caller)
            span.link(link)
            return _Request(Carried(span, span.traceparent, request_id))
        return _Request(Carried(NO_SPAN, trace, request_id))

    def span(self, name: str) -> Span:
        """Start a span for a stage of this task's request. It does not become the parent of spans started within it."""
        request = CARRIED.get().span
        return request.child(name) if request.is_recording else NO_SPAN


class _Request:
    __slots__ = ("_before", "_carried")

    def __init__(self, carried: Carried) -> None:
        self._carried = carried

    def __enter__(self) -> Span:
        self._before = CARRIED.set(self._carried)
        return self._carried.span

    def __exit__(self, *error: object) -> None:
        CARRIED.reset(self._before)
        self._carried.span.end()


def _traceparent(trace_id: int, caller: SpanContext | None = None) -> str:
    """Return a `traceparent` (W3C Trace Context) without a new span: the caller's, or one that is not sampled."""
    parent, flags = (span_id(), 0) if caller is None else (caller.span_id, caller.trace_flags)
    return f"00-{trace_id:032x}-{parent:016x}-{flags:02x}"


def _callers_trace(headers: Sequence[tuple[bytes, bytes]]) -> SpanContext | None:
    given = None
    for name, value in headers:
        if name == b"traceparent":
            given = value
    return None if given is None else context_of(given.decode("latin-1").strip())
