"""A real vLLM of its own for the tests that ask one.

FAIRLANE_TEST_VLLM names the Python of an environment that has it (docs/engines.md); without it these tests are skipped.
With FAIRLANE_TEST_ENGINE=vllm those of the whole system run before one.
"""

import os
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import httpx
import psutil
import pytest

from tests.support.ports import free_port

PYTHON = os.environ.get("FAIRLANE_TEST_VLLM", "")
IS_BEHIND = os.environ.get("FAIRLANE_TEST_ENGINE", "own") == "vllm"
MISSING = "FAIRLANE_TEST_VLLM names no Python that has vllm"
needs_vllm = pytest.mark.skipif(not PYTHON, reason=MISSING)
START_LIMIT_S, STOP_LIMIT_S = 600.0, 60.0
SLOTS = 8
IMPORTS = Path(__file__).with_name("vllm_imports")
"""On the path of its Python: what lets it import torchvision, which models with images need."""
SMALL_BLOCKS = ("--block-size", "32")
"""The smallest that vLLM has on a CPU."""


def server_command(model: Path, name: str, port: int, *, slots: int = SLOTS) -> list[str]:
    """What its Python is given, as docs/engines.md has it. In float32, so that a token is the same however it comes
    about."""
    command = ["-m", "vllm.entrypoints.openai.api_server", "--model", str(model), "--served-model-name", name]
    command += ["--host", "127.0.0.1", "--port", str(port), "--max-num-seqs", str(slots)]
    command += ["--enable-scale-out", "--scheduling-policy", "priority", "--enable-prompt-tokens-details"]
    command += ["--structured-outputs-config", '{"backend": "guidance"}']
    return [*command, "--dtype", "float32", "--enforce-eager"]


def environ(**more: str) -> dict[str, str]:
    """The variables of its process: this one's, but for Fairlane's own and the threads that tests have."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("FAIRLANE_", "OMP_"))}
    unless_told = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_LOGGING_LEVEL": "WARNING"}
    told = unless_told | kept | {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"} | more
    return told | {"PYTHONPATH": os.pathsep.join([str(IMPORTS), *filter(None, [told.get("PYTHONPATH")])])}


@dataclass
class Vllm:
    """One server. Use it as a context, or start and stop it."""

    directory: Path
    """Of its log."""
    model: Path
    name: str = ""
    """That it serves the model by; else that of the model's directory."""
    arguments: tuple[str, ...] = ()
    """Beside those of `server_command`."""
    variables: dict[str, str] = field(default_factory=dict)
    """Beside those of `environ`."""
    port: int = field(default_factory=free_port)
    _process: psutil.Popen | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def settings(self) -> dict[str, str]:
        """Of a Fairlane before it, by `FAIRLANE_*` name without the prefix."""
        return {"WORKER__ENGINE": "vllm", "WORKER__ENGINE_URL": self.url, "WORKER__MAX_SEQUENCES": str(SLOTS)}

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> Self:
        """Start it, and return when it answers: a minute later."""
        command = [PYTHON, *server_command(self.model, self.name or self.model.name, self.port), *self.arguments]
        with (self.directory / "vllm.log").open("ab") as log:
            self._process = psutil.Popen(
                command, env=environ(**self.variables), stdout=log, stderr=log, cwd=self.directory
            )
        end_s = time.monotonic() + START_LIMIT_S
        try:
            while not self._is_healthy():
                assert self._process.poll() is None, self.log()[-5_000:]
                assert time.monotonic() < end_s, self.log()[-5_000:]
                time.sleep(0.5)  # polled: nothing tells of it
        except BaseException:
            self.kill()
            raise
        return self

    def kill(self) -> None:
        """Every process of it that still runs, at once."""
        assert self._process is not None
        with suppress(psutil.NoSuchProcess):
            for process in (*self._process.children(recursive=True), self._process):
                with suppress(psutil.NoSuchProcess):
                    process.kill()
        self._process.wait()

    def stop(self) -> None:
        """As an operator would."""
        assert self._process is not None
        self._process.terminate()
        try:
            self._process.wait(STOP_LIMIT_S)
        except psutil.TimeoutExpired:
            self.kill()

    def log(self) -> str:
        """What it logged."""
        return (self.directory / "vllm.log").read_text(errors="replace")

    def _is_healthy(self) -> bool:
        try:
            return httpx.get(f"{self.url}/health", timeout=5.0, trust_env=False).status_code == httpx.codes.OK
        except httpx.TransportError:
            return False
