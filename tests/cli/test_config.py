"""`fairlane config`: what holds, where it comes from, and a start's own words where it would not."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from fairlane.cli import main as cli

KEY = "an-admin-key-that-nobody-may-ever-read-123"


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def run(*arguments: str, **environ: str) -> Result:
    return CliRunner().invoke(cli.app, ["config", *arguments], env=environ)


def shown(*arguments: str, **environ: str) -> dict[str, Any]:
    done = run("show", "-o", "json", *arguments, **environ)
    assert done.exit_code == 0, done.output
    return {each["setting"]: (each["value"], each["from"]) for each in json.loads(done.stdout)}


def test_each_setting_says_where_it_comes_from() -> None:
    Path("fairlane.yaml").write_text("port: 9000\nhost: 192.0.2.7\nworker:\n  max_sequences: 4\n")

    found = shown(FAIRLANE_PORT="9001", FAIRLANE_LANES__LATENCY__TTFT_S="2")

    assert found["port"] == (9001, "FAIRLANE_PORT")
    assert found["host"] == ("192.0.2.7", "fairlane.yaml")
    assert found["worker.max_sequences"] == (4, "fairlane.yaml")
    assert found["lanes.latency.ttft_s"] == (2.0, "FAIRLANE_LANES__LATENCY__TTFT_S")
    assert found["lanes.throughput.ttft_s"] == (600.0, "default")
    assert found["gateway.max_headers"] == (128, "default")


def test_only_what_was_changed_is_shown_where_that_is_asked_for() -> None:
    assert shown("--changed", FAIRLANE_PORT="9001") == {"port": (9001, "FAIRLANE_PORT")}


def test_the_help_says_whose_settings_they_are() -> None:
    told = " ".join(run("show", "--help").stdout.split())

    assert "as a start from this shell would have it" in told
    assert "a gateway elsewhere may have other settings" in told


@pytest.mark.parametrize("form", ["table", "json", "yaml"])
def test_secrets_are_masked(form: str) -> None:
    environ = {
        "FAIRLANE_ADMIN_KEY": KEY,
        "FAIRLANE_WORKER__ENGINE_KEY": KEY,
        "FAIRLANE_REDIS_URL": f"redis+sentinel://user:{KEY}@a:1,b:2/s?sentinel_password={KEY}",
        "FAIRLANE_QUOTA_REDIS_URL": f"redis://h:1/0?password={KEY}&ssl_ca_certs=x",
    }

    done = run("show", "-o", form, **environ)

    assert done.exit_code == 0
    assert KEY not in done.output
    assert "redis+sentinel://***@a:1,b:2/s?sentinel_password=***" in done.output
    assert "ssl_ca_certs=x" in done.output


def test_settings_that_a_start_takes_are_fine() -> None:
    done = run("check", FAIRLANE_PORT="9001")

    assert (done.exit_code, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("environ", "arguments", "words"),
    [
        ({"FAIRLANE_PORT": "many"}, (), "setting port: expected `int`"),
        ({"FAIRLANE_NO_SUCH": "1"}, (), "setting no_such: no such setting"),
        ({"FAIRLANE_ADMIN_KEY": "short"}, (), "setting admin_key"),
        ({"FAIRLANE_WORKER__DEVICE": "gpu"}, (), "setting worker.device"),
        ({}, ("--for", "gateway"), "set FAIRLANE_REDIS_URL"),
        ({"FAIRLANE_REDIS_URL": "http://x"}, ("--for", "worker"), "setting redis_url"),
        ({}, ("--config", "nowhere.yaml"), "nowhere.yaml"),
    ],
)
def test_what_a_start_would_refuse_is_told_in_its_words(
    environ: dict[str, str], arguments: tuple[str, ...], words: str
) -> None:
    done = run("check", *arguments, **environ)

    (line,) = done.stderr.splitlines()
    assert (done.exit_code, done.stdout) == (1, "")
    assert words in line


def test_a_gateway_s_and_a_worker_s_faults_are_told_at_once() -> None:
    done = run("check", FAIRLANE_GATEWAY__GRACE="1", FAIRLANE_WORKER__BLOCKS="1")

    assert done.stderr.splitlines() == [
        "fairlane: setting gateway.grace: no such setting",
        "fairlane: setting worker.blocks: no such setting",
    ]


def test_a_setting_that_is_wrong_is_one_line_of_show_too() -> None:
    done = run("show", FAIRLANE_PORT="many")

    assert done.exit_code == 1
    assert "setting port" in done.stderr
