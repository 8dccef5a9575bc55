"""What both Deployments owe: no privilege, no secret in plain sight, no setting by accident."""

from typing import Any

import pytest

from tests.chart.conftest import Render
from tests.support.chart import APP_VERSION

pytestmark = pytest.mark.parametrize("component", ["gateway", "worker"])


def test_no_process_runs_as_root_or_writes_outside_its_volumes(render: Render, component: str) -> None:
    chart = render()

    pod, container = chart.pod(component)["securityContext"], chart.container(component)["securityContext"]

    assert pod["runAsNonRoot"] is True
    assert pod["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["readOnlyRootFilesystem"] is True
    assert container["allowPrivilegeEscalation"] is False
    assert container["capabilities"] == {"drop": ["ALL"]}


def test_pods_hold_no_token_of_the_cluster(render: Render, component: str) -> None:
    assert render().pod(component)["automountServiceAccountToken"] is False


def test_a_service_named_fairlane_sets_no_variable(render: Render, component: str) -> None:
    assert render(release="fairlane").pod(component)["enableServiceLinks"] is False


def test_the_store_url_comes_from_the_named_secret(render: Render, component: str) -> None:
    url = render("single").env(component)["FAIRLANE_REDIS_URL"]

    assert url == {"secretKeyRef": {"name": "fairlane-store", "key": "redis-url"}}


def test_settings_come_from_the_mounted_file(render: Render, component: str) -> None:
    chart = render()
    mounts = {mount["mountPath"]: mount for mount in chart.container(component)["volumeMounts"]}
    volumes = {volume["name"]: volume for volume in chart.pod(component)["volumes"]}

    config = volumes[mounts["/etc/fairlane"]["name"]]["configMap"]["name"]

    assert chart.env(component)["FAIRLANE_CONFIG"] == "/etc/fairlane/fairlane.yaml"
    assert config == chart.all("ConfigMap")[0]["metadata"]["name"]


def test_what_the_process_writes_goes_to_a_volume(render: Render, component: str) -> None:
    chart = render()

    writable = {mount["mountPath"] for mount in chart.container(component)["volumeMounts"] if not mount.get("readOnly")}

    assert writable == {"/var/lib/fairlane", "/tmp"}  # noqa: S108 - a path inside the container
    assert chart.env(component)["FAIRLANE_DATA_DIR"] == "/var/lib/fairlane"


def test_a_changed_setting_restarts_the_pods(render: Render, component: str) -> None:
    def checksum(values: dict[str, Any]) -> str:
        template = render(values=values).one("Deployment", component)["spec"]["template"]
        return str(template["metadata"]["annotations"]["checksum/config"])

    assert checksum({}) == checksum({"otlpEndpoint": ""})
    assert checksum({}) != checksum({"config": {"log_level": "debug"}})


def test_the_grace_period_is_longer_than_the_drain(render: Render, component: str) -> None:
    setting, before_sigterm_s = {"gateway": ("grace_s", 5), "worker": ("drain_s", 0)}[component]

    for drain_s in (0, 0.5, 30, 119.5, 600):
        pod = render(values={"config": {component: {setting: drain_s}}}).pod(component)
        assert pod["terminationGracePeriodSeconds"] >= before_sigterm_s + drain_s + 10


def test_the_process_starts_by_its_own_command(render: Render, component: str) -> None:
    assert render().container(component)["command"] == ["python", "-m", f"fairlane.{component}"]


def test_traces_go_out_only_where_an_endpoint_is_named(render: Render, component: str) -> None:
    assert "OTEL_EXPORTER_OTLP_ENDPOINT" not in render("minimal").env(component)

    traced = render("production").env(component)

    assert traced["OTEL_EXPORTER_OTLP_ENDPOINT"] == "http://collector.observability:4318"


def test_the_image_is_the_chart_s_version_unless_another_is_named(render: Render, component: str) -> None:
    chosen = render(values={component: {"image": {"tag": "9.9.9"}}})

    assert render().container(component)["image"] == f"registry.example.com/fairlane-{component}:{APP_VERSION}"
    assert chosen.container(component)["image"] == f"registry.example.com/fairlane-{component}:9.9.9"


def test_requests_and_a_memory_limit_are_always_set(render: Render, component: str) -> None:
    resources = render().container(component)["resources"]

    assert resources["requests"].keys() == {"cpu", "memory"}
    assert "memory" in resources["limits"]


def test_placement_reaches_the_pod(render: Render, component: str) -> None:
    placement = {
        "nodeSelector": {"disk": "fast"},
        "tolerations": [{"key": "gpu", "operator": "Exists"}],
        "affinity": {"nodeAffinity": {}},
        "topologySpreadConstraints": [{"maxSkew": 1}],
        "priorityClassName": "high",
    }

    pod = render(values={component: placement}).pod(component)

    assert placement.items() <= pod.items()


def test_extra_variables_labels_and_annotations_reach_the_pod(render: Render, component: str) -> None:
    extra = {"extraEnv": [{"name": "A", "value": "b"}], "podLabels": {"team": "x"}, "podAnnotations": {"note": "y"}}

    chart = render(values={component: extra})
    metadata = chart.one("Deployment", component)["spec"]["template"]["metadata"]

    assert chart.env(component)["A"] == "b"
    assert metadata["labels"]["team"] == "x"
    assert metadata["annotations"]["note"] == "y"


def test_pull_secrets_reach_the_pod(render: Render, component: str) -> None:
    assert render("production").pod(component)["imagePullSecrets"] == [{"name": "registry"}]
