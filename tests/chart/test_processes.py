"""The containers' own commands, run here with the files and variables that the chart renders: planes, probes, the test
of a release, what KEDA asks, and how they end."""

import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from fairlane.cli.embedded_store import EmbeddedStore
from tests.chart.conftest import Render
from tests.support.chart import Chart
from tests.support.chart_processes import PodProcess, start
from tests.support.ports import free_port

pytestmark = pytest.mark.system
ADMIN_KEY = "k" * 64
SECRETS = {("fairlane-admin", "key"): ADMIN_KEY}
PORTS = ("port", "admin_port", "metrics_port")


@dataclass
class Release:
    """What a cluster would run of it."""

    chart: Chart
    gateway: PodProcess
    place: Path
    secrets: dict[tuple[str, str], str]

    def url(self, plane: str) -> str:
        return f"http://127.0.0.1:{self.chart.settings()[plane]}"

    @property
    def operators(self) -> httpx.Client:
        return httpx.Client(
            base_url=self.url("admin_port"), headers={"authorization": f"Bearer {ADMIN_KEY}"}, timeout=30
        )


@pytest.fixture(scope="module")
def release(
    render: Render, emptied_valkey: EmbeddedStore, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Release]:
    """A release whose gateway runs."""
    config: dict[str, Any] = {name: free_port() for name in PORTS}
    config["worker"] = {"metrics_port": free_port(), "kv_memory": "64MiB", "host_kv_memory": "32MiB", "threads": 1}
    values = {"gateway": {"linkPort": free_port()}, "config": {**config, "model": "SmolLM2-135M-Instruct"}}
    chart = render("keda", values=values)
    place, secrets = tmp_path_factory.mktemp("pods"), SECRETS | {("fairlane-store", "url"): emptied_valkey.url}
    found = Release(chart, start(chart, "gateway", place, secrets), place, secrets)
    yield found
    found.gateway.process.kill()
    found.gateway.process.wait()


@pytest.fixture(scope="module")
def worker(release: Release, models_dir: Path) -> Iterator[PodProcess]:
    """The release's worker, which makes its gateway ready."""
    (release.place / "worker/models").mkdir(parents=True)
    (release.place / "worker/models/models").symlink_to(models_dir)
    started = start(release.chart, "worker", release.place, release.secrets)
    yield started
    started.process.kill()
    started.process.wait()


@pytest.mark.thorough
def test_the_probes_say_when_a_pod_is_alive_and_when_it_is_ready(release: Release, worker: PodProcess) -> None:
    release.gateway.await_probe("startupProbe")
    worker.await_probe("startupProbe")
    worker.await_probe("readinessProbe")
    release.gateway.await_probe("readinessProbe")

    assert release.gateway.probe("livenessProbe") == 200


def test_each_plane_serves_its_own_and_nothing_else(release: Release) -> None:
    release.gateway.await_probe("startupProbe")
    key = {"authorization": f"Bearer {ADMIN_KEY}"}
    asked = {
        (plane, path): httpx.get(release.url(plane) + path, headers=key, timeout=30).status_code
        for plane in PORTS
        for path in ("/healthz", "/admin/v1/lanes", "/metrics")
    }

    assert asked["admin_port", "/admin/v1/lanes"] == 200
    assert asked["port", "/admin/v1/lanes"] == 404
    assert asked["metrics_port", "/admin/v1/lanes"] == 404
    assert asked["metrics_port", "/metrics"] == 200
    assert asked["port", "/healthz"] == 200


@pytest.mark.thorough
@pytest.mark.usefixtures("worker")
def test_the_release_s_own_test_passes(release: Release) -> None:
    """`helm test`, its Service's name and port replaced by where the gateway listens here."""
    release.gateway.await_probe("readinessProbe")
    (pod,) = release.chart.all("Pod")
    (container,) = pod["spec"]["containers"]
    (program,) = [re.sub(r"http://[\w.-]+:\d+", release.url("port"), each) for each in container["args"]]

    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


@pytest.mark.thorough
@pytest.mark.usefixtures("worker")
def test_keda_finds_what_it_asks_for_where_it_looks(release: Release) -> None:
    """The trigger's own URL, key and place in the answer."""
    release.gateway.await_probe("readinessProbe")
    (authentication,) = release.chart.all("TriggerAuthentication")
    (reference,) = authentication["spec"]["secretTargetRef"]
    with release.operators as operators:
        made = operators.post("/admin/v1/tokens", json={"name": "keda", "role": "viewer"}).raise_for_status().json()
    assert (reference["name"], reference["key"]) == ("fairlane-viewer", "key")
    token = made["token"]
    for trigger in release.chart.one("ScaledObject", "worker")["spec"]["triggers"]:
        url = re.sub(r"http://[\w.-]+:\d+", release.url("admin_port"), trigger["metadata"]["url"])
        answer = httpx.get(url, headers={"authorization": f"Bearer {token}"}, timeout=30).raise_for_status().json()

        assert isinstance(found_at(answer, trigger["metadata"]["valueLocation"]), int)
        assert httpx.get(url, timeout=30).status_code == 401


def found_at(answer: dict[str, Any], location: str) -> Any:
    """What GJSON finds at a path of the one form that the chart writes."""
    wanted = re.fullmatch(r'data\.#\(lane=="(\w+)"\)\.(\w+)', location)
    assert wanted is not None
    return next(lane for lane in answer["data"] if lane["lane"] == wanted[1])[wanted[2]]


@pytest.mark.thorough
def test_a_tenant_is_served_by_way_of_the_planes_and_both_end_in_time(release: Release, worker: PodProcess) -> None:
    release.gateway.await_probe("readinessProbe")
    with release.operators as operators:
        operators.post("/admin/v1/tenants", json={"id": "acme"}).raise_for_status()
        made = operators.post("/admin/v1/tenants/acme/keys", json={"name": "first"}).raise_for_status()
    body = {"model": "SmolLM2-135M-Instruct", "messages": [{"role": "user", "content": "Say hi."}], "max_tokens": 4}
    headers = {"authorization": f"Bearer {made.json()['key']}"}

    answer = httpx.post(release.url("port") + "/v1/chat/completions", json=body, headers=headers, timeout=60)

    assert answer.status_code == 200, answer.text
    assert answer.json()["usage"]["completion_tokens"] == 4
    assert (release.gateway.stop(), worker.stop()) == (0, 0)
