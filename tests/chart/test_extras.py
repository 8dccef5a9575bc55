"""What operators add: containers, volumes and fields of pods, the hub's token, objects of their own."""

from typing import Any

import pytest

from tests.chart.conftest import Render
from tests.support.chart import Chart

EXTRAS: dict[str, Any] = {
    "initContainers": [{"name": "fetch", "image": "tools:1", "restartPolicy": "Always"}],
    "sidecars": [{"name": "ship", "image": "tools:1"}],
    "extraVolumes": [{"name": "more", "emptyDir": {}}],
    "extraVolumeMounts": [{"name": "more", "mountPath": "/more"}],
    "podSpec": {"schedulerName": "volcano", "hostAliases": [{"ip": "10.0.0.9", "hostnames": ["store"]}]},
}
HOLDER = {"leaseHolder": {"image": {"repository": "registry.example.com/fairlane-lease-holder"}}}
PARTS: list[tuple[str, dict[str, Any], set[str]]] = [
    ("gateway", {"gateway": EXTRAS}, {"gateway"}),
    ("worker", {"worker": EXTRAS}, {"worker"}),
    ("worker-small", {"workers": {"small": EXTRAS}}, {"worker"}),
    ("engine-a", {**HOLDER, "engines": {"a": {"model": "m", **EXTRAS}}}, {"vllm", "lease-holder"}),
    ("engine-a", {**HOLDER, "engines": {"a": {"model": "m", "url": "http://v:8000", **EXTRAS}}}, {"lease-holder"}),
]


@pytest.mark.parametrize(("component", "values", "own"), PARTS)
def test_containers_volumes_and_fields_of_the_operator_s_reach_the_pod(
    render: Render, component: str, values: dict[str, Any], own: set[str]
) -> None:
    pod = render(values=values).pod(component)
    every = [*pod["initContainers"], *pod["containers"]]

    assert pod["initContainers"][0] == EXTRAS["initContainers"][0], "it runs before vLLM"
    assert pod["containers"][-1] == EXTRAS["sidecars"][0]
    assert {"name": "more", "emptyDir": {}} in pod["volumes"]
    assert EXTRAS["podSpec"].items() <= pod.items()
    assert own == {each["name"] for each in every if EXTRAS["extraVolumeMounts"][0] in each.get("volumeMounts", [])}


def test_the_hub_s_token_is_with_all_that_load_a_model_and_with_nothing_else(render: Render) -> None:
    engine = {**HOLDER, "engines": {"a": {"model": "m"}}}
    chart = render(values={"hub": {"existingSecret": "hub"}, **engine})
    told = {"secretKeyRef": {"name": "hub", "key": "token"}}

    assert chart.env("worker")["HF_TOKEN"] == told
    assert [chart.env("engine-a", name)["HF_TOKEN"] for name in ("vllm", "lease-holder")] == [told, told]
    assert "HF_TOKEN" not in chart.env("gateway")
    assert "HF_TOKEN" not in render().env("worker")


def named(chart: Chart, kind: str) -> list[str]:
    return [manifest["metadata"]["name"] for manifest in chart.all(kind)]


def test_objects_of_the_operator_s_are_rendered_as_templates(render: Render) -> None:
    chart = render("adapters", release="blue")

    assert named(chart, "PriorityClass") == ["blue-fairlane-batch"]
    assert chart.named("ConfigMap", "blue-notes")["data"] == {"url": "http://blue-fairlane:8000"}
