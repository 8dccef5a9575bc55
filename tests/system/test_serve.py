"""`fairlane serve` as an operator meets it: first start, second start, bad settings. Deaths are in `test_faults.py`."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import redis.asyncio

from fairlane.cli.serve import first_start
from fairlane.scheduler.protocol.settings import SharedSettings
from tests.support.ports import free_port
from tests.support.system.harness import ADMIN_KEY, MODEL, Server

pytestmark = pytest.mark.system


def test_the_first_start_prints_a_curl_line_that_works_as_pasted_and_a_second_finds_all(mortal: Server) -> None:
    server = mortal
    printed = server.printed_until("curl") + server.printed_until("}'\n")
    command = re.search(r"curl .*'$", printed, re.DOTALL | re.MULTILINE)
    assert command is not None, printed
    assert (server.directory / "demo.key").read_text() not in printed, "what captures stdout keeps no tenant's key"
    answer = subprocess.run(["bash", "-c", command[0]], capture_output=True, text=True, timeout=60, check=True)
    assert "Paris" in answer.stdout

    key = server.tenant("restarted", limits={"tokens_per_day": 10_000})
    with server.sdk(key) as client:
        client.completions.create(model=MODEL, prompt="Hello", max_tokens=3, extra_body={"ignore_eos": True})
    assert server.stop() == 0
    server.start()

    with server.sdk(key) as client:
        assert client.models.list().data
    with server.admin() as admin:
        limits = admin.get("/tenants/restarted/quota").json()["limits"]
        assert limits["tokens_per_day"]["limit"] == 10_000
        assert limits["tokens_per_day"]["used"] == 4
        assert limits["tokens_per_day"]["reserved"] == 0


@pytest.mark.parametrize(
    ("name", "value", "complaint"),
    [
        ("FAIRLANE_PORT", "70000", "setting port: expected `int` <= 65535"),
        ("FAIRLANE_MODEL", "/nonexistent", "setting model: '/nonexistent': no such directory"),
        pytest.param("FAIRLANE_PROT", "8000", "setting prot: no such setting", marks=pytest.mark.thorough),
        pytest.param("FAIRLANE_WORKER__BLOCK_SIZE", "-1", "setting worker.block_size", marks=pytest.mark.thorough),
        pytest.param(
            "FAIRLANE_GATEWAY__NONSENSE",
            "1",
            "setting gateway.nonsense: no such setting",
            marks=pytest.mark.thorough,
        ),
    ],
)
def test_a_bad_setting_stops_the_start_with_one_line(tmp_path: Path, name: str, value: str, complaint: str) -> None:
    ended = serve(tmp_path, {name: value})

    assert ended.returncode == 2
    assert complaint in ended.stderr
    assert len(ended.stderr.strip().splitlines()) == 1


@pytest.mark.thorough
def test_a_model_that_cannot_be_served_stops_the_start_and_no_key_is_lost_nor_shown(tmp_path: Path) -> None:
    """Nobody else can read what is left in the data directory, whatever it was before, and whatever the umask."""
    directory = tmp_path / "data"
    directory.mkdir(0o755)
    (directory / "lock").touch(0o644)
    (tmp_path / "empty").mkdir()
    before = os.umask(0)
    try:
        ended = serve(directory, {"FAIRLANE_MODEL": str(tmp_path / "empty"), "FAIRLANE_PORT": str(free_port())})
    finally:
        os.umask(before)

    assert ended.returncode == 2
    assert "no config.json" in ended.stderr
    assert ended.stderr.strip().endswith("the worker cannot work with its settings: its last line says why")
    key_file = directory / "demo.key"
    assert f"A tenant `demo` with one key, in {key_file}." in ended.stdout
    assert key_file.read_text().startswith("fl-")
    assert key_file.read_text() not in ended.stdout
    found = [directory, *directory.rglob("*")]
    assert any(path.name.endswith(".aof") for path in found)
    assert not [path for path in found if path.lstat().st_mode & 0o077]


@pytest.mark.anyio
async def test_a_terminal_shows_the_key_of_the_demo_tenant_and_nothing_else_keeps_it(
    valkey_url: str, tmp_path: Path
) -> None:
    settings = SharedSettings(data_dir=str(tmp_path))
    async with redis.asyncio.Redis.from_url(valkey_url) as client:
        printed = await first_start(client, client, settings, on_terminal=True)

    assert re.search(r"-H 'Authorization: Bearer fl-[^']+'", printed)
    assert "Admin key, shown this once: fla-" in printed
    assert os.listdir(tmp_path) == []


def test_a_directory_that_is_everybody_s_is_refused_with_one_line(tmp_path: Path) -> None:
    tmp_path.chmod(0o1777)

    ended = serve(tmp_path, {"FAIRLANE_PORT": str(free_port())})

    assert ended.returncode == 2
    assert ended.stderr.startswith(f"fairlane: setting data_dir: {tmp_path} is shared by all users: ")
    assert len(ended.stderr.splitlines()) == 1


def serve(directory: Path, settings: dict[str, str]) -> "subprocess.CompletedProcess[str]":
    """A start that is to fail."""
    environ = {**os.environ, "FAIRLANE_DATA_DIR": str(directory), "FAIRLANE_ADMIN_KEY": ADMIN_KEY, **settings}
    command = [sys.executable, "-c", "from fairlane.cli.main import main; main()", "serve"]
    return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60, check=False)
