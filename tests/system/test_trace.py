"""One request is one trace, from the caller's own span through gateway and queue to the worker."""

import json
import re
from collections import defaultdict
from typing import Any

import httpx
import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from typer.testing import CliRunner

from fairlane.cli import main as cli
from fairlane.cli.printer import duration
from tests.support.system.harness import ADMIN_KEY, MODEL, Server
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


def test_api_command_line_and_trace_give_one_account_of_a_request_s_time(server: Server, collector: Collector) -> None:
    with server.sdk(server.tenant("accounted")) as client:
        done = client.completions.with_raw_response.create(model=MODEL, prompt="Once", max_tokens=24)
        name = done.headers["x-request-id"]
        own = client.get(f"/requests/{name}", cast_to=dict[str, Any])
    environ = {"FAIRLANE_URL": server.url, "FAIRLANE_ADMIN_KEY": ADMIN_KEY}

    def run(*arguments: str) -> str:
        return CliRunner().invoke(cli.app, ["requests", *arguments], env=environ, catch_exceptions=False).stdout

    with server.admin() as admin:
        record = admin.get(f"/requests/{name}").json()
    time = record["time"]
    spans = collector.wait_until(lambda came: bool(requests_called(name, came)))
    (root,) = requests_called(name, spans)
    (queue,) = [span for span in spans if span.name == "queue" and span.trace_id == root.trace_id]
    traced = {pair.key: pair.value.double_value for pair in root.attributes if pair.key.startswith("fairlane.time.")}

    parts = {part: ms for part, ms in time.items() if part != "total_ms"}
    assert sum(parts.values()) == pytest.approx(record["total_ms"], abs=1.0)
    assert time["total_ms"] == record["total_ms"]
    assert parts["prefill_ms"] > 0
    assert parts["decode_ms"] > 0
    assert record["queue_ms"] == parts["queue_ms"]
    assert {wait["reason"]: wait["ms"] for wait in record["waits"]}["queue"] == parts["queue_ms"]
    assert (queue.end_time_unix_nano - queue.start_time_unix_nano) / 1e6 == pytest.approx(parts["queue_ms"], abs=1.0)
    assert traced == {f"fairlane.time.{part}": ms for part, ms in time.items()}
    assert own["time"] == time
    assert json.loads(run("show", name, "--json"))["time"] == time
    assert json.loads(run("why", name, "--json"))["time"] == time
    table = run("show", name)
    for part, ms in time.items():
        assert re.search(rf"^{part.removesuffix('_ms')} +{re.escape(duration(ms))} *$", table, re.MULTILINE), part


def requests_called(name: str, spans: list[Span]) -> list[Span]:
    """The spans of requests with this id."""
    return [
        span
        for span in spans
        if any(each.key == "fairlane.request_id" and each.value.string_value == name for each in span.attributes)
        and span.name == ROOT
    ]


def of_the_trace(spans: list[Span]) -> list[Span]:
    """Those of the caller's trace."""
    return [span for span in spans if span.trace_id.hex() == TRACE_ID]
