"""`fairlane serve` as an operator meets it: first start, second start, bad settings, dead children."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.ports import free_port
from tests.support.system.harness import ADMIN_KEY, MODEL, Server
from tests.system.conftest import StartServer

pytestmark = pytest.mark.system


def test_the_first_start_prints_a_curl_line_that_works_as_pasted(start_server: StartServer) -> None:
    server = start_server()
    printed = server.printed_until("curl") + server.printed_until("}'\n")
    command = re.search(r"curl .*'$", printed, re.DOTALL | re.MULTILINE)

    assert command is not None, printed
    answer = subprocess.run(["bash", "-c", command[0]], capture_output=True, text=True, timeout=60, check=True)
    assert "Paris" in answer.stdout


def test_a_second_start_finds_tenants_keys_and_usage(start_server: StartServer) -> None:
    server = start_server()
    key = server.tenant("kept", limits={"tokens_per_day": 10_000})
    with server.sdk(key) as client:
        client.completions.create(model=MODEL, prompt="Hello", max_tokens=3, extra_body={"ignore_eos": True})
    assert server.stop() == 0

    again = start_server(server.directory)

    with again.sdk(key) as client:
        assert client.models.list().data
    with again.admin() as admin:
        limits = admin.get("/tenants/kept/quota").json()["limits"]
        assert limits["tokens_per_day"]["limit"] == 10_000
        assert limits["tokens_per_day"]["used"] == 4
        assert limits["tokens_per_day"]["reserved"] == 0


def test_a_proxy_in_the_environment_is_not_asked_for_what_serves_here(tmp_path: Path, models_dir: Path) -> None:
    nobody = f"http://127.0.0.1:{free_port()}"
    server = Server(tmp_path, {"WORKER__MODELS_DIR": str(models_dir)}, environ={"HTTP_PROXY": nobody}).start()
    assert server.stop() == 0


@pytest.mark.parametrize("module", ["gateway", "worker"])
def test_a_killed_child_is_started_again_and_serving_goes_on(start_server: StartServer, module: str) -> None:
    server = start_server(LEASE_S="2")
    key = server.tenant("steady")

    server.child(module).send_signal(signal.SIGKILL)

    with server.sdk(key, max_retries=8) as client:
        answer = client.completions.create(model=MODEL, prompt="Hello", max_tokens=3, timeout=60)
    assert answer.usage is not None


@pytest.mark.parametrize(
    ("name", "value", "complaint"),
    [
        ("FAIRLANE_PORT", "70000", "setting port: expected `int` <= 65535"),
        ("FAIRLANE_PROT", "8000", "setting prot: no such setting"),
        ("FAIRLANE_WORKER__BLOCK_SIZE", "-1", "setting worker.block_size"),
        ("FAIRLANE_MODEL", "/nonexistent", "setting model: '/nonexistent': no such directory"),
        ("FAIRLANE_GATEWAY__NONSENSE", "1", "setting gateway.nonsense: no such setting"),
    ],
)
def test_a_bad_setting_stops_the_start_with_one_line(tmp_path: Path, name: str, value: str, complaint: str) -> None:
    ended = serve(tmp_path, {name: value})

    assert ended.returncode == 2
    assert complaint in ended.stderr
    assert len(ended.stderr.strip().splitlines()) == 1


def test_a_model_that_cannot_be_served_stops_the_start_and_no_key_is_lost(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()

    ended = serve(tmp_path, {"FAIRLANE_MODEL": str(tmp_path / "empty"), "FAIRLANE_PORT": str(free_port())})

    assert ended.returncode == 2
    assert "no config.json" in ended.stderr
    assert ended.stderr.strip().endswith("the worker cannot work with its settings: its last line says why")
    assert "A tenant `demo` with one key, shown this once." in ended.stdout


def test_a_directory_that_is_everybody_s_is_refused_with_one_line(tmp_path: Path) -> None:
    tmp_path.chmod(0o1777)

    ended = serve(tmp_path, {"FAIRLANE_PORT": str(free_port())})

    assert ended.returncode == 2
    assert ended.stderr.startswith(f"fairlane: setting data_dir: {tmp_path} is everybody's: ")
    assert len(ended.stderr.splitlines()) == 1


def test_nobody_else_can_read_the_data_directory_whatever_the_umask(tmp_path: Path) -> None:
    directory = tmp_path / "data"
    directory.mkdir(0o755)
    (directory / "lock").touch(0o644)
    before = os.umask(0)
    try:
        ended = serve(directory, {"FAIRLANE_MODEL": str(tmp_path), "FAIRLANE_PORT": str(free_port())})
    finally:
        os.umask(before)

    assert ended.returncode == 2, "the model is none"
    found = [directory, *directory.rglob("*")]
    assert any(path.name.endswith(".aof") for path in found)
    assert not [path for path in found if path.lstat().st_mode & 0o077]


def serve(directory: Path, settings: dict[str, str]) -> "subprocess.CompletedProcess[str]":
    """A start that is to fail."""
    environ = {**os.environ, "FAIRLANE_DATA_DIR": str(directory), "FAIRLANE_ADMIN_KEY": ADMIN_KEY, **settings}
    command = [sys.executable, "-c", "from fairlane.cli.main import main; main()", "serve"]
    return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60, check=False)
