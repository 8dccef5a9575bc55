"""Spans of a worker's jobs: `prefill` from the first row to the first token, then `decode` to the end.

They are children of the gateway's span by the job's `traceparent`, and hold no prompt, completion or key."""

import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from opentelemetry import trace
from opentelemetry.sdk.resources import SERVICE_INSTANCE_ID, SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.trace import SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from fairlane.common.otlp import span_exporter
from fairlane.scheduler.protocol.messages import Finished, Lease, Outcome, Paused, Preempted, Resumed, TokenDelta
from fairlane.worker.reports import EngineObserver, Publication, Report
from fairlane.worker.telemetry import SERVICE, VERSION

CLOSE_S = 2.0
PROVIDER = "fairlane"
_FAULTS = frozenset({Outcome.FAILED, Outcome.EXPIRED, Outcome.UNAVAILABLE})

Value = str | int | float | bool


@dataclass(slots=True)
class _Trail:
    lease: Lease
    span: trace.Span | None = None
    output_tokens: int = 0
    cached_tokens: int = 0
    preemptions: int = 0
    stalled_ms: float = 0.0
    # Steps that ended between the job's arrival and its first token, including the one running on arrival.
    steps: int = 0
    # The steps among these that computed its prompt.
    prefill_steps: int = 0


class Traces(EngineObserver):
    """Creates the spans. Used only on the event loop."""

    def __init__(self, exporter: SpanExporter, *, worker_id: str, model: str) -> None:
        about = {SERVICE_NAME: SERVICE, SERVICE_INSTANCE_ID: worker_id, SERVICE_VERSION: VERSION}
        self._provider = TracerProvider(resource=Resource.create(about))
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("fairlane.worker")
        self._propagator = TraceContextTextMapPropagator()
        self._model = model
        self._trails: dict[str, _Trail] = {}

    def took(self, leases: Iterable[Lease]) -> None:
        for lease in leases:
            self.lost([lease.job.job_id])
            self._trails[lease.job.job_id] = _Trail(lease)

    def turned(self, report: Report) -> None:
        if report.step is not None and report.ran:
            result = report.step.result
            began_ns = time.time_ns() - int((result.run_ms + result.copy_ms) * 1e6)
            for job_id, waited_ms in report.begun.items():
                self._begin(job_id, waited_ms, began_ns)
            self._count_step({row.seq.job_id for row in report.step.plan.rows})
        for publication in report.publications:
            self._trace_publication(publication)

    def lost(self, job_ids: Iterable[str]) -> None:
        for job_id in job_ids:
            trail = self._trails.pop(job_id, None)
            if trail is not None:
                self._end(trail, "handed back")

    def close(self) -> None:
        """Export the remaining spans; gives up on a collector that does not answer in CLOSE_S."""
        self.lost(list(self._trails))
        closing = threading.Thread(target=self._provider.shutdown, name="traces", daemon=True)
        closing.start()
        closing.join(CLOSE_S)

    def _begin(self, job_id: str, waited_ms: float, began_ns: int) -> None:
        trail = self._trails.get(job_id)
        if trail is not None and trail.span is None:
            trail.span = self._start("prefill", trail.lease, began_ns)
            trail.span.set_attribute("fairlane.queued_ms", waited_ms)

    def _trace_publication(self, publication: Publication) -> None:
        trail = self._trails.get(publication.job_id)
        if trail is None or trail.lease.epoch != publication.epoch:
            return
        for event in publication.events:
            match event:
                case TokenDelta():
                    trail.cached_tokens = max(trail.cached_tokens, event.cached_tokens)
                    self._tokens(trail, len(event.token_ids))
                case Preempted():
                    trail.preemptions += 1
                    self._note(trail, "preempted", _preemption_attributes(event))
                case Resumed():
                    trail.stalled_ms += event.stalled_ms
                    self._note(trail, "resumed", {"choice": event.choice, "stall_ms": event.stalled_ms})
                case Paused():
                    self._note(trail, "paused", {"choice": event.choice})
                case Finished():
                    trail.cached_tokens = max(trail.cached_tokens, event.cached_tokens)
                    self._end(self._trails.pop(publication.job_id), event.outcome)

    def _note(self, trail: _Trail, name: str, facts: Mapping[str, Value]) -> None:
        if trail.span is not None:
            trail.span.add_event(name, facts)

    def _count_step(self, job_ids: set[str]) -> None:
        for job_id, trail in self._trails.items():
            if trail.output_tokens == 0:
                trail.steps += 1
                trail.prefill_steps += job_id in job_ids

    def _tokens(self, trail: _Trail, count: int) -> None:
        if trail.output_tokens == 0:
            first_ns = time.time_ns()
            prefill = trail.span or self._start("prefill", trail.lease, first_ns)
            prefill.set_attribute("fairlane.steps", trail.steps)
            prefill.set_attribute("fairlane.prefill_steps", trail.prefill_steps)
            self._set_totals(trail, prefill)
            prefill.end(first_ns)
            trail.span = self._start("decode", trail.lease, first_ns)
        trail.output_tokens += count

    def _start(self, name: str, lease: Lease, at_ns: int) -> trace.Span:
        job = lease.job
        attributes: dict[str, Value] = {
            "gen_ai.provider.name": PROVIDER,
            "gen_ai.request.model": self._model,
            "gen_ai.response.model": self._model,
            "gen_ai.request.max_tokens": job.max_tokens,
            "gen_ai.request.choice.count": job.n,
            "gen_ai.usage.input_tokens": len(job.prompt),
            "fairlane.flight_id": job.job_id,
            "fairlane.tenant": job.tenant,
            "fairlane.lane": job.lane,
            "fairlane.guaranteed": job.guaranteed,
            "fairlane.epoch": lease.epoch,
        }
        parent = self._propagator.extract({"traceparent": job.traceparent})
        return self._tracer.start_span(name, parent, kind=SpanKind.INTERNAL, attributes=attributes, start_time=at_ns)

    def _set_totals(self, trail: _Trail, span: trace.Span) -> None:
        span.set_attribute("gen_ai.usage.cache_read.input_tokens", trail.cached_tokens)
        span.set_attribute("fairlane.preemptions", trail.preemptions)
        span.set_attribute("fairlane.stalled_ms", trail.stalled_ms)

    def _end(self, trail: _Trail, how: str) -> None:
        span = trail.span
        if span is None:
            return
        self._set_totals(trail, span)
        span.set_attribute("fairlane.outcome", how)
        span.set_attribute("gen_ai.usage.output_tokens", trail.output_tokens)
        if how in _FAULTS:
            span.set_attribute("error.type", how)
            span.set_status(Status(StatusCode.ERROR, how))
        span.end()


def _preemption_attributes(event: Preempted) -> dict[str, Value]:
    facts: dict[str, Value] = {
        "choice": event.choice,
        "mode": event.mode,
        "blocks": event.blocks,
        "bytes": event.bytes,
        "predicted_ms": event.predicted_ms,
    }
    if event.cause is not None:
        facts |= {"cause.resource": event.cause.resource, "cause.lane": event.cause.lane}
        facts |= {"cause.tenant": event.cause.tenant, "cause.flight_id": event.cause.job_id}
    return facts


def open_traces(environ: Mapping[str, str], *, worker_id: str, model: str) -> Traces | None:
    """Return traces to the environment's OTLP endpoint, or None if it names none. Raises SettingsError."""
    exporter = span_exporter(environ)
    return None if exporter is None else Traces(exporter, worker_id=worker_id, model=model)
