"""`workers`: several models by workers of our own engine, behind the same gateways."""

from typing import Any

import pytest

from fairlane.scheduler.protocol.settings import load
from fairlane.worker.config import WorkerSettings
from tests.chart.conftest import Render
from tests.support.chart import APP_VERSION, Chart


def read(chart: Chart, component: str) -> WorkerSettings:
    """What a worker makes of its file and variables; those that come from Secrets have any value."""
    environ = {
        name: value if isinstance(value, str) else "unix:///secret" for name, value in chart.env(component).items()
    }
    return load(WorkerSettings, document=chart.settings(), environ=environ)


def test_each_group_serves_its_own_model_with_settings_of_its_own(render: Render) -> None:
    chart = render("two-models")
    large, small = read(chart, "worker"), read(chart, "worker-small")

    assert chart.components == ["gateway", "worker", "worker-small"]
    assert (large.model, small.model) == ("Qwen/Qwen3-8B", "Qwen/Qwen3-0.6B")
    assert (large.worker.kv_memory, small.worker.kv_memory) == (48 * 2**30, 2 * 2**30)
    assert (large.worker.drain_s, small.worker.drain_s) == (30.0, 90.0)


def test_what_a_group_does_not_say_is_that_of_worker(render: Render) -> None:
    chart = render("two-models")

    assert chart.container("worker-small")["image"] == f"registry.example.com/fairlane-worker:{APP_VERSION}"
    assert chart.container("worker")["image"] == f"registry.example.com/fairlane-worker:{APP_VERSION}-cuda"
    assert chart.one("Deployment", "worker-small")["spec"]["replicas"] == 3


def test_a_gpu_is_asked_for_by_number(render: Render) -> None:
    chart = render("two-models")
    other = render(values={"worker": {"gpu": {"count": 2, "resource": "amd.com/gpu"}}})

    assert chart.container("worker")["resources"]["limits"] == {"memory": "8Gi", "nvidia.com/gpu": 1}
    assert chart.container("worker-small")["resources"]["limits"] == {"memory": "8Gi"}
    assert other.container("worker")["resources"]["limits"]["amd.com/gpu"] == 2


def test_grace_and_ports_follow_the_group_s_own_settings(render: Render) -> None:
    chart = render("two-models")

    assert chart.pod("worker")["terminationGracePeriodSeconds"] == 45
    assert chart.pod("worker-small")["terminationGracePeriodSeconds"] == 105
    assert chart.container("worker-small")["ports"] == [{"name": "metrics", "containerPort": 9300}]
    assert chart.named("Service", "fairlane-worker-small")["spec"]["ports"][0]["port"] == 9300


def test_groups_stand_without_the_first(render: Render) -> None:
    chart = render("two-models", values={"worker": {"enabled": False}})

    assert chart.components == ["gateway", "worker-small"]


@pytest.mark.parametrize("given", [None, {}])
def test_a_group_that_says_nothing_is_like_the_first(render: Render, given: dict[str, Any] | None) -> None:
    chart = render(values={"workers": {"more": given}})

    assert read(chart, "worker-more").model == read(chart, "worker").model


def test_numbers_of_a_group_s_settings_stay_whole(render: Render) -> None:
    config = {"max_step_tokens": 1_000_000, "prefix_cache": False, "kv_memory": 2_000_000_000, "prefix_share": 0.5}
    worker = read(render(values={"workers": {"more": {"config": config}}}), "worker-more").worker

    assert {name: getattr(worker, name) for name in config} == config


def test_pods_of_a_kind_stand_apart_as_far_as_it_goes(render: Render) -> None:
    chart = render("two-models")

    for component in ("gateway", "worker", "worker-small"):
        labels = chart.one("Deployment", component)["spec"]["template"]["metadata"]["labels"]
        spread = chart.pod(component)["topologySpreadConstraints"]
        assert [each["topologyKey"] for each in spread] == ["topology.kubernetes.io/zone", "kubernetes.io/hostname"]
        assert {each["whenUnsatisfiable"] for each in spread} == {"ScheduleAnyway"}
        assert all(each["labelSelector"]["matchLabels"].items() <= labels.items() for each in spread)
