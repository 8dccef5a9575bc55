"""One request is one trace, from the caller's own span through gateway and queue to the worker."""

from collections import defaultdict

import httpx
import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tests.support.system.harness import MODEL, Server
from tests.support.system.otlp import Collector

pytestmark = pytest.mark.system

TRACE_ID, SPAN_ID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SECRET = "xylophone"
ROOT = "POST /v1/completions"
EXPECTED = {"authenticate", "admit", "reserve", "queue", "prefill", "decode", "settle"}


def test_a_callers_trace_goes_through_gateway_and_worker(server: Server, collector: Collector) -> None:
    key = server.tenant("traced")
    answer = httpx.post(
        f"{server.url}/v1/completions",
        json={"model": MODEL, "prompt": f"The {SECRET} is", "max_tokens": 4, "ignore_eos": True},
        headers={"Authorization": f"Bearer {key}", "traceparent": f"00-{TRACE_ID}-{SPAN_ID}-01"},
        timeout=60,
    )
    assert answer.status_code == httpx.codes.OK
    spans = collector.wait_until(lambda came: {span.name for span in of_the_trace(came)} >= EXPECTED | {ROOT})

    ours = of_the_trace(spans)
    children = defaultdict(set)
    for span in ours:
        children[span.parent_span_id.hex()].add(span.name)
    assert {span.name for span in ours} == EXPECTED | {ROOT}
    assert children[SPAN_ID] == {ROOT}
    (root,) = (span for span in ours if span.name == ROOT)
    assert children[root.span_id.hex()] == EXPECTED
    noted = {pair.key: pair.value for pair in root.attributes}
    assert noted["gen_ai.request.model"].string_value == MODEL
    assert noted["gen_ai.usage.output_tokens"].int_value == 4
    told = b"".join(span.SerializeToString() for span in spans)
    assert SECRET.encode() not in told
    assert key.encode() not in told


def of_the_trace(spans: list[Span]) -> list[Span]:
    """Those of the caller's trace."""
    return [span for span in spans if span.trace_id.hex() == TRACE_ID]
