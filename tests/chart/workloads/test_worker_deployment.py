"""`templates/worker/deployment.yaml`."""

from tests.chart.conftest import Render


def test_the_probes_ask_the_metrics_port(render: Render) -> None:
    chart = render("gpu")
    container = chart.container("worker")

    assert container["ports"] == [{"name": "metrics", "containerPort": 9200}]
    assert chart.settings()["worker"]["metrics_port"] == 9200
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert container[probe]["httpGet"]["port"] == "metrics"


def test_loading_the_model_may_take_as_long_as_stated(render: Render) -> None:
    chart = render("gpu")
    probe = chart.container("worker")["startupProbe"]

    assert probe["periodSeconds"] * probe["failureThreshold"] >= 3600
    assert chart.one("Deployment", "worker")["spec"]["progressDeadlineSeconds"] > 3600


def test_weights_are_kept_on_a_claim_where_one_is_named(render: Render) -> None:
    kept = {volume["name"]: volume for volume in render("gpu").pod("worker")["volumes"]}["models"]
    lost = {volume["name"]: volume for volume in render("minimal").pod("worker")["volumes"]}["models"]

    assert kept["persistentVolumeClaim"] == {"claimName": "model-weights"}
    assert lost["emptyDir"] == {"sizeLimit": "20Gi"}


def test_a_gpu_is_asked_for_as_a_limit(render: Render) -> None:
    assert render("gpu").container("worker")["resources"]["limits"]["nvidia.com/gpu"] == 1


def test_a_rollout_without_a_spare_gpu_frees_one_first(render: Render) -> None:
    rolling = render("gpu").one("Deployment", "worker")["spec"]["strategy"]["rollingUpdate"]

    assert rolling == {"maxSurge": 0, "maxUnavailable": 1}
