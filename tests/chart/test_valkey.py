"""`templates/valkey`: a store of the release's own."""

import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import redis

from fairlane.cli.embedded_store import valkey_binary
from tests.chart.conftest import Render
from tests.support.chart import Chart
from tests.support.ports import free_port

STARTED_S = 20
PASSWORD = "0123456789abcdef" * 4


def container(chart: Chart) -> dict[str, Any]:
    (found,) = chart.one("StatefulSet", "valkey")["spec"]["template"]["spec"]["containers"]
    return dict(found)


def test_every_pod_reads_the_store_s_url_and_password_from_the_operator_s_secret(render: Render) -> None:
    chart = render("two-models", values={"valkey": {"existingSecret": "mine"}})

    for component in ("gateway", "worker", "worker-small"):
        assert chart.env(component)["FAIRLANE_REDIS_URL"] == {"secretKeyRef": {"name": "mine", "key": "url"}}
    env = {each["name"]: each["valueFrom"] for each in container(chart)["env"]}
    assert env["VALKEYCLI_AUTH"] == {"secretKeyRef": {"name": "mine", "key": "password"}}
    assert chart.all("Secret") == []


def test_two_renders_are_equal(render: Render) -> None:
    assert render("two-models").manifests == render("two-models").manifests


def test_it_keeps_its_file_on_a_volume_that_stays(render: Render) -> None:
    spec = render("two-models").one("StatefulSet", "valkey")["spec"]
    (claim,) = spec["volumeClaimTemplates"]

    assert claim["spec"]["resources"]["requests"] == {"storage": "10Gi"}
    without = render("two-models", values={"valkey": {"persistence": {"enabled": False}}})
    assert "volumeClaimTemplates" not in without.one("StatefulSet", "valkey")["spec"]
    assert "appendonly no" in without.one("ConfigMap", "valkey")["data"]["valkey.conf"]


def test_it_runs_without_privilege_and_writes_to_its_volumes_alone(render: Render) -> None:
    chart = render("two-models")
    pod = chart.one("StatefulSet", "valkey")["spec"]["template"]["spec"]
    security = container(chart)["securityContext"]

    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert security["readOnlyRootFilesystem"] is True


@pytest.fixture
def started(render: Render, tmp_path: Path) -> "tuple[subprocess.Popen[bytes], str]":
    """The container's own command, its paths and its port moved to where this test may write and listen."""
    chart = render("two-models")
    port = free_port()
    for name in ("etc/valkey", "run/valkey", "data", "bin"):
        (tmp_path / name).mkdir(parents=True)
    config = chart.one("ConfigMap", "valkey")["data"]["valkey.conf"].replace("6379", str(port))
    for path in ("/data", "/run/valkey"):
        config = config.replace(f" {path}", f" {tmp_path}{path}")
    (tmp_path / "etc/valkey/valkey.conf").write_text(config)
    (tmp_path / "bin/valkey-server").symlink_to(valkey_binary())
    (script,) = container(chart)["args"]
    for path in ("/etc/valkey", "/run/valkey"):
        script = script.replace(path, f"{tmp_path}{path}")
    command = [*container(chart)["command"], script]
    environ = {"PATH": f"{tmp_path}/bin:/usr/bin:/bin", "VALKEYCLI_AUTH": PASSWORD}
    process = subprocess.Popen(command, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT)
    return process, f"redis://:{PASSWORD}@127.0.0.1:{port}/0"


def test_the_container_s_command_starts_a_store_that_asks_for_the_password(
    started: "tuple[subprocess.Popen[bytes], str]", tmp_path: Path
) -> None:
    process, url = started
    try:
        with redis.from_url(url) as client, redis.from_url(f"redis://{url.partition('@')[2]}") as stranger:
            _await(client)
            kept = client.config_get("append*"), client.config_get("maxmemory-policy")
            with pytest.raises(redis.AuthenticationError):
                stranger.ping()
            arguments = Path(f"/proc/{process.pid}/cmdline").read_text()
    finally:
        process.terminate()
        process.wait(STARTED_S)

    assert kept[0]["appendonly"] == "yes"
    assert kept[1] == {"maxmemory-policy": "noeviction"}
    assert url.split(":")[2].partition("@")[0] not in arguments
    assert (tmp_path / "run/valkey/auth.conf").stat().st_mode & 0o077 == 0
    assert any((tmp_path / "data").iterdir())


def _await(client: "redis.Redis") -> None:
    deadline = time.monotonic() + STARTED_S
    while time.monotonic() < deadline:
        with suppress(redis.ConnectionError):
            client.ping()
            return
        time.sleep(0.05)
    raise TimeoutError
