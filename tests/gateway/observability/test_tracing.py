"""One trace per request: the caller's goes on, each stage is a child, and nothing of the content is in it."""

import asyncio
import json
import logging
import re
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes, openai_attributes

from tests.support.gateway.batch_files import begun, ended, folder_settings, lines
from tests.support.gateway.served import ASKED, CHAT, WAIT_S, Served, gateway, serving, settings, until

pytestmark = pytest.mark.anyio
TRACE_ID = "0af7651916cd43dd8448eb211c80319c"
TRACEPARENT = f"00-{TRACE_ID}-b7ad6b7169203331-01"
STAGES = ("authenticate", "reserve", "admit", "queue", "settle")
"""Spans below a request's own."""


def traced() -> tuple[SpanProcessor, InMemorySpanExporter]:
    exporter = InMemorySpanExporter()
    return SimpleSpanProcessor(exporter), exporter


def by_name(exporter: InMemorySpanExporter) -> dict[str, ReadableSpan]:
    return {span.name: span for span in exporter.get_finished_spans()}


async def answer(served: Served, **headers: str) -> None:
    assert (await served.post(CHAT, ASKED, **headers)).status_code == 200
    await served.landed()


async def test_every_stage_is_a_child_of_the_request_and_the_callers_trace_goes_on(
    valkey_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    processor, exporter = traced()
    async with serving(settings(valkey_url), processor) as served:
        await served.tenant()
        await answer(served, traceparent=TRACEPARENT, x_request_id="mine")
        job = served.worker.seen[0].job

    assert "ended span" not in caplog.text
    spans = by_name(exporter)
    request = spans[f"POST {CHAT}"]
    assert f"{request.context.trace_id:032x}" == TRACE_ID
    for name in STAGES:
        parent = spans[name].parent
        assert parent is not None, name
        assert parent.span_id == request.context.span_id, name
    assert job.traceparent == f"00-{TRACE_ID}-{request.context.span_id:016x}-01"
    assert job.request_id == "mine"
    attributes = dict(request.attributes or {})
    assert attributes["gen_ai.operation.name"] == "chat"
    assert attributes["gen_ai.request.model"] == "tiny"
    assert attributes["gen_ai.usage.output_tokens"] == len(served.worker.script)
    assert attributes["fairlane.request_id"] == "mine"
    assert attributes["fairlane.lane"] == "latency"


async def test_the_requests_span_says_what_was_asked_and_answered_by_the_conventions(valkey_url: str) -> None:
    processor, exporter = traced()
    async with serving(settings(valkey_url), processor) as served:
        await served.tenant()
        said = (await served.post(CHAT, ASKED)).json()
        await served.landed()

    request = by_name(exporter)[f"POST {CHAT}"]
    attributes = dict(request.attributes or {})
    assert {
        "http.request.method": "POST",
        "http.route": CHAT,
        "http.response.status_code": 200,
        "url.path": CHAT,
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "fairlane",
        "gen_ai.request.model": "tiny",
        "gen_ai.request.stream": False,
        "gen_ai.response.model": "tiny",
        "gen_ai.response.id": said["id"],
        "gen_ai.response.finish_reasons": ("stop",),
        "gen_ai.usage.input_tokens": said["usage"]["prompt_tokens"],
        "gen_ai.usage.output_tokens": said["usage"]["completion_tokens"],
        "gen_ai.usage.cache_read.input_tokens": 0,
    }.items() <= attributes.items()
    assert request.resource.attributes["service.version"]
    known = {value for module in (gen_ai_attributes, openai_attributes) for value in map(str, vars(module).values())}
    named = {name for span in exporter.get_finished_spans() for name in span.attributes or {}}
    assert {name for name in named if name.startswith(("gen_ai.", "openai."))} <= known


async def test_each_stage_says_its_facts(valkey_url: str) -> None:
    processor, exporter = traced()
    async with serving(settings(valkey_url), processor) as served:
        await served.tenant(limits={"tokens_per_day": 10_000, "requests_per_minute": 1_000_000})
        await answer(served)

    facts: dict[str, dict[str, Any]]
    facts = {name: dict(span.attributes or {}) for name, span in by_name(exporter).items()}
    assert facts["authenticate"]["fairlane.tenant"] == "acme"
    assert facts["admit"]["fairlane.prompt_tokens"] > 0
    assert facts["reserve"]["fairlane.limit"] == "tokens_per_day"
    assert facts["reserve"]["fairlane.limit.remaining"] < 10_000
    assert facts["queue"]["fairlane.queue.position"] in (0, 1)  # 0: a worker that had room got it at once
    assert facts["queue"]["fairlane.queued_ms"] >= 0
    assert facts["settle"]["fairlane.output_tokens"] == len(served.worker.script)


async def test_the_queue_ends_where_the_worker_began_and_not_with_the_first_token(valkey_url: str) -> None:
    processor, exporter = traced()
    async with serving(settings(valkey_url), processor) as served:
        await served.tenant()
        served.worker.limit = 0
        asking = asyncio.create_task(answer(served))
        await until(lambda: bool(served.worker.leases))
        (lease,) = served.worker.seen
        served.worker.limit = None
        await asking

    queue = by_name(exporter)["queue"]
    assert queue.end_time is not None
    assert queue.start_time is not None
    assert dict(queue.attributes or {})["fairlane.queued_ms"] == lease.arrived_ms_ago
    assert (queue.end_time - queue.start_time) / 1e6 == pytest.approx(lease.arrived_ms_ago, abs=1.0)


async def test_a_refusal_by_a_limit_says_which(valkey_url: str) -> None:
    processor, exporter = traced()
    async with serving(settings(valkey_url), processor) as served:
        await served.tenant(limits={"requests_per_minute": 1})
        await answer(served)
        assert (await served.post(CHAT, ASKED)).status_code == 429
        await served.landed()

    _, refused = (span for span in exporter.get_finished_spans() if span.name == "reserve")
    attributes = dict(refused.attributes or {})
    assert (attributes["fairlane.limit"], attributes["error.type"]) == ("requests_per_minute", "rate_limit_exceeded")
    assert not refused.status.is_ok


async def test_a_retry_is_linked_to_the_request_whose_answer_it_gets(valkey_url: str) -> None:
    processor, exporter = traced()
    async with serving(settings(valkey_url), processor) as served:
        await served.tenant()
        await answer(served, idempotency_key="once", traceparent=TRACEPARENT)
        await until(lambda: not served.resources.requests.runs.in_hand)
        again = await served.post(CHAT, ASKED, idempotency_key="once")

    assert again.status_code == 200
    assert "traceparent" not in again.headers
    first, retry = (span for span in exporter.get_finished_spans() if span.name == f"POST {CHAT}")
    assert [(link.context.trace_id, link.context.span_id) for link in retry.links] == [
        (first.context.trace_id, first.context.span_id)
    ]
    assert not first.links


async def test_a_batchs_lines_are_linked_to_the_request_that_made_it(valkey_url: str, tmp_path: Path) -> None:
    processor, exporter = traced()
    async with serving(folder_settings(valkey_url, tmp_path), processor) as served:
        await served.tenant()
        async with served.sdk() as client:
            await ended(client, await begun(client, lines(2)))

    spans = exporter.get_finished_spans()
    (made,) = (span for span in spans if span.name == "POST /v1/batches")
    of_lines = [span for span in spans if span.name.startswith("BATCH ")]
    assert len(of_lines) == 2
    for span in of_lines:
        assert [link.context.span_id for link in span.links] == [made.context.span_id]
        assert span.context.trace_id != made.context.trace_id
        assert dict(span.attributes or {})["http.response.status_code"] == 200


async def test_spans_hold_no_content_and_no_key(valkey_url: str) -> None:
    processor, exporter = traced()
    async with serving(settings(valkey_url), processor) as served:
        key = await served.tenant()
        await answer(served)

    shown = "".join(span.to_json() for span in exporter.get_finished_spans())
    for secret in ("capital", "Paris", key, key.rsplit("-", 1)[1]):
        assert secret not in shown


async def test_a_refusal_is_an_error_with_its_code(valkey_url: str) -> None:
    processor, exporter = traced()
    async with gateway(settings(valkey_url), processor) as served:
        await served.tenant()
        await served.post(CHAT, ASKED)

    request = by_name(exporter)[f"POST {CHAT}"]
    attributes = dict(request.attributes or {})
    assert (attributes["fairlane.code"], attributes["error.type"]) == ("model_not_found", "model_not_found")
    assert not request.status.is_ok


async def test_what_is_not_sampled_leaves_no_span_and_the_worker_knows(valkey_url: str) -> None:
    processor, exporter = traced()
    async with serving(settings(valkey_url, section={"trace_sample": 0.0}), processor) as served:
        await served.tenant()
        await answer(served)
        await answer(served, traceparent=TRACEPARENT)
        unsampled, sampled = (seen.job.traceparent for seen in served.worker.seen)

    assert re.fullmatch("00-[0-9a-f]{32}-[0-9a-f]{16}-00", unsampled)
    assert sampled.startswith(f"00-{TRACE_ID}-")
    assert {f"{span.context.trace_id:032x}" for span in exporter.get_finished_spans()} == {TRACE_ID}


async def test_untraced_a_callers_trace_still_reaches_the_worker(valkey_url: str) -> None:
    async with serving(settings(valkey_url)) as served:
        await served.tenant()
        await answer(served, traceparent=TRACEPARENT)

        assert served.worker.seen[0].job.traceparent == TRACEPARENT


@pytest.mark.parametrize("given", ["garbage", f"00-{'0' * 32}-{'0' * 16}-01"])
async def test_a_malformed_trace_of_the_callers_is_drawn_like_none(valkey_url: str, given: str) -> None:
    processor, exporter = traced()
    async with serving(settings(valkey_url, section={"trace_sample": 0.0}), processor) as served:
        await served.tenant()
        await answer(served, traceparent=given)

    assert exporter.get_finished_spans() == ()


@pytest.mark.parametrize(
    "given",
    [
        {"traceparent": "00-" + "1" * 600},
        {"traceparent": TRACEPARENT, "tracestate": "my words"},
        {"traceparent": TRACEPARENT, "tracestate": "a" * 9_000},
    ],
)
async def test_nothing_of_a_callers_trace_is_logged(
    valkey_url: str, caplog: pytest.LogCaptureFixture, given: dict[str, str]
) -> None:
    async with serving(settings(valkey_url)) as served:
        await served.tenant()
        with caplog.at_level(logging.DEBUG, logger="opentelemetry"):
            await answer(served, **given)

    assert [record.getMessage() for record in caplog.records if record.name.startswith("opentelemetry")] == []


async def test_a_pipelined_request_knows_nothing_of_the_trace_before_it(valkey_url: str) -> None:
    processor, exporter = traced()
    async with serving(settings(valkey_url, section={"trace_sample": 0.0}), processor) as served:
        key = await served.tenant()
        body = json.dumps(ASKED)
        untraced, asked = (
            f"POST {CHAT} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {key}\r\n{extra}"
            f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n{body}"
            for extra in ("", f"traceparent: {TRACEPARENT}\r\n")
        )
        reader, writer = await asyncio.open_connection(*served.server.servers[0].sockets[0].getsockname()[:2])
        writer.write((untraced + asked).encode())
        async with asyncio.timeout(WAIT_S):
            for _ in range(2):
                await reader.readuntil(b'"usage"')
        writer.close()
        await served.landed()
        first, second = (seen.job.traceparent for seen in served.worker.seen)

    assert TRACE_ID not in first
    assert TRACE_ID in second
    assert set(STAGES) <= set(by_name(exporter))
