"""`config` in `values.schema.json`: made from the settings' types, so that a wrong setting fails the render."""

import json
from typing import Any

import pytest

from tests.chart.conftest import Render
from tests.support import chart_schema
from tests.support.chart import RefusedError


def test_the_schema_is_that_of_the_settings() -> None:
    stored = chart_schema.FILE.read_text()

    assert stored == chart_schema.text(chart_schema.with_config(json.loads(stored))), "run `make docs`"


@pytest.mark.parametrize(
    ("config", "place", "reason"),
    [
        ({"gateway": {"grace": 30}}, "/config/gateway", "'grace' not allowed"),
        ({"lanes": {"latncy": {}}}, "/config/lanes", "'latncy' not allowed"),
        ({"lease": 3}, "/config", "'lease' not allowed"),
        ({"lanes": {"latency": {"ttft_s": "fast"}}}, "/config/lanes/latency/ttft_s", "got string, want"),
        ({"lanes": {"throughput": {"share_floor": 2}}}, "/config/lanes/throughput/share_floor", "maximum"),
        ({"gateway": {"processes": 1.5}}, "/config/gateway/processes", "want integer"),
        ({"gateway": {"max_body_bytes": "8 gallons"}}, "/config/gateway/max_body_bytes", "does not match pattern"),
        ({"gateway": {"quota_fallback": "hope"}}, "/config/gateway/quota_fallback", "must be one of"),
        ({"gateway": {"issuers": [{"name": "a"}]}}, "/config/gateway/issuers/0", "missing properties"),
        ({"worker": {"kv_memory": "lots"}}, "/config/worker/kv_memory", "does not match pattern"),
        ({"worker": {"dtype": "float8"}}, "/config/worker/dtype", "must be one of"),
        ({"worker": {"device": "gpu"}}, "/config/worker/device", "does not match pattern"),
        ({"worker": {"max_sequences": 0}}, "/config/worker/max_sequences", "minimum"),
    ],
)
def test_a_wrong_setting_fails_the_render_with_a_sentence(
    render: Render, config: dict[str, Any], place: str, reason: str
) -> None:
    with pytest.raises(RefusedError) as refused:
        render(values={"config": config})

    assert f"at '{place}'" in str(refused.value)
    assert reason in str(refused.value)


def test_every_form_that_a_setting_may_have_is_taken(render: Render) -> None:
    """Sizes, durations and lists are written in several ways; none of them is refused that the processes take."""
    config = {
        "trusted_proxies": "10.0.0.0/8, 192.0.2.7",
        "lanes": {"latency": {"ttft_s": 1, "tpot_ms": "auto"}, "throughput": {"tpot_ms": 20.5, "max_queued": 100_000}},
        "gateway": {"max_body_bytes": 1_000_000, "body_bytes": "0.5 GiB", "cors_origins": ["https://chat.example.com"]},
        "worker": {"kv_memory": "48GiB", "device": "cuda:1", "threads": 0},
    }  # fmt: skip

    assert render(values={"config": config}).settings()["worker"]["device"] == "cuda:1"


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        ({"worker": {"engine_key": "s"}}, "config.worker.engine_key would put a secret into a ConfigMap"),
        ({"gateway": {"sign_in": {"client_secret": "s"}}}, "client_secret would put a secret into a ConfigMap"),
        ({"worker": {"models_dir": "/models"}}, "config.worker.models_dir belongs to the chart"),
        ({"worker": {"engine": "vllm"}}, "config.worker.engine belongs to the chart: name the engine under engines"),
    ],
)
def test_what_the_chart_says_itself_is_refused_with_a_sentence(
    render: Render, config: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(RefusedError, match=sentence):
        render(values={"config": config})


def test_no_setting_that_holds_a_secret_is_taken_into_the_configmap() -> None:
    secrets = [name for name in _paths(chart_schema.config_schema()) if name.endswith(("_key", "secret", "password"))]

    assert {*secrets} <= {"admin_key", "worker.engine_key", "gateway.sign_in.client_secret"}, (
        "refuse it in templates/requirements.yaml"
    )


def _paths(schema: dict[str, Any], path: str = "") -> list[str]:
    found = []
    for name, inner in schema.get("properties", {}).items():
        found += [path + name, *_paths(inner, f"{path}{name}.")]
    return found + (_paths(schema["items"], path) if isinstance(schema.get("items"), dict) else [])
