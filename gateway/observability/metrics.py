"""All that this gateway measures: every metric and span name of it stands here, every label is of a closed set.

No prompt, completion or key anywhere: spans and labels carry ids, counts and words of ours.

Metrics that every request adds to: an entry of a dict each, made Prometheus' own only when somebody reads them.

The library's children take a lock and four calls for each step of a counter, and a request takes a dozen of them.
Written in the event loop's thread alone, read in any.
"""

import asyncio
import logging
import random
import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from contextvars import ContextVar
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.trace import SpanProcessor
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.trace import SpanContext
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from prometheus_client import CollectorRegistry, Gauge, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from fairlane.gateway.config import Member
from fairlane.gateway.fleet import ServedModel
from fairlane.gateway.observability.tracing import NO_SPAN, Kept, Span, Spans, span_id
from fairlane.quotas.store import Charge

Labels = tuple[str, ...]


class FastCounter(Collector):
    """Sums by their labels: a counter, or a gauge that goes up and down."""

    def __init__(
        self,
        kind: type[CounterMetricFamily] | type[GaugeMetricFamily],
        name: str,
        documentation: str,
        labels: Sequence[str],
        registry: CollectorRegistry,
    ) -> None:
        self._family: Callable[[], CounterMetricFamily | GaugeMetricFamily]
        self._family = partial(kind, name, documentation, labels=labels)
        self._sums: defaultdict[Labels, float] = defaultdict(float)
        registry.register(self)

    def add(self, *labels: str, by: float = 1.0) -> None:
        """Count."""
        self._sums[labels] += by

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        """As the library writes it."""
        family = self._family()
        for labels, value in list(self._sums.items()):
            family.add_metric(labels, value)
        yield family


class Total(Collector):
    """A counter that somebody else keeps: `read` when it is asked for, by any thread."""

    def __init__(self, name: str, documentation: str, registry: CollectorRegistry) -> None:
        self.read: Callable[[], float] = float
        """Never less than it said before; 0 until somebody keeps it."""
        self._family = partial(CounterMetricFamily, name, documentation)
        registry.register(self)

    def collect(self) -> Iterator[CounterMetricFamily]:
        """As the library writes it."""
        yield self._family(value=self.read())


class Distribution(Collector):
    """Figures by their lane and size: a histogram."""

    def __init__(self, name: str, documentation: str, bounds: Sequence[float], registry: CollectorRegistry) -> None:
        """`bounds`: ascending; each belongs to what is below it."""
        self._family: Callable[[], HistogramMetricFamily]
        self._family = partial(HistogramMetricFamily, name, documentation, labels=("lane",))
        self._bounds = bounds
        self._seen: dict[str, tuple[list[int], list[float]]] = {}
        """By lane: how many between a bound and the one before it, and the sum of all, alone in its list."""
        registry.register(self)

    def observe(self, lane: str, figure: float) -> None:
        """Count it in."""
        counts, total = self._seen.setdefault(lane, ([0] * (len(self._bounds) + 1), [0.0]))
        counts[bisect_left(self._bounds, figure)] += 1
        total[0] += figure

    def collect(self) -> Iterator[HistogramMetricFamily]:
        """As the library writes it."""
        family = self._family()
        names = [*map(floatToGoString, self._bounds), "+Inf"]
        for lane, (counts, total) in list(self._seen.items()):
            family.add_metric((lane,), list(zip(names, accumulate(counts), strict=True)), total[0])
        yield family


SERVICE = "fairlane-gateway"
PROVIDER = "fairlane"

_PREFIX = "fairlane_gateway_"
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
_TOKEN_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.5, 1.0, 2.5)
_OTHER = "other"
PROCESS_UP = f"""\
# HELP {_PREFIX}process_up 1 where this process behind the port has told its metrics
# TYPE {_PREFIX}process_up gauge
{_PREFIX}process_up {{}}
"""
"""What is said of each process where there are several: their expositions are merged as text."""
_propagator = TraceContextTextMapPropagator()
_current: ContextVar[Span] = ContextVar("request_span", default=NO_SPAN)
"""This task's request."""
_carried: ContextVar[str] = ContextVar("traceparent", default="")


def span_processor(exporter: SpanExporter | None) -> SpanProcessor | None:
    """Sends spans where the exporter does; None where there is none. Whoever uses it shuts it down."""
    return None if exporter is None else BatchSpanProcessor(exporter)


class Telemetry:
    """The metrics in a registry of their own, and the tracer."""

    def __init__(self, processor: SpanProcessor | None = None, *, sample: float = 1.0, max_tenants: int = 0) -> None:
        """`processor`: of spans that have ended; None: there are none. `sample`: share of requests without a caller's
        trace that start one. `max_tenants`: that metrics name; 0: they have no label of tenants."""
        self._spans = None if processor is None else Spans(SERVICE, processor)
        self._sample = sample
        self._max_tenants = max_tenants
        self._tenants: set[str] = set()
        by_tenant = ("tenant",) if max_tenants else ()
        self.registry = CollectorRegistry()
        self.requests = self._counter(
            "requests", "Requests by how they ended; code: ok, or the error's", "endpoint", "lane", "code"
        )
        self.replays = self._counter(
            "replays", "Answers of an earlier request, told to one with the same idempotency key", "endpoint"
        )
        self.shadow_refusals = self._counter(
            "shadow_refusals", "Requests let in that a limit in shadow would have refused", *by_tenant, "limit"
        )
        self.jobs = self._counter("flights", "Jobs by how they ended; what was refused is none", "lane", "outcome")
        self.tokens = self._counter(
            "tokens", "Tokens charged; tenants beyond the first few count as `other`", *by_tenant, "lane", "kind"
        )
        self.preemptions = self._counter("preemptions", "Preemptions that jobs went through", "lane")
        self.in_flight = FastCounter(
            GaugeMetricFamily, f"{_PREFIX}in_flight", "Requests admitted and not ended", ("lane",), self.registry
        )
        self.time_to_first_token = self._histogram(
            "time_to_first_token_seconds", "From arrival to the first token", _SECONDS
        )
        self.time_per_output_token = self._histogram(
            "time_per_output_token_seconds", "Mean time from one token of a request to the next", _TOKEN_SECONDS
        )
        self.duration = self._histogram("request_duration_seconds", "From arrival to the end of the answer", _SECONDS)
        self.queued = self._gauge("lane_queued", "Jobs that wait for a worker", "model", "lane")
        self.queued_tokens = self._gauge("lane_queued_tokens", "Tokens of the prompts that wait", "model", "lane")
        self.running = self._gauge("lane_running", "Jobs that workers run", "model", "lane")
        self.oldest_wait = self._gauge("lane_oldest_wait_seconds", "Age of the oldest", "model", "lane")
        self.workers = self._gauge("workers", "Workers that take jobs of a model", "model")
        self.store_up = self._level("store_up", "1 while the store answers")
        self.quota_store_up = self._level("quota_store_up", "1 while the store of budgets answers")
        self.store_openings = self._total("store_openings", "Times that a store was found to be away")
        self.connections = self._level("connections", "Connections of the tenants' port")
        self.connections_cut = self._total("connections_cut", "Connections without a key that were closed for others")
        self.malformed = self._total("malformed_requests", "Requests that are no HTTP, or beyond its bounds")
        self.unreported = self._level("unreported", "Requests admitted without the store, and not charged there yet")
        self.settlements_in_hand = self._level("settlements_in_hand", "Settlements that wait for a worker or the store")
        self.reaped = self._total("reaped", "Lapsed reservations settled here")
        self.batches_open = self._level("batches_open", "Batches that this gateway runs")
        self.batches = self._counter(
            "batches", "Batches that ended here: completed, failed, expired or cancelled", "status"
        )
        self.batch_lines = self._counter(
            "batch_lines", "Lines of batches by how they ended: completed, failed or expired", "outcome"
        )
        self.wasted_tokens = self._total("wasted_tokens", "Tokens published here that nobody is charged")

    def _whose(self, tenant: str) -> tuple[str, ...]:
        """The tenant's label in metrics, where they have one: the first few by name, the others together."""
        if not self._max_tenants:
            return ()
        if tenant not in self._tenants and len(self._tenants) < self._max_tenants:
            self._tenants.add(tenant)
        return (tenant if tenant in self._tenants else _OTHER,)

    def charged(self, tenant: str, lane: str, charge: Charge) -> None:
        """One job's settlement."""
        whose = self._whose(tenant)
        self.tokens.add(*whose, lane, "prompt", by=charge.prompt_tokens)
        self.tokens.add(*whose, lane, "output", by=charge.output_tokens)
        self.jobs.add(lane, charge.outcome)
        self.preemptions.add(lane, by=charge.preemptions)

    def shadowed(self, tenant: str, limits: Iterable[str]) -> None:
        """A request was let in that these limits would have refused, were they not in shadow."""
        for limit in set(limits):
            self.shadow_refusals.add(*self._whose(tenant), limit)

    def observe_fleet(self, models: Iterable[ServedModel]) -> None:
        """The last picture of queues and workers."""
        for model in models:
            self.workers.labels(model.name).set(sum(not worker.draining for worker in model.workers))
            for lane, depth in model.depths.items():
                running = sum(worker.running.get(lane, 0) for worker in model.workers)
                self.running.labels(model.name, lane.value).set(running)
                self.queued.labels(model.name, lane.value).set(depth.queued)
                self.queued_tokens.labels(model.name, lane.value).set(depth.queued_tokens)
                self.oldest_wait.labels(model.name, lane.value).set(depth.oldest_wait_ms / 1e3)

    def _counter(self, name: str, documentation: str, *labels: str) -> FastCounter:
        return FastCounter(CounterMetricFamily, f"{_PREFIX}{name}", documentation, labels, self.registry)

    def _total(self, name: str, documentation: str) -> Total:
        return Total(f"{_PREFIX}{name}", documentation, self.registry)

    def _gauge(self, name: str, documentation: str, *labels: str) -> Gauge:
        return Gauge(f"{_PREFIX}{name}", documentation, labels, registry=self.registry)

    def _level(self, name: str, documentation: str) -> Gauge:
        return Gauge(f"{_PREFIX}{name}", documentation, registry=self.registry)

    def _histogram(self, name: str, documentation: str, bounds: tuple[float, ...]) -> Distribution:
        return Distribution(f"{_PREFIX}{name}", documentation, bounds, self.registry)

    def exposition(self) -> bytes:
        """Prometheus' text. Takes a while where there are many tenants: call it in a thread."""
        return generate_latest(self.registry)

    def request_span(self, name: str, headers: Sequence[tuple[bytes, bytes]]) -> "_Request":
        """One request's own span as a context, in the caller's trace if it sent one.

        The share of requests that is not traced costs hardly anything: it is drawn here, before a span is made.
        """
        caller = _callers_trace(headers)
        if self._spans is None:
            return _Request(NO_SPAN, "" if caller is None else _traceparent(caller.trace_id, caller))
        if caller is None and random.random() >= self._sample:
            return _Request(NO_SPAN, _traceparent(random.getrandbits(128) or 1))
        if caller is not None and not caller.trace_flags.sampled:
            return _Request(NO_SPAN, _traceparent(caller.trace_id))
        span = self._spans.root(name, caller)
        return _Request(span, span.traceparent)

    def span(self, name: str) -> Span:
        """A stage of this task's request: a context, or its owner ends it. What begins within is no child of it."""
        request = _current.get()
        return request.child(name) if isinstance(request, Kept) and not request.has_ended else NO_SPAN


class _Request:
    """A request's span, kept or not, as its task's current one, with the `traceparent` that goes on to a worker."""

    __slots__ = ("_span", "_tokens", "_traceparent")

    def __init__(self, span: Span, traceparent: str) -> None:
        self._span = span
        self._traceparent = traceparent

    def __enter__(self) -> Span:
        self._tokens = _current.set(self._span), _carried.set(self._traceparent)
        return self._span

    def __exit__(self, *error: object) -> None:
        current, carried = self._tokens
        _current.reset(current)
        _carried.reset(carried)
        self._span.end()


def is_recording() -> bool:
    """Spans of this task's request are kept: what they would say is worth finding out."""
    return _current.get().is_recording


def traceparent() -> str:
    """This task's request for a worker to continue; the caller's own where we trace nothing; empty where none is."""
    return _carried.get()


def _traceparent(trace_id: int, caller: SpanContext | None = None) -> str:
    """Of a trace that goes on without a span of ours (W3C Trace Context, version 00): the `caller`'s own, or one of
    which nobody is to keep anything."""
    parent, flags = (span_id(), 0) if caller is None else (caller.span_id, caller.trace_flags)
    return f"00-{trace_id:032x}-{parent:016x}-{flags:02x}"


def _callers_trace(headers: Sequence[tuple[bytes, bytes]]) -> SpanContext | None:
    """Where the caller's trace has come to; None where it sent none that is well-formed."""
    carrier = {
        name.decode(): value.decode("latin-1") for name, value in headers if name in (b"traceparent", b"tracestate")
    }
    if not carrier:
        return None
    context = trace.get_current_span(_propagator.extract(carrier, Context())).get_span_context()
    return context if context.is_valid else None


log = logging.getLogger(__name__)

PATIENCE_S = 1.0
"""A sibling that has not told its metrics by then is shown as down."""
_LENGTH_BYTES = 8
_FAMILY = re.compile(rb"^(?=# HELP )", re.MULTILINE)
_SAMPLE = re.compile(rb"^(\w+)(\{?)", re.MULTILINE)


class ProcessMetrics:
    """One process among those behind a port, or one that is alone."""

    def __init__(self, member: Member | None, own: Callable[[], bytes]) -> None:
        """`own`: this process's metrics, as Prometheus' text; called in a thread: the loop has streams to serve."""
        self._member = member
        self._own = _Together(lambda: asyncio.to_thread(own))
        self._all = self._own if member is None else _Together(lambda: self._gather(member))

    @asynccontextmanager
    async def answering(self) -> AsyncIterator[None]:
        """Tell the other processes, until the block ends."""
        if self._member is None:
            yield
            return
        server = await asyncio.start_unix_server(self._tell, self._member.path(self._member.index))
        try:
            yield
        finally:
            server.close()

    async def exposition(self) -> bytes:
        """Prometheus' text of all processes."""
        return await self._all.get()

    async def _gather(self, member: Member) -> bytes:
        texts = await asyncio.gather(
            *(self._own.get() if index == member.index else _ask(member.path(index)) for index in range(member.count))
        )
        return await asyncio.to_thread(merged, texts)

    async def _tell(self, _: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            text = await self._own.get()
            writer.write(len(text).to_bytes(_LENGTH_BYTES, "big") + text)
            await writer.drain()
        writer.close()


class _Together:
    """One look at a time, for all who ask meanwhile: however many scrape, they keep no more than a thread busy."""

    def __init__(self, look: Callable[[], Coroutine[Any, Any, bytes]]) -> None:
        self._look = look
        self._looking: asyncio.Task[bytes] | None = None

    async def get(self) -> bytes:
        """What is found."""
        if self._looking is None:
            self._looking = asyncio.create_task(self._look())
            self._looking.add_done_callback(self._found)
        return await asyncio.shield(self._looking)

    def _found(self, _: object) -> None:
        self._looking = None


async def _ask(path: Path) -> bytes | None:
    """What a sibling says of itself; None where it is away, or dies over it."""
    try:
        async with asyncio.timeout(PATIENCE_S):
            reader, writer = await asyncio.open_unix_connection(path)
            try:
                length = int.from_bytes(await reader.readexactly(_LENGTH_BYTES), "big")
                return await reader.readexactly(length)
            finally:
                writer.close()
    except (OSError, asyncio.IncompleteReadError) as error:
        log.warning("%s does not tell its metrics (%s)", path.stem, type(error).__name__)
        return None


def merged(texts: Sequence[bytes | None]) -> bytes:
    """One exposition of many, each by its index: every family once, its samples marked with who counted them.

    None: it could not be asked.
    """
    families: defaultdict[bytes, list[bytes]] = defaultdict(list)
    for index, text in enumerate(texts):
        up = PROCESS_UP.format(float(text is not None)).encode()
        for family in filter(None, _FAMILY.split((text or b"") + up)):
            named, typed, samples = family.split(b"\n", 2)
            families[named + b"\n" + typed + b"\n"].append(_marked(samples, index))
    return b"".join(head + b"".join(samples) for head, samples in families.items())


def _marked(samples: bytes, index: int) -> bytes:
    """`name 1` becomes `name{process="0"} 1`, and a sample that has labels gets one more."""
    label = b'{process="%d"' % index
    return _SAMPLE.sub(lambda found: found[1] + label + (b"," if found[2] else b"}"), samples)
