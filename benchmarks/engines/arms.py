"""The servers that are compared, one at a time, on the same machine and model."""

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from benchmarks.common.served import free_port

ROOT = Path(__file__).parents[2]
LANE_SCHEDULER = "fairlane.worker.vllm.LaneScheduler"
START_LIMIT_S = 900.0
STOP_LIMIT_S = 60.0
SLOTS = 8


@dataclass(frozen=True)
class Arm:
    """One way to serve: vLLM with these arguments."""

    name: str
    arguments: tuple[str, ...]


ARMS = (
    Arm("vLLM, FCFS", ("--scheduling-policy", "fcfs")),
    Arm("vLLM, its priority policy", ("--scheduling-policy", "priority")),
    Arm("vLLM with LaneScheduler", ("--scheduling-policy", "priority", "--scheduler-cls", LANE_SCHEDULER)),
)


@contextmanager
def served(arm: Arm, python: str, model: Path, log: Path, *, more: tuple[str, ...] = ()) -> Iterator[str]:
    """The base URL of the arm's server, for as long as the block runs. Raises RuntimeError where it does not start."""
    port = free_port()
    command = [python, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model), "--port", str(port)]
    command += ["--host", "127.0.0.1", "--enable-scale-out", "--max-num-seqs", str(SLOTS), "--max-model-len", "2048"]
    command += ["--enable-prefix-caching", *arm.arguments, *more]
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "FAIRLANE_"))}
    environ = {"VLLM_CPU_KVCACHE_SPACE": "2"} | environ | {"PYTHONPATH": str(ROOT)}
    with log.open("wb") as out:
        process = subprocess.Popen(command, env=environ, stdout=out, stderr=subprocess.STDOUT, cwd=log.parent)
    try:
        _wait(f"http://127.0.0.1:{port}/health", process, log)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        try:
            process.wait(STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_LIMIT_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(f"the server ended with {process.returncode}: see {log}")
        try:
            if httpx.get(url, timeout=5.0).status_code == httpx.codes.OK:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.5)
    raise RuntimeError(f"the server was not ready after {START_LIMIT_S:.0f} s: see {log}")
