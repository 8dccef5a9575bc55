"""HorizontalPodAutoscaler, ScaledObjects and what they ask: who decides how many pods there are."""

from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.chart.conftest import Render
from tests.support.chart import Chart, Manifest

HOLDER = {"leaseHolder": {"image": {"repository": "registry.example.com/fairlane-lease-holder"}}}


def scaled(**autoscaling: Any) -> dict[str, Any]:
    return {"worker": {"autoscaling": {"enabled": True, **autoscaling}}, "keda": {"existingSecret": "viewer"}}


def triggers(chart: Chart, component: str = "worker") -> list[Manifest]:
    found: list[Manifest] = chart.one("ScaledObject", component)["spec"]["triggers"]
    return found


def test_without_an_autoscaler_the_numbers_are_the_operator_s(render: Render) -> None:
    chart = render()

    assert {chart.one("Deployment", name)["spec"]["replicas"] for name in ("gateway", "worker")} == {1, 2}
    assert {manifest["kind"] for manifest in chart.manifests} == {
        "ConfigMap", "Deployment", "Pod", "PodDisruptionBudget", "Service", "ServiceAccount",
    }  # fmt: skip


@pytest.mark.parametrize("component", ["gateway", "worker"])
def test_where_an_autoscaler_owns_the_number_the_deployment_says_none(render: Render, component: str) -> None:
    """Else each upgrade would set it back."""
    assert "replicas" not in render("keda").one("Deployment", component)["spec"]


def test_gateways_are_scaled_by_their_processors(render: Render) -> None:
    chart = render("keda")
    (spec,) = [each["spec"] for each in chart.all("HorizontalPodAutoscaler")]

    assert spec["scaleTargetRef"]["name"] == chart.one("Deployment", "gateway")["metadata"]["name"]
    assert (spec["minReplicas"], spec["maxReplicas"]) == (2, 12)
    assert spec["metrics"][0]["resource"] == {
        "name": "cpu",
        "target": {"type": "Utilization", "averageUtilization": 70},
    }
    assert spec["behavior"]["scaleDown"]["stabilizationWindowSeconds"] == 300


def test_workers_are_scaled_by_what_waits_and_runs_in_each_lane(render: Render) -> None:
    chart = render("keda")
    spec = chart.one("ScaledObject", "worker")["spec"]
    found = [each["metadata"] for each in triggers(chart)]

    assert spec["scaleTargetRef"] == {"name": chart.one("Deployment", "worker")["metadata"]["name"]}
    assert (spec["minReplicaCount"], spec["maxReplicaCount"]) == (2, 8)
    assert spec["fallback"] == {"failureThreshold": 4, "replicas": 2}
    assert [(each["valueLocation"], each["targetValue"]) for each in found] == [
        ('data.#(lane=="latency").queued_tokens', "8192"),
        ('data.#(lane=="throughput").queued_tokens', "262144"),
        ('data.#(lane=="latency").running', "32"),
    ]
    assert {each["metricType"] for each in triggers(chart)} == {"AverageValue"}  # for each worker; a fallback needs it


def test_keda_asks_the_operators_plane_with_a_token_that_may_only_view(render: Render) -> None:
    chart = render("keda")
    url = urlsplit(triggers(chart)[0]["metadata"]["url"])
    (authentication,) = chart.all("TriggerAuthentication")

    assert (url.hostname, url.port, url.path) == ("fairlane-admin.llm.svc", 8001, "/admin/v1/lanes")
    assert parse_qs(url.query) == {"model": ["Qwen/Qwen3-8B"]}
    assert authentication["spec"]["secretTargetRef"] == [
        {"parameter": "token", "name": "fairlane-viewer", "key": "key"}
    ]
    for each in triggers(chart):
        assert each["authenticationRef"] == {"name": authentication["metadata"]["name"]}
        assert each["metadata"]["authMode"] == "bearer"


def test_the_token_s_field_has_any_name_and_the_planes_may_be_one(render: Render) -> None:
    chart = render(
        values={**scaled(), "keda": {"existingSecret": "viewer", "secretKey": "token"}, "config": {"admin_port": 0}}
    )
    below = render(values={**scaled(), "config": {"gateway": {"root_path": "/llm/"}}})
    (authentication,) = chart.all("TriggerAuthentication")

    assert authentication["spec"]["secretTargetRef"][0] == {"parameter": "token", "name": "viewer", "key": "token"}
    assert triggers(chart)[0]["metadata"]["url"].startswith("http://fairlane.llm.svc:8000/admin/v1/lanes?")
    assert urlsplit(triggers(below)[0]["metadata"]["url"]).path == "/llm/admin/v1/lanes"


def test_prometheus_may_be_asked_instead(render: Render) -> None:
    prometheus = {"source": "prometheus", "prometheus": {"serverAddress": "http://prometheus.monitoring:9090"}}
    chart = render(values={**scaled(), "keda": {**prometheus, "existingSecret": ""}})
    first = triggers(chart)[0]

    assert first["type"] == "prometheus"
    assert first["metadata"]["query"] == (
        'max(fairlane_gateway_lane_queued_tokens{namespace="llm",model="SmolLM2-135M-Instruct",lane="latency"})'
    )
    assert first["metadata"]["serverAddress"] == "http://prometheus.monitoring:9090"
    assert "authenticationRef" not in first
    assert chart.all("TriggerAuthentication") == []


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("/var/lib/fairlane/local/Mistral-7B", "Mistral-7B"),
        ("/models/tiny-q8.gguf", "tiny-q8"),
        ("somebody/models-GGUF/tiny-q8.gguf", "tiny-q8"),
        ("Qwen/Qwen3-8B", "Qwen/Qwen3-8B"),
    ],
)
def test_a_model_is_asked_for_by_the_name_that_gateways_know(render: Render, model: str, name: str) -> None:
    chart = render(values={**scaled(), "config": {"model": model}})

    assert parse_qs(urlsplit(triggers(chart)[0]["metadata"]["url"]).query) == {"model": [name]}


def test_a_lane_without_a_target_starts_nobody(render: Render) -> None:
    chart = render(values=scaled(queuedTokens={"throughput": None}, running={"latency": None}))

    assert [each["metadata"]["valueLocation"] for each in triggers(chart)] == ['data.#(lane=="latency").queued_tokens']


def test_an_engine_in_its_pod_is_scaled_by_all_of_its_models(render: Render) -> None:
    engine = {"engines": {"qwen": {"autoscaling": {"enabled": True, "running": {"latency": None}}}}}
    viewer = {"keda": {"existingSecret": "viewer"}}
    chart = render("sidecar", values={**engine, **viewer})
    models = [parse_qs(urlsplit(each["metadata"]["url"]).query)["model"] for each in triggers(chart, "engine-qwen")]

    assert models == [["qwen3-32b"], ["qwen3-32b"], ["polite"], ["polite"]]
    assert "replicas" not in chart.one("Deployment", "engine-qwen")["spec"]


def test_an_engine_elsewhere_is_not_ours_to_scale(render: Render) -> None:
    defaults = {"autoscaling": {"enabled": False}}
    one = {"model": "m", "url": "http://engine:8000"}

    assert render(values={**HOLDER, "engineDefaults": defaults, "engines": {"a": one}}).all("ScaledObject") == []


def test_what_is_scaled_has_a_budget_for_disruptions_however_few_there_are(render: Render) -> None:
    chart = render(values={**scaled(minReplicas=1), "gateway": {"replicas": 1, "autoscaling": {"enabled": True}}})

    for component in ("gateway", "worker"):
        assert chart.one("PodDisruptionBudget", component)["spec"]["maxUnavailable"] == 1
