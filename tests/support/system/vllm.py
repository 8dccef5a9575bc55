"""A vLLM of its own behind the tests of the whole system.

FAIRLANE_TEST_VLLM names the Python of an environment that has it (docs/engines.md). With FAIRLANE_TEST_ENGINE=vllm all
of them run before it.
"""

import os
import time
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import psutil

from tests.support.ports import free_port
from tests.support.system.harness import MODEL

PYTHON = os.environ.get("FAIRLANE_TEST_VLLM", "")
IS_BEHIND = os.environ.get("FAIRLANE_TEST_ENGINE", "own") == "vllm"
MISSING = "FAIRLANE_TEST_VLLM names no Python that has vllm"
START_LIMIT_S = 600.0
SLOTS = 8
BLOCK_SIZE = 32
"""The smallest that vLLM has on a CPU."""


@dataclass
class Vllm:
    """One server. In float32, so that a token is the same however it comes about."""

    directory: Path
    model: Path
    arguments: tuple[str, ...] = ()
    port: int = field(default_factory=free_port)
    _process: psutil.Popen | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def settings(self) -> dict[str, str]:
        """Of a Fairlane before it, by `FAIRLANE_*` name without the prefix."""
        return {"WORKER__ENGINE": "vllm", "WORKER__ENGINE_URL": self.url, "WORKER__MAX_SEQUENCES": str(SLOTS)}

    def begin(self) -> None:
        """Start it; it answers a minute later."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("FAIRLANE_", "OMP_"))}
        environ = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_LOGGING_LEVEL": "WARNING"} | kept
        environ |= {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
        command = [PYTHON, "-m", "vllm.entrypoints.openai.api_server", "--model", str(self.model)]
        command += ["--served-model-name", MODEL, "--host", "127.0.0.1", "--port", str(self.port)]
        command += ["--enable-scale-out", "--scheduling-policy", "priority", "--enable-prompt-tokens-details"]
        command += ["--structured-outputs-config", '{"backend": "guidance"}']
        command += ["--max-num-seqs", str(SLOTS), "--block-size", str(BLOCK_SIZE)]
        command += ["--dtype", "float32", "--enforce-eager", *self.arguments]
        with (self.directory / "vllm.log").open("ab") as log:
            self._process = psutil.Popen(command, env=environ, stdout=log, stderr=log, cwd=self.directory)

    def start(self) -> "Vllm":
        """Start it, and return when it answers."""
        self.begin()
        assert self._process is not None
        end_s = time.monotonic() + START_LIMIT_S
        while not self._is_healthy():
            assert self._process.poll() is None, self.log()[-5_000:]
            assert time.monotonic() < end_s, self.log()[-5_000:]
            time.sleep(0.5)  # polled: nothing tells of it
        return self

    def kill(self) -> None:
        """Every process of it, at once."""
        assert self._process is not None
        for process in (*self._process.children(recursive=True), self._process):
            process.kill()
        self._process.wait()

    def stop(self) -> None:
        """As an operator would."""
        assert self._process is not None
        self._process.terminate()
        try:
            self._process.wait(60)
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
