"""The worker's settings: what is read, from where, and how a bad one is named."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from fairlane.common.settings_error import SettingsError
from fairlane.worker.config import WorkerSettings, parse, read

STORE = {"FAIRLANE_REDIS_URL": "unix:///tmp/store.sock"}


def settings(environ: Mapping[str, str] | None = None, *arguments: str) -> WorkerSettings:
    return read(parse(arguments), {**STORE, **(environ or {})})


def test_the_defaults_size_the_pools_from_what_is_free() -> None:
    section = settings().worker
    assert (section.kv_memory, section.host_kv_memory, section.block_size, section.max_sequences) == (
        None,
        None,
        16,
        64,
    )


def test_sizes_are_written_with_their_unit() -> None:
    assert settings({"FAIRLANE_WORKER__KV_MEMORY": "512MiB"}).worker.kv_memory == 512 * 2**20


def test_the_environment_wins_over_the_file_and_a_flag_over_both(tmp_path: Path) -> None:
    file = tmp_path / "fairlane.yaml"
    file.write_text("model: from-file\nlog_level: error\nworker: {threads: 3, drain_s: 5}\ngateway: {anything: 1}\n")
    environ = {"FAIRLANE_CONFIG": str(file), "FAIRLANE_WORKER__THREADS": "4", "FAIRLANE_MODEL": "from-environment"}
    found = settings(environ, "--model", "from-flag")
    assert (found.model, found.log_level, found.worker.threads, found.worker.drain_s) == ("from-flag", "error", 4, 5.0)


def test_models_are_kept_in_the_data_directory_unless_told_otherwise() -> None:
    assert settings({"FAIRLANE_DATA_DIR": "/data"}).models_directory == Path("/data/models")
    assert settings({"FAIRLANE_WORKER__MODELS_DIR": "/models"}).models_directory == Path("/models")


@pytest.mark.parametrize(
    ("name", "value", "complaint"),
    [
        ("FAIRLANE_WORKER__BLOCK_SIZE", "0", "setting worker.block_size: expected `int` >= 1"),
        ("FAIRLANE_WORKER__KV_MEMORY", "lots", "setting worker.kv_memory: expected a size such as 512MiB"),
        ("FAIRLANE_WORKER__GRAMMAR_MEMORY", "7MiB", "setting worker.grammar_memory: must be at least 8MiB"),
        (
            "FAIRLANE_WORKER__GRAMMAR_MEMORY_PER_TENANT",
            "1",
            "setting worker.grammar_memory_per_tenant: must be at least 8MiB",
        ),
        ("FAIRLANE_WORKER__DTYPE", "int3", "setting worker.dtype: invalid enum value 'int3'"),
        ("FAIRLANE_WORKER__DEVICE", "tpu", "setting worker.device: expected auto, cpu or cuda[:N], not 'tpu'"),
        ("FAIRLANE_WORKER__COLOUR", "red", "setting worker.colour: no such setting"),
        ("FAIRLANE_WORKER__DRAIN_S", "-1", "setting worker.drain_s: expected `float` >= 0.0"),
        ("FAIRLANE_REDIS_URL", "", "setting redis_url: a worker needs a store; set FAIRLANE_REDIS_URL"),
        ("FAIRLANE_REDIS_URL", "http://x", "setting redis_url: must start with one of redis://, rediss://, unix://"),
    ],
)
def test_a_bad_setting_is_named_in_one_line(name: str, value: str, complaint: str) -> None:
    with pytest.raises(SettingsError) as raised:
        settings({name: value})
    assert str(raised.value).startswith(complaint)
    assert "\n" not in str(raised.value)


def test_an_engine_elsewhere_is_named_by_flags() -> None:
    found = settings({}, "--engine", "vllm", "--engine-url", "http://gpu:8000", "--engine-model", "polite").worker
    assert (found.engine, found.engine_url, found.engine_model) == ("vllm", "http://gpu:8000", "polite")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--engine-url", "http://gpu:8000"), "setting worker.engine: an engine_url needs a kind of engine"),
        (("--engine-model", "polite"), "setting worker.engine: an engine_model needs a kind of engine"),
        (("--engine", "vllm"), "setting worker.engine_url: the engine vllm needs an http:// or https:// URL"),
        (("--engine", "vllm", "--engine-url", "gpu:8000"), "setting worker.engine_url: the engine vllm needs an http"),
        (("--engine", "vllm", "--engine-url", "http://me:pw@gpu"), "setting worker.engine_url: no user, query"),
        (("--engine", "own", "--engine-model", "polite"), "setting worker.engine: an engine_model needs a kind"),
    ],
)
def test_half_an_engine_is_refused(arguments: tuple[str, ...], complaint: str) -> None:
    with pytest.raises(SettingsError) as raised:
        settings({}, *arguments)
    assert str(raised.value).startswith(complaint)


def test_a_file_that_is_named_must_be_readable_yaml(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"missing\.yaml: cannot be read as YAML \(FileNotFoundError\)"):
        settings({}, "--config", str(tmp_path / "missing.yaml"))
    broken = tmp_path / "broken.yaml"
    broken.write_text("worker: [")
    with pytest.raises(SettingsError, match=r"broken\.yaml: cannot be read as YAML"):
        settings({}, "--config", str(broken))


def check_config(tmp_path: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("FAIRLANE_")}
    return subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "fairlane.worker", "--check-config"],
        env={**clean, **environ},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )


def complaints(done: subprocess.CompletedProcess[str]) -> list[str]:
    return [line for line in done.stderr.splitlines() if not line.startswith("import time:")]


def test_check_config_says_nothing_of_good_settings_and_does_not_import_torch(tmp_path: Path) -> None:
    done = check_config(tmp_path, **STORE)
    assert (done.returncode, done.stdout, complaints(done)) == (0, "", [])
    assert "| torch" not in done.stderr
    assert "| redis" not in done.stderr


def test_check_config_names_the_bad_setting_and_exits_2(tmp_path: Path) -> None:
    done = check_config(tmp_path, **STORE, FAIRLANE_WORKER__MAX_SEQUENCES="none")
    assert (done.returncode, done.stdout) == (2, "")
    assert complaints(done) == ["setting worker.max_sequences: expected `int`, got `str`"]
