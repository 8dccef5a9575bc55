"""`templates/monitoring`: what scrapes, and the rules and dashboards of `deploy/`."""

from tests.chart.conftest import Render
from tests.support.chart import Chart, Manifest


def covers(monitor: Manifest, labels: dict[str, str]) -> bool:
    selected: dict[str, str] = monitor["spec"]["selector"]["matchLabels"]
    return selected.items() <= labels.items()


def test_nothing_of_it_stands_unless_asked(render: Render) -> None:
    kinds = {manifest["kind"] for manifest in render().manifests}

    assert not kinds & {"ServiceMonitor", "PodMonitor", "PrometheusRule"}


def test_the_service_monitor_finds_the_metrics_plane_and_no_other(render: Render) -> None:
    chart = render("keda")
    (monitor,) = chart.all("ServiceMonitor")
    found = {each["metadata"]["name"] for each in chart.all("Service") if covers(monitor, each["metadata"]["labels"])}

    assert found == {"fairlane-metrics", "fairlane-worker"}
    assert monitor["metadata"]["labels"]["release"] == "prometheus"
    assert monitor["spec"]["endpoints"] == [{"port": "metrics", "path": "/metrics", "interval": "30s"}]


def test_the_pod_monitor_finds_every_pod_that_has_a_metrics_port(render: Render) -> None:
    chart = render("two-models")
    (monitor,) = chart.all("PodMonitor")

    for component in chart.components:
        assert covers(monitor, chart.one("Deployment", component)["spec"]["template"]["metadata"]["labels"])


def test_every_lease_holder_of_a_pod_is_scraped(render: Render) -> None:
    chart = render("sidecar", values={"monitoring": {"serviceMonitor": {"enabled": True}}})
    (monitor,) = chart.all("ServiceMonitor")

    assert ports_of(chart, "engine-qwen") <= {each["port"] for each in monitor["spec"]["endpoints"]}


def ports_of(chart: Chart, component: str) -> set[str]:
    return {port["name"] for each in chart.pod(component)["containers"] for port in each["ports"]}
