"""`templates/engine`: vLLM in a pod with its lease holders, and lease holders of engines that run elsewhere."""

from typing import Any, get_args

import pytest

from fairlane.scheduler.protocol.settings import load
from fairlane.worker.config import EngineKind, WorkerSettings
from fairlane.worker.remote.vllm import KNOWN
from tests.chart.conftest import Render
from tests.support.chart import Chart

SIDECAR, LARGE = "engine-qwen", "engine-large-a"


def one(**values: Any) -> dict[str, Any]:
    """Values with one engine."""
    holder = {"image": {"repository": "registry.example.com/fairlane-lease-holder"}}
    return {"leaseHolder": holder, "engines": {"one": {"model": "somebody/something", **values}}}


def read(chart: Chart, component: str, name: str = "lease-holder") -> WorkerSettings:
    """What a lease holder makes of its file and variables; those that come from Secrets have any value."""
    environ = {
        variable: value if isinstance(value, str) else "unix:///secret"
        for variable, value in chart.env(component, name).items()
    }
    return load(WorkerSettings, document=chart.settings(), environ=environ)


def test_without_engines_the_chart_has_none(render: Render) -> None:
    assert render().components == ["gateway", "worker"]


def test_vllm_starts_before_its_lease_holders_and_ends_after_their_drain(render: Render) -> None:
    """Which is what a sidecar, an init container that is always restarted, does in Kubernetes."""
    pod = render("sidecar").pod(SIDECAR)

    assert [(each["name"], each["restartPolicy"]) for each in pod["initContainers"]] == [("vllm", "Always")]
    assert [each["name"] for each in pod["containers"]] == ["lease-holder", "lease-holder-1"]
    assert pod["terminationGracePeriodSeconds"] == 60 + 15 + 15


def test_a_lease_holder_reads_where_its_engine_is_and_what_of_it_is_its_own(render: Render) -> None:
    chart = render("sidecar")
    plain, polite = (read(chart, SIDECAR, name) for name in ("lease-holder", "lease-holder-1"))

    assert [each.worker.engine for each in (plain, polite)] == ["vllm", "vllm"]
    assert [each.worker.engine_url for each in (plain, polite)] == ["http://127.0.0.1:8000"] * 2
    assert [each.worker.engine_model for each in (plain, polite)] == [None, "polite"]
    assert [each.worker.max_sequences for each in (plain, polite)] == [96, 32]
    assert [each.worker.max_step_tokens for each in (plain, polite)] == [4096, 4096]
    assert [each.worker.metrics_port for each in (plain, polite)] == [9100, 9101]
    assert [each.model for each in (plain, polite)] == ["Qwen/Qwen3-32B"] * 2
    assert [each.worker.drain_s for each in (plain, polite)] == [60.0, 60.0]


def test_vllm_runs_as_many_sequences_as_its_lease_holders_have_together(render: Render) -> None:
    arguments = render("sidecar").container(SIDECAR, "vllm")["args"]

    assert arguments[0] == "Qwen/Qwen3-32B"
    assert {"--max-num-seqs=128", "--max-num-batched-tokens=4096", "--served-model-name=qwen3-32b"} <= {*arguments}
    assert {"--enable-scale-out", "--scheduling-policy=priority"} <= {*arguments}
    assert '--structured-outputs-config={"backend":"guidance"}' in arguments
    assert arguments[-3:] == ["--enable-lora", "--lora-modules", "polite=/weights/adapters/polite"]


@pytest.mark.parametrize(("tensor", "pipeline", "gpus"), [(1, 1, 1), (4, 1, 4), (4, 2, 8)])
def test_a_pod_asks_for_the_gpus_of_all_its_parts(render: Render, tensor: int, pipeline: int, gpus: int) -> None:
    chart = render(values=one(vllm={"tensorParallel": tensor, "pipelineParallel": pipeline}))
    vllm = chart.container("engine-one", "vllm")

    assert vllm["resources"]["limits"] == {"memory": "64Gi", "nvidia.com/gpu": gpus}
    assert {f"--tensor-parallel-size={tensor}", f"--pipeline-parallel-size={pipeline}"} <= {*vllm["args"]}


def test_an_engine_may_have_gpus_of_another_name_or_none(render: Render) -> None:
    other = render(values=one(vllm={"gpuResource": "amd.com/gpu"})).container("engine-one", "vllm")
    none = render(values=one(vllm={"gpuResource": ""})).container("engine-one", "vllm")

    assert other["resources"]["limits"]["amd.com/gpu"] == 1
    assert none["resources"]["limits"].keys() == {"memory"}


def test_loading_the_weights_may_take_as_long_as_stated(render: Render) -> None:
    chart = render("sidecar")

    for name in ("vllm", "lease-holder"):
        probe = chart.container(SIDECAR, name)["startupProbe"]
        assert probe["periodSeconds"] * probe["failureThreshold"] >= 3600
    assert chart.one("Deployment", SIDECAR)["spec"]["progressDeadlineSeconds"] > 2 * 3600


def test_each_lease_holder_is_asked_at_its_own_port(render: Render) -> None:
    containers = render("sidecar").pod(SIDECAR)["containers"]

    assert [each["ports"] for each in containers] == [
        [{"name": "metrics", "containerPort": 9100}],
        [{"name": "metrics-1", "containerPort": 9101}],
    ]
    for each in containers:
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            assert each[probe]["httpGet"] == {"path": "/metrics", "port": each["ports"][0]["name"]}


def test_several_processes_of_vllm_share_memory(render: Render) -> None:
    volumes = {volume["name"]: volume for volume in render("sidecar").pod(SIDECAR)["volumes"]}

    assert volumes["shm"]["emptyDir"] == {"medium": "Memory", "sizeLimit": "16Gi"}


def test_weights_are_the_engine_s_and_the_lease_holder_only_reads_there(render: Render) -> None:
    chart = render("sidecar")
    kept = {volume["name"]: volume for volume in chart.pod(SIDECAR)["volumes"]}["weights"]
    lost = {volume["name"]: volume for volume in render(values=one()).pod("engine-one")["volumes"]}["weights"]

    assert kept["persistentVolumeClaim"] == {"claimName": "model-weights"}
    assert lost["emptyDir"] == {"sizeLimit": "100Gi"}
    assert {"name": "weights", "mountPath": "/weights"} in chart.container(SIDECAR, "vllm")["volumeMounts"]
    for name in ("lease-holder", "lease-holder-1"):
        mounts = chart.container(SIDECAR, name)["volumeMounts"]
        assert {"name": "weights", "mountPath": "/weights", "readOnly": True} in mounts
        assert chart.env(SIDECAR, name)["HF_HOME"].startswith("/var/lib/fairlane/")


def test_an_engine_elsewhere_has_its_lease_holder_alone(render: Render) -> None:
    chart = render("external-engine")
    settings = read(chart, LARGE)

    assert "initContainers" not in chart.pod(LARGE)
    assert [each["name"] for each in chart.pod(LARGE)["containers"]] == ["lease-holder"]
    assert {volume["name"] for volume in chart.pod(LARGE)["volumes"]} == {"config", "data", "tmp"}
    assert settings.worker.engine_url == "http://vllm-large-0.llm:8000"
    assert (settings.model, settings.worker.max_sequences) == ("Qwen/Qwen3-235B-A22B", 256)
    assert chart.pod(LARGE)["terminationGracePeriodSeconds"] == 30 + 15


def test_an_engine_elsewhere_never_has_two_lease_holders_not_even_in_a_rollout(render: Render) -> None:
    spec = render("external-engine").one("Deployment", LARGE)["spec"]

    assert (spec["replicas"], spec["strategy"]) == (1, {"type": "Recreate"})


def test_the_key_of_an_engine_comes_from_its_secret(render: Render) -> None:
    chart = render("external-engine")

    assert chart.env(LARGE)["FAIRLANE_WORKER__ENGINE_KEY"] == {"secretKeyRef": {"name": "vllm-key", "key": "key"}}
    assert "FAIRLANE_WORKER__ENGINE_KEY" not in chart.env("engine-small", "lease-holder")


def test_engines_stand_beside_workers_of_our_own_and_each_says_what_is_its_own(render: Render) -> None:
    chart = render("external-engine")

    assert {*chart.components} == {"gateway", "worker", "engine-large-a", "engine-large-b", "engine-small"}
    assert read(chart, "engine-small").model == "Qwen/Qwen3-0.6B"
    assert chart.container("engine-small", "vllm")["args"][0] == "Qwen/Qwen3-0.6B"


def test_what_an_engine_says_wins_over_the_defaults_nothing_and_none_too(render: Render) -> None:
    values = one(replicas=0, maxStepTokens=1_000_000, weights={"sizeLimit": "1Gi"}, strategy={"type": "Recreate"})
    chart = render(values=values | {"engineDefaults": {"replicas": 3, "vllm": {"args": ["--enforce-eager"]}}})

    spec = chart.one("Deployment", "engine-one")["spec"]

    assert (spec["replicas"], spec["strategy"]["type"]) == (0, "Recreate")
    assert chart.container("engine-one", "vllm")["args"][-1] == "--enforce-eager"
    assert read(chart, "engine-one").worker.max_step_tokens == 1_000_000


def test_one_pod_at_a_time_leaves_where_there_are_several(render: Render) -> None:
    chart = render("sidecar")

    assert chart.one("PodDisruptionBudget", SIDECAR)["spec"]["maxUnavailable"] == 1
    assert render("external-engine").all("PodDisruptionBudget")[0]["metadata"]["name"] == "fairlane-gateway"


def test_every_container_of_an_engine_is_as_closed_as_the_others(render: Render) -> None:
    pod = render("sidecar").pod(SIDECAR)

    assert pod["securityContext"]["runAsNonRoot"] is True
    assert (pod["automountServiceAccountToken"], pod["enableServiceLinks"]) == (False, False)
    for container in (*pod["initContainers"], *pod["containers"]):
        closed = {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}
        assert container["securityContext"] == closed
        assert {"/tmp"} < {mount["mountPath"] for mount in container["volumeMounts"]}  # noqa: S108 - in the container


def test_vllm_may_be_opened_where_its_image_needs_it(render: Render) -> None:
    opened = render(values=one(vllm={"securityContext": {"readOnlyRootFilesystem": False}}))

    assert opened.container("engine-one", "vllm")["securityContext"]["readOnlyRootFilesystem"] is False
    assert opened.container("engine-one", "lease-holder")["securityContext"]["readOnlyRootFilesystem"] is True


def test_placement_variables_labels_and_annotations_reach_the_pod(render: Render) -> None:
    extra = {
        "nodeSelector": {"gpu": "h200"}, "tolerations": [{"key": "gpu", "operator": "Exists"}],
        "priorityClassName": "high", "extraEnv": [{"name": "A", "value": "b"}], "podLabels": {"team": "x"},
        "podAnnotations": {"note": "y"},
    }  # fmt: skip
    chart = render(values=one(**extra))
    pod, metadata = chart.pod("engine-one"), chart.one("Deployment", "engine-one")["spec"]["template"]["metadata"]

    assert {name: pod[name] for name in ("nodeSelector", "tolerations", "priorityClassName")}.items() <= extra.items()
    assert [chart.env("engine-one", name)["A"] for name in ("vllm", "lease-holder")] == ["b", "b"]
    assert (metadata["labels"]["team"], metadata["annotations"]["note"]) == ("x", "y")


def test_the_chart_s_vllm_is_one_that_a_lease_holder_knows(render: Render) -> None:
    image = render(values=one()).container("engine-one", "vllm")["image"]

    assert image.startswith(tuple(f"vllm/vllm-openai:v{version}." for version in KNOWN))


def test_the_schema_knows_every_kind_of_engine(render: Render) -> None:
    for kind in {*get_args(EngineKind)} - {"own"}:
        chart = render(values=one(kind=kind, url="http://engine:8000"))
        assert read(chart, "engine-one").worker.engine == kind
