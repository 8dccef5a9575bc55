"""`templates/monitoring`: what scrapes, and the rules and dashboards of `deploy/`."""

import json
import subprocess
import tarfile
from pathlib import Path

import pytest
import yaml

from tests.chart.conftest import Render
from tests.support.chart import CHART, Chart, Manifest

DEPLOY = CHART.parent / "deploy"
RULES = ("recording.yml", "alerts.yml")


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
    (endpoint,) = monitor["spec"]["endpoints"]
    assert {"port": "metrics", "path": "/metrics", "interval": "30s"}.items() <= endpoint.items()


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


@pytest.mark.parametrize(("mode", "kind"), [("keda", "ServiceMonitor"), ("two-models", "PodMonitor")])
def test_jobs_are_named_as_the_alerts_look_for_them(render: Render, mode: str, kind: str) -> None:
    (monitor,) = render(mode).all(kind)
    named = [relabeling for endpoint in endpoints_of(monitor) for relabeling in endpoint["relabelings"]]

    assert {(each["targetLabel"], each["replacement"]) for each in named} == {("job", "fairlane-$1")}
    assert 'job=~".*fairlane.*"' in (DEPLOY / "prometheus/alerts.yml").read_text()


def endpoints_of(monitor: Manifest) -> list[Manifest]:
    spec = monitor["spec"]
    found: list[Manifest] = spec.get("endpoints") or spec["podMetricsEndpoints"]
    return found


def test_the_rules_are_those_of_deploy_whole_and_as_written(render: Render) -> None:
    """Their own templates, which stand in the same braces as the chart's, stay untouched."""
    (rule,) = render("keda").all("PrometheusRule")
    wanted = [group for name in RULES for group in yaml.safe_load((DEPLOY / "prometheus" / name).read_text())["groups"]]

    assert sorted(rule["spec"]["groups"], key=name_of) == sorted(wanted, key=name_of)


def name_of(group: Manifest) -> str:
    return str(group["name"])


def test_the_dashboards_are_those_of_deploy(render: Render) -> None:
    maps = [each for each in render("keda").all("ConfigMap") if "grafana_dashboard" in each["metadata"]["labels"]]
    shown = {name: json.loads(text) for each in maps for name, text in each["data"].items()}

    assert shown == {path.name: json.loads(path.read_text()) for path in (DEPLOY / "grafana").glob("*.json")}
    assert len(maps) == len(shown) >= 3  # one each: an object holds a megabyte


def test_a_packed_chart_carries_them_itself(helm: Path, tmp_path: Path) -> None:
    subprocess.run([helm, "package", CHART, "--destination", tmp_path], capture_output=True, check=True)
    (packed,) = tmp_path.glob("fairlane-*.tgz")
    with tarfile.open(packed) as archive:
        inside = {name: archive.extractfile(name) for name in archive.getnames()}
        carried = {name.split("/", 2)[2]: file.read() for name, file in inside.items() if "/files/" in name and file}

    wanted = {"engine/local_only.py": (CHART / "files/engine/local_only.py").read_bytes()}
    wanted |= {f"rules/{name}": (DEPLOY / "prometheus" / name).read_bytes() for name in RULES}
    wanted |= {f"dashboards/{path.name}": path.read_bytes() for path in (DEPLOY / "grafana").glob("*.json")}
    assert carried == wanted
