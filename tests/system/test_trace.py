"""One request is one trace, from the caller's own span through gateway and queue to the worker."""

from collections import defaultdict
from pathlib import Path

import httpx
import pytest

from tests.support.system.harness import MODEL, Server
from tests.support.system.otlp import receiving

pytestmark = pytest.mark.system

TRACE_ID, SPAN_ID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SECRET = "xylophone"
EXPECTED = {"authenticate", "admit", "reserve", "queue", "prefill", "decode", "settle"}


def test_a_callers_trace_goes_through_gateway_and_worker(tmp_path: Path, models_dir: Path) -> None:
    with receiving() as (endpoint, collector):
        server = Server(
            tmp_path,
            {"WORKER__MODELS_DIR": str(models_dir)},
            environ={"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint, "OTEL_BSP_SCHEDULE_DELAY": "100"},
        ).start()
        try:
            key = server.tenant("traced")
            answer = httpx.post(
                f"{server.url}/v1/completions",
                json={"model": MODEL, "prompt": f"The {SECRET} is", "max_tokens": 4, "ignore_eos": True},
                headers={"Authorization": f"Bearer {key}", "traceparent": f"00-{TRACE_ID}-{SPAN_ID}-01"},
                timeout=60,
            )
            assert answer.status_code == httpx.codes.OK
            spans = collector.wait_until(lambda came: {span.name for span in came} >= EXPECTED)
        finally:
            server.stop()

    ours = [span for span in spans if span.trace_id.hex() == TRACE_ID]
    children = defaultdict(set)
    for span in ours:
        children[span.parent_span_id.hex()].add(span.name)
    assert {span.name for span in ours} == EXPECTED | {"POST /v1/completions"}
    assert children[SPAN_ID] == {"POST /v1/completions"}
    (root,) = (span for span in ours if span.name == "POST /v1/completions")
    assert children[root.span_id.hex()] == EXPECTED
    noted = {pair.key: pair.value for pair in root.attributes}
    assert noted["gen_ai.request.model"].string_value == MODEL
    assert noted["gen_ai.usage.output_tokens"].int_value == 4
    told = "".join(str(span) for span in spans)
    assert SECRET not in told
    assert key not in told
