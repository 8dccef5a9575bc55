"""The servers that are compared, one at a time, on the same machine and model."""

import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from benchmarks.common.served import ServedFairlane, free_port
from benchmarks.engines.load import Door, FairlaneDoor, VllmDoor
from fairlane.scheduler.protocol.lanes import LaneName

ROOT = Path(__file__).parents[2]
LANE_SCHEDULER = "fairlane.worker.vllm.LaneScheduler"
START_LIMIT_S = 900.0
STOP_LIMIT_S = 60.0
SLOTS = 8


@dataclass(frozen=True)
class Arm:
    """One way to serve: vLLM with these arguments, and Fairlane before it or not."""

    name: str
    arguments: tuple[str, ...]
    is_behind_fairlane: bool = False


_PRIORITY = ("--scheduling-policy", "priority")
_LANES = (*_PRIORITY, "--scheduler-cls", LANE_SCHEDULER)
ARMS = (
    Arm("vLLM, FCFS", ("--scheduling-policy", "fcfs")),
    Arm("vLLM, its priority policy", _PRIORITY),
    Arm("vLLM with LaneScheduler", _LANES),
    Arm("Fairlane before vLLM", _PRIORITY, is_behind_fairlane=True),
    Arm("Fairlane before vLLM with LaneScheduler", _LANES, is_behind_fairlane=True),
)


@contextmanager
def served(arm: Arm, python: str, model: Path, log: Path, *, more: tuple[str, ...] = ()) -> Iterator[Door]:
    """Where the arm is asked, for as long as the block runs. Raises RuntimeError where it does not start."""
    with _vllm(arm, python, model, log, more) as url:
        if not arm.is_behind_fairlane:
            yield VllmDoor(url)
            return
        with behind_fairlane(url, model, SLOTS, model.name) as door:
            yield door


@contextmanager
def behind_fairlane(url: str, model: Path, slots: int, name: str) -> Iterator[Door]:
    """A whole Fairlane before an engine that stands at `url` and serves by `name`."""
    settings = {
        "MODEL": str(model),
        "WORKER__ENGINE": "vllm",
        "WORKER__ENGINE_URL": url,
        "WORKER__MAX_SEQUENCES": str(slots),
    }
    with ServedFairlane(Path(tempfile.mkdtemp(prefix="engines-")), settings) as fairlane:
        keys = {lane: fairlane.tenant(lane) for lane in LaneName}
        yield FairlaneDoor(fairlane.url, name, keys)


@contextmanager
def _vllm(arm: Arm, python: str, model: Path, log: Path, more: tuple[str, ...]) -> Iterator[str]:
    port = free_port()
    command = [python, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model), "--port", str(port)]
    command += ["--host", "127.0.0.1", "--enable-scale-out", "--max-num-seqs", str(SLOTS), "--max-model-len", "2048"]
    command += [
        "--enable-prefix-caching",
        "--enable-prompt-tokens-details",
        "--served-model-name",
        model.name,
        *arm.arguments,
        *more,
    ]
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "FAIRLANE_"))}
    environ = {"VLLM_CPU_KVCACHE_SPACE": "2"} | environ | {"PYTHONPATH": str(ROOT)}
    with log.open("wb") as out:
        process = subprocess.Popen(command, env=environ, stdout=out, stderr=subprocess.STDOUT, cwd=log.parent)
    try:
        wait_until_ready(f"http://127.0.0.1:{port}/health", process, log)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        try:
            process.wait(STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def wait_until_ready(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    """Until the process answers there. Raises RuntimeError where it ends instead, or takes too long."""
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
