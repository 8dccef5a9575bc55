"""One trace per request: the caller's goes on, each stage is a child, and nothing of the content is in it."""

import asyncio
import json
import re

import pytest
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from tests.support.gateway.served import ASKED, CHAT, WAIT_S, Served, gateway, serving, settings

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
    attributes = dict(request.attributes or {})
    assert attributes["gen_ai.operation.name"] == "chat"
    assert attributes["gen_ai.request.model"] == "tiny"
    assert attributes["gen_ai.usage.output_tokens"] == len(served.worker.script)
    assert attributes["fairlane.request_id"] == "mine"
    assert attributes["fairlane.lane"] == "latency"


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
