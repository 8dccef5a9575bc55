"""Spans of a worker: children of the request's, that say what happened and hold no content."""

import time
from collections.abc import Iterable

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from fairlane.scheduler.planner.steps import Row, SeqId, StepOutcome, StepPlan, StepResult
from fairlane.scheduler.protocol.messages import Cause, Finished, Lease, Outcome, Preempted
from fairlane.worker.engine.engine import StepReport
from fairlane.worker.reports import Report
from fairlane.worker.traces import Traces, open_traces
from tests.worker.test_telemetry import FINISHED, PREEMPTED, RESUMED, SPAN_ID, TRACE_ID, delta, lease, report, step


def spans(reports: Iterable[Report], *, taken: Lease) -> list[ReadableSpan]:
    """What is exported of these reports, after a step that began the job's prompt."""
    exporter = InMemorySpanExporter()
    traces = Traces(exporter, worker_id="worker", model="tiny")
    traces.took([taken])
    traces.turned(report(step=step(), begun={"job": 40.0}))
    for each in reports:
        traces.turned(each)
    traces.close()
    return list(exporter.get_finished_spans())


def test_prefill_and_decode_are_children_of_the_requests_span() -> None:
    prefill, decode = spans([report(delta(0, 61)), report(delta(1, 62, 63), FINISHED)], taken=lease())
    assert (prefill.name, decode.name) == ("prefill", "decode")
    for span in (prefill, decode):
        assert span.parent is not None
        assert span.context is not None
        assert f"{span.context.trace_id:032x}" == TRACE_ID
        assert f"{span.parent.span_id:016x}" == SPAN_ID
        assert span.attributes is not None
        assert span.attributes["gen_ai.request.model"] == "tiny"
        assert span.attributes["gen_ai.usage.input_tokens"] == 5
    assert decode.attributes is not None
    assert decode.attributes["gen_ai.usage.output_tokens"] == 3
    assert decode.attributes["fairlane.outcome"] == "finished"


def test_the_prefill_says_how_many_steps_came_before_the_first_token_and_how_many_were_its_own() -> None:
    others = Row(SeqId("another", 0), (51,), 0, (0,), samples=True, output_index=0)
    elsewhere = StepReport(StepPlan(number=1, rows=(others,)), StepResult(number=1), StepOutcome(), ())
    prefill, _ = spans(
        [report(step=elsewhere), report(step=step()), report(delta(0, 61), step=step()), report(step=elsewhere)],
        taken=lease(),
    )
    assert prefill.attributes is not None
    assert prefill.attributes["fairlane.steps"] == 4
    assert prefill.attributes["fairlane.prefill_steps"] == 3


def test_a_preemption_and_the_way_back_are_events_of_the_span() -> None:
    _, decode = spans([report(delta(0, 61)), report(PREEMPTED), report(RESUMED, FINISHED)], taken=lease())
    assert [(event.name, dict(event.attributes or {})) for event in decode.events] == [
        ("preempted", {"choice": 0, "mode": "swap", "blocks": 3, "bytes": 0, "predicted_ms": 7.0}),
        ("resumed", {"choice": 0, "stall_ms": 250.0}),
    ]


def test_a_preemption_names_for_whom_and_for_what_it_was() -> None:
    cause = Cause(resource="blocks", lane="latency", tenant="other", job_id="urgent")
    preempted = Preempted(job_id="job", choice=0, mode="recompute", blocks=3, predicted_ms=7.0, cause=cause)
    _, decode = spans([report(delta(0, 61)), report(preempted), report(RESUMED, FINISHED)], taken=lease())
    (event, _) = decode.events
    facts = dict(event.attributes or {})
    assert {name: value for name, value in facts.items() if name.startswith("cause")} == {
        "cause.resource": "blocks",
        "cause.lane": "latency",
        "cause.tenant": "other",
        "cause.flight_id": "urgent",
    }
    assert dict(decode.attributes or {})["fairlane.preemptions"] == 1
    assert dict(decode.attributes or {})["fairlane.stalled_ms"] == 250.0


def test_the_prefill_begins_with_its_first_step_and_the_decode_where_it_ends() -> None:
    before_ns = time.time_ns()
    prefill, decode = spans([report(delta(0, 61)), report(FINISHED)], taken=lease())
    assert prefill.start_time is not None
    assert before_ns - 20_000_000 <= prefill.start_time
    assert prefill.end_time == decode.start_time
    assert dict(prefill.attributes or {})["fairlane.queued_ms"] == 40.0
    assert prefill.resource.attributes["service.version"]
    assert dict(decode.attributes or {})["gen_ai.usage.cache_read.input_tokens"] == 16


def test_a_job_that_failed_is_an_error_of_its_span() -> None:
    failed = Finished(job_id="job", epoch=1, outcome=Outcome.FAILED)
    (prefill,) = spans([report(failed)], taken=lease())
    assert not prefill.status.is_ok
    assert dict(prefill.attributes or {})["error.type"] == "failed"


def test_a_job_that_never_ran_has_no_span() -> None:
    exporter = InMemorySpanExporter()
    traces = Traces(exporter, worker_id="worker", model="tiny")
    traces.took([lease()])
    traces.close()
    assert exporter.get_finished_spans() == ()


def test_a_job_that_leaves_without_an_end_closes_its_span() -> None:
    (prefill,) = spans([], taken=lease())
    assert prefill.attributes is not None
    assert prefill.attributes["fairlane.outcome"] == "handed back"


def test_what_is_said_under_an_older_epoch_is_not_traced() -> None:
    (prefill,) = spans([report(delta(0, 61), FINISHED, epoch=1)], taken=lease(epoch=2))
    assert prefill.name == "prefill"


def test_no_span_is_made_where_no_endpoint_is_named() -> None:
    assert open_traces({"OTEL_EXPORTER_OTLP_ENDPOINT": ""}, worker_id="worker", model="tiny") is None


def test_no_span_holds_a_token() -> None:
    found = spans([report(delta(0, 61)), report(PREEMPTED, delta(1, 62), FINISHED)], taken=lease())
    shown = "".join(span.to_json() for span in found)
    assert not any(f"{token}," in shown or f"{token}]" in shown for token in (61, 62))
