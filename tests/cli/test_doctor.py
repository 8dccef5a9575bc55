"""`fairlane doctor`: what it finds with a real store, and what it says to do."""

import json
import socket
import time
from pathlib import Path
from typing import Any

import pytest
import redis
from typer.testing import CliRunner, Result

from fairlane.cli import main as cli
from fairlane.cli.doctor import machine
from fairlane.cli.embedded_store import EmbeddedStore
from fairlane.store import schema
from tests.support.gateway.commands_bench import gateway

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def run(*arguments: str, **environ: str) -> Result:
    port = environ.pop("FAIRLANE_PORT", "") or str(free_port())
    return CliRunner().invoke(cli.app, ["doctor", *arguments], env={"FAIRLANE_PORT": port, **environ})


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


def found(done: Result) -> dict[str, Any]:
    return {each["check"]: each for each in json.loads(done.stdout)}


def test_a_machine_that_is_ready_has_nothing_that_failed(valkey_url: str) -> None:
    done = run("-o", "json", FAIRLANE_REDIS_URL=valkey_url)

    findings = found(done)
    assert done.exit_code == 0, done.output
    assert "valkey" in findings["store"]["found"]
    assert findings["store memory"]["state"] == "ok"
    assert findings["store clock"]["state"] == "ok"
    assert findings["fairlane[gateway]"]["state"] == "ok"
    assert findings.keys() >= {"settings", "versions", "torch", "compiler", "model", "memory", "ulimit", "ports"}
    assert all(each["advice"] for each in findings.values() if each["state"] != "ok")


def test_the_embedded_store_needs_not_run(valkey_url: str) -> None:
    assert "starts its own" in found(run("-o", "json"))["store"]["found"]


def test_a_store_that_drops_what_it_is_given_is_a_fault(valkey: EmbeddedStore) -> None:
    with redis.Redis(unix_socket_path=str(valkey.socket)) as client:
        client.config_set("maxmemory-policy", "allkeys-lru")
        client.config_set("appendonly", "no")
        try:
            done = run("-o", "json", FAIRLANE_REDIS_URL=valkey.url)
        finally:
            client.config_set("maxmemory-policy", "noeviction")
            client.config_set("appendonly", "yes")

    findings = found(done)
    assert done.exit_code == 1
    assert findings["store memory"]["state"] == "fail"
    assert "noeviction" in findings["store memory"]["advice"]
    assert findings["store persistence"]["state"] == "warn"


def test_a_store_of_a_much_later_release_is_a_fault_and_an_empty_one_stays_empty(valkey_url: str) -> None:
    with redis.from_url(valkey_url) as client:
        run("-o", "json", FAIRLANE_REDIS_URL=valkey_url)
        assert client.keys() == []
        client.set(schema.KEY, f"{schema.SCHEMA + 2} {schema.SCHEMA + 1}")

        findings = found(run("-o", "json", FAIRLANE_REDIS_URL=valkey_url))

    assert findings["store schema"]["state"] == "fail"
    assert "too new" in findings["store schema"]["found"]


def test_a_store_that_does_not_answer_is_a_fault_without_its_password() -> None:
    done = run("-o", "json", FAIRLANE_REDIS_URL="redis://:very-secret@127.0.0.1:9/0")

    assert done.exit_code == 1
    assert found(done)["store"]["state"] == "fail"
    assert "very-secret" not in done.output


@pytest.mark.parametrize(("behind_s", "state"), [(60.0, "fail"), (2.0, "warn")])
def test_a_clock_that_is_wrong_is_told(
    valkey_url: str, monkeypatch: pytest.MonkeyPatch, behind_s: float, state: str
) -> None:
    wall = time.time
    monkeypatch.setattr("fairlane.cli.doctor.store.time.time", lambda: wall() - behind_s)

    clock = found(run("-o", "json", FAIRLANE_REDIS_URL=valkey_url))["store clock"]

    assert clock["state"] == state
    assert "NTP" in clock["advice"]


def test_a_port_of_another_program_is_a_fault_and_of_a_gateway_none(
    valkey: EmbeddedStore, valkey_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other, monkeypatch.context() as patched:
        patched.setattr(machine, "ASK_S", 0.1)  # it never answers
        taken = found(run("-o", "json", FAIRLANE_REDIS_URL=valkey_url, FAIRLANE_PORT=str(other.getsockname()[1])))

    assert taken["ports"]["state"] == "fail"
    assert "FAIRLANE_PORT" in taken["ports"]["advice"]
    with gateway(valkey.url) as (url, _):
        at = found(run("-o", "json", FAIRLANE_REDIS_URL=valkey_url, FAIRLANE_URL=url))
        assert at["gateway"]["state"] == "fail"  # it serves the admin API alone, and tells no version


@pytest.mark.parametrize(
    ("environ", "check", "words"),
    [
        ({"FAIRLANE_MODEL": "/no/such/model"}, "model", "FAIRLANE_MODEL"),
        ({"FAIRLANE_WORKER__KV_MEMORY": "900TiB"}, "memory", "FAIRLANE_WORKER__KV_MEMORY"),
        ({"FAIRLANE_DATA_DIR": "/etc/hostname/inside"}, "data directory", "FAIRLANE_DATA_DIR"),
        ({"FAIRLANE_PORT": "many"}, "settings", "fairlane config show"),
        (
            {"FAIRLANE_WORKER__ENGINE": "vllm", "FAIRLANE_WORKER__ENGINE_URL": "http://127.0.0.1:9"},
            "engine",
            "FAIRLANE_WORKER__ENGINE_URL",
        ),
    ],
)
def test_what_fails_says_what_to_do(valkey_url: str, environ: dict[str, str], check: str, words: str) -> None:
    done = run("-o", "json", FAIRLANE_REDIS_URL=valkey_url, **environ)

    assert done.exit_code == 1
    assert found(done)[check]["state"] == "fail"
    assert words in found(done)[check]["advice"]


def test_a_table_has_a_line_for_each(valkey_url: str) -> None:
    table = run(FAIRLANE_REDIS_URL=valkey_url).stdout

    assert "append-only file" in table
    assert table.startswith("check")
