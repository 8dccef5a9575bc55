"""vLLM in a pod: who reaches it, its probes and metrics, its adapters, and the memory for offloaded KV blocks."""

import asyncio
import json
import subprocess
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from fairlane.scheduler.protocol.settings import DEFAULT_MODEL
from fairlane.worker.model.files import resolve
from tests.chart.conftest import Render
from tests.support.chart import Chart
from tests.support.system.harness import MODEL
from tests.support.vllm import PYTHON, SMALL_BLOCKS, Vllm, environ, needs_vllm

BASE = "engine-base"
HTTP, WEBSOCKET = "http", "websocket"


def args(chart: Chart, component: str = "engine-one") -> list[str]:
    return list(chart.container(component, "vllm")["args"])


def vllm(**values: Any) -> dict[str, Any]:
    """Values with one engine."""
    holder = {"image": {"repository": "registry.example.com/fairlane-lease-holder"}}
    return {"leaseHolder": holder, "engines": {"one": {"model": "somebody/something", "vllm": values}}}


def test_probes_are_answered_by_vllm_itself(render: Render) -> None:
    container = render("sidecar").container("engine-qwen", "vllm")

    assert container["ports"] == [{"name": "engine", "containerPort": 8000}]
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert container[probe]["httpGet"] == {"path": "/health", "port": "engine"}


def test_vllm_answers_its_pod_alone_and_probes_are_not_logged(render: Render) -> None:
    chart = render("sidecar")
    mounts = {each["name"]: each for each in chart.container("engine-qwen", "vllm")["volumeMounts"]}
    volumes = {each["name"]: each for each in chart.pod("engine-qwen")["volumes"]}

    assert {"--middleware=local_only.LocalOnly", "--disable-access-log-for-endpoints=/health,/metrics"} <= {
        *args(chart, "engine-qwen")
    }
    assert chart.env("engine-qwen", "vllm")["PYTHONPATH"] == mounts["guard"]["mountPath"]
    assert "local_only.py" in chart.named("ConfigMap", volumes["guard"]["configMap"]["name"])["data"]


@pytest.mark.parametrize(
    ("kind", "peer", "path", "told"),
    [
        (HTTP, "127.0.0.1", "/inference/v1/generate", "served"),
        (HTTP, "::1", "/inference/v1/generate", "served"),
        (HTTP, "::ffff:127.0.0.1", "/v1/models", "served"),
        (WEBSOCKET, "127.0.0.1", "/v1/realtime", "served"),
        ("lifespan", None, None, "served"),
        (HTTP, "10.1.2.3", "/health", "served"),
        (HTTP, "fd00::7", "/metrics", "served"),
        (HTTP, "10.1.2.3", "/inference/v1/generate", 403),
        (HTTP, "10.1.2.3", "/invocations", 403),
        (HTTP, "10.1.2.3", "/metrics/../v1/models", 403),
        (HTTP, "127.0.0.2", "/v1/models", 403),
        (HTTP, None, "/v1/models", 403),
        (WEBSOCKET, "10.1.2.3", "/health", 1008),
    ],
)
def test_other_pods_reach_the_health_and_metrics_of_vllm_and_nothing_else(
    render: Render, kind: str, peer: str | None, path: str | None, told: str | int
) -> None:
    module: dict[str, Any] = {}
    exec(render("sidecar").named("ConfigMap", "fairlane-engine")["data"]["local_only.py"], module)  # noqa: S102
    sent: list[dict[str, Any]] = []

    async def served(scope: Any, receive: Any, send: Callable[[dict[str, Any]], Awaitable[None]]) -> None:
        await send({"status": "served"})

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    scope = {"type": kind, "client": (peer, 4711) if peer else None} | ({"path": path} if path else {})
    asyncio.run(module["LocalOnly"](served)(scope, None, send))

    assert sent[0].get("status", sent[0].get("code")) == told


@pytest.mark.parametrize(("mode", "kind"), [("vllm", "ServiceMonitor"), ("adapters", "PodMonitor")])
def test_the_metrics_of_vllm_are_scraped_with_the_others(render: Render, mode: str, kind: str) -> None:
    (monitor,) = render(mode).all(kind)
    endpoints = monitor["spec"].get("endpoints") or monitor["spec"]["podMetricsEndpoints"]

    assert {"port": "engine", "path": "/metrics", "interval": "30s"}.items() <= endpoints[0].items()


def test_a_service_finds_vllm_by_number_since_older_clusters_know_no_names_of_sidecars_ports(render: Render) -> None:
    ports = render("vllm").named("Service", "fairlane-engine-llama")["spec"]["ports"]

    assert {port["name"]: port["targetPort"] for port in ports} == {"engine": 8000, "metrics": "metrics"}


def test_an_engine_elsewhere_is_not_scraped_and_has_no_guard(render: Render) -> None:
    chart = render("external-engine", values={"engines": {"small": {"url": "http://vllm-small:8000"}}})

    assert all(port["name"] != "engine" for each in chart.all("Service") for port in each["spec"]["ports"])
    assert "fairlane-engine" not in [each["metadata"]["name"] for each in chart.all("ConfigMap")]


def test_each_adapter_is_loaded_and_has_a_lease_holder(render: Render) -> None:
    chart = render("adapters")
    given = args(chart, BASE)
    start = given.index("--lora-modules")
    holders = ("lease-holder", "lease-holder-1", "lease-holder-2")

    assert [json.loads(each) for each in given[start + 1 : start + 3]] == [
        {"name": "polite", "path": "/adapters/polite"},
        {"name": "terse", "path": "/adapters/terse"},
    ]
    assert {"--enable-lora", "--max-lora-rank=64", "--max-loras=2", "--max-cpu-loras=2", "--max-num-seqs=112"} <= {
        *given
    }
    assert [chart.env(BASE, name).get("FAIRLANE_WORKER__ENGINE_MODEL") for name in holders] == [None, "polite", "terse"]
    assert [chart.env(BASE, name)["FAIRLANE_WORKER__MAX_SEQUENCES"] for name in holders] == ["64", "32", "16"]


@pytest.mark.parametrize(("most", "told"), [(1, ("1", "2")), (4, ("4", "4"))])
def test_fewer_adapters_may_run_in_a_step_than_there_are(render: Render, most: int, told: tuple[str, str]) -> None:
    adapters = [{"name": name, "path": f"/weights/{name}", "maxSequences": 8} for name in ("a", "b")]
    given = args(render(values=vllm(lora={"adapters": adapters, "maxLoras": most})))

    assert {f"--max-loras={told[0]}", f"--max-cpu-loras={told[1]}"} <= {*given}


def test_without_adapters_or_offloading_vllm_hears_nothing_of_them(render: Render) -> None:
    given = args(render(values=vllm()))

    assert not [each for each in given if "lora" in each or "offload" in each]


@pytest.mark.parametrize(
    ("values", "told", "shm"),
    [
        ({"kvOffloading": {"gib": 40}}, "native", (8 + 40) * 2**30),
        ({"kvOffloading": {"gib": 0.5}, "sharedMemory": "512Mi"}, "native", 2**30),
        ({"kvOffloading": {"gib": 1}, "sharedMemory": 2_000_000_000}, "native", 2_000_000_000 + 2**30),
        ({"kvOffloading": {"gib": 40, "backend": "lmcache"}}, "lmcache", "8Gi"),
    ],
)
def test_kv_blocks_are_offloaded_into_shared_memory_which_grows_by_as_much(
    render: Render, values: dict[str, Any], told: str, shm: int | str
) -> None:
    chart = render(values=vllm(**values))
    volumes = {volume["name"]: volume for volume in chart.pod("engine-one")["volumes"]}

    assert {f"--kv-offloading-size={values['kvOffloading']['gib']}", f"--kv-offloading-backend={told}"} <= {
        *args(chart)
    }
    assert volumes["shm"]["emptyDir"] == {"medium": "Memory", "sizeLimit": shm}


@needs_vllm
@pytest.mark.parametrize(
    ("mode", "component"),
    [("adapters", BASE), ("vllm", "engine-llama"), ("sidecar", "engine-qwen"), ("external-engine", "engine-small")],
)
def test_vllm_takes_the_arguments_that_the_chart_gives_it(render: Render, mode: str, component: str) -> None:
    program = (
        "import json, sys; from vllm.entrypoints.launchers.cli_args import make_arg_parser;"
        "from vllm.utils.argparse_utils import FlexibleArgumentParser as Parser;"
        "print(json.dumps(vars(make_arg_parser(Parser()).parse_args(sys.argv[1:])), default=str))"
    )
    command = [PYTHON, "-c", program, *args(render(mode), component)]

    done = subprocess.run(command, env=environ(), capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr[-2000:]
    read = json.loads(done.stdout.splitlines()[-1])
    assert read["enable_scale_out"] is True
    assert read["middleware"] == ["local_only.LocalOnly"]
    assert read["kv_offloading_size"] == (40.0 if component == BASE else None)
    assert len(read["lora_modules"] or []) == {BASE: 2, "engine-qwen": 1}.get(component, 0)


@needs_vllm
def test_a_real_vllm_answers_its_pod_alone(render: Render, tmp_path: Path, models_dir: Path) -> None:
    chart = render("sidecar")
    (tmp_path / "local_only.py").write_text(chart.named("ConfigMap", "fairlane-engine")["data"]["local_only.py"])
    given = [each for each in args(chart, "engine-qwen") if each.startswith(("--host", "--middleware", "--disable"))]
    model = resolve(DEFAULT_MODEL, models_dir).directory
    asked = {"model": MODEL, "prompt": "Once", "max_tokens": 1}

    def status(client: httpx.Client, path: str, body: dict[str, Any] | None = None) -> int:
        return client.request("POST" if body else "GET", path, json=body).status_code

    with (
        Vllm(tmp_path, model, MODEL, (*SMALL_BLOCKS, *given), {"PYTHONPATH": str(tmp_path)}) as served,
        httpx.Client(base_url=served.url, timeout=60) as own,
        httpx.Client(base_url=served.url, transport=httpx.HTTPTransport(local_address="127.0.0.2")) as other,
    ):
        assert [status(own, "/health"), status(own, "/v1/completions", asked)] == [200, 200]
        assert [status(other, "/health"), status(other, "/metrics")] == [200, 200]
        assert [status(other, path, asked) for path in ("/v1/completions", "/inference/v1/generate")] == [403, 403]
        assert status(other, "/invocations", asked) == 403
