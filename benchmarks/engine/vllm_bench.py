"""What a load generator that others wrote sees of `fairlane serve`, and of vLLM's own server: `vllm bench serve`.

python -m benchmarks.engine.vllm_bench --vllm /opt/vllm/bin/python [--json FILE]

Both serve the same 16-bit weights, one after the other on an otherwise idle machine, to the same two closed loops:
short requests at a concurrency of 64, and prompts of 6,000 tokens at 8. The generator runs in vLLM's environment and
reads what comes as it was written to: a stream that it cannot read counts as failed.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx
from rich.console import Console
from rich.table import Table

from benchmarks.common.machine import describe
from benchmarks.common.served import MODEL, ServedFairlane, free_port
from fairlane.worker.model.files import resolve

START_LIMIT_S, RUN_LIMIT_S = 600.0, 1_800.0
BENCH_SERVE = """
import argparse
from vllm.benchmarks import serve
parser = argparse.ArgumentParser()
serve.add_cli_args(parser)
serve.main(parser.parse_args())
"""
"""`vllm bench serve`: the command itself asks for metadata that the CPU build's package does not have."""


class Load(NamedTuple):
    """A closed loop of requests, their prompts random and all different."""

    requests: int
    concurrency: int
    prompt_tokens: int
    output_tokens: int

    def __str__(self) -> str:
        return f"{self.requests} x {self.prompt_tokens} + {self.output_tokens} at {self.concurrency}"


LOADS = (Load(256, 64, 128, 64), Load(32, 8, 6_000, 16))


class Target(NamedTuple):
    """A server that listens."""

    url: str
    key: str


@contextmanager
def fairlane() -> Iterator[Target]:
    """`fairlane serve`, with KV blocks for the longest load, and time for it: where a prompt takes seconds, the last of
    eight waits for longer than the lane allows, and the other server lets requests wait for ever."""
    settings = {
        "WORKER__KV_MEMORY": "3GiB",
        "WORKER__HOST_KV_MEMORY": "1GiB",
        "LANES__LATENCY__MAX_WAIT_S": "600",
    }
    with tempfile.TemporaryDirectory() as directory, ServedFairlane(Path(directory), settings) as server:
        yield Target(server.url, server.tenant("bench"))


@contextmanager
def vllm(python: Path, model: Path) -> Iterator[Target]:
    """vLLM's server, with as much KV."""
    port = free_port()
    environ = {**os.environ, "VLLM_CPU_KVCACHE_SPACE": "3", "VLLM_CPU_OMP_THREADS_BIND": "0-1"}
    command = [python, "-m", "vllm.entrypoints.openai.api_server", "--model", model, "--served-model-name", MODEL]
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            [*map(str, command), "--port", str(port), "--dtype", "bfloat16"], env=environ, stdout=log, stderr=log
        )
        try:
            _wait(f"http://127.0.0.1:{port}/health", process)
            yield Target(f"http://127.0.0.1:{port}", "none")
        finally:
            process.terminate()
            process.wait(60)


def _wait(url: str, process: "subprocess.Popen[bytes]") -> None:
    with httpx.Client(transport=httpx.HTTPTransport(retries=int(START_LIMIT_S))) as client:
        while process.poll() is None:
            try:
                if client.get(url, timeout=5.0).is_success:
                    return
            except httpx.TransportError:
                continue
    raise SystemExit("vLLM's server did not start")


def generate(python: Path, model: Path, target: Target, load: Load) -> dict[str, Any]:
    """What the generator reports of one loop."""
    with tempfile.TemporaryDirectory() as directory:
        options = {
            "backend": "openai",
            "base-url": target.url,
            "endpoint": "/v1/completions",
            "model": MODEL,
            "tokenizer": model,
            "dataset-name": "random",
            "random-input-len": load.prompt_tokens,
            "random-output-len": load.output_tokens,
            "num-prompts": load.requests,
            "max-concurrency": load.concurrency,
            "percentile-metrics": "ttft,tpot,itl",
            "result-dir": directory,
            "result-filename": "result.json",
        }
        arguments = [part for name, value in options.items() for part in (f"--{name}", str(value))]
        subprocess.run(
            [str(python), "-c", BENCH_SERVE, *arguments, "--ignore-eos", "--save-result"],
            env={**os.environ, "OPENAI_API_KEY": target.key},
            stdout=sys.stderr,
            timeout=RUN_LIMIT_S,
            check=True,
        )
        found: dict[str, Any] = json.loads((Path(directory) / "result.json").read_text())
        return found


def show(found: dict[tuple[str, Load], dict[str, Any]]) -> None:
    """One row a server and load."""
    table = Table("load", "server", "completed", "failed", "output tok/s", "TTFT P50, ms", "P99", "TPOT P50, ms", "P99")
    for (server, load), seen in found.items():
        latencies = (seen[name] for name in ("median_ttft_ms", "p99_ttft_ms", "median_tpot_ms", "p99_tpot_ms"))
        table.add_row(
            str(load),
            server,
            str(seen["completed"]),
            str(load.requests - seen["completed"]),
            f"{seen['output_throughput']:.0f}",
            *(f"{each:.0f}" for each in latencies),
        )
    Console(width=140).print(table)


def main() -> int:
    """Run it; 1 where a request to ours failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--vllm", type=Path, required=True, help="the Python of an environment that has vLLM")
    parser.add_argument("--models-dir", type=Path, default=Path(".fairlane/models"))
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    model = resolve(MODEL, options.models_dir).directory
    found: dict[tuple[str, Load], dict[str, Any]] = {}
    for name, serving in (("fairlane", fairlane()), ("vllm", vllm(options.vllm, model))):
        with serving as target:
            for load in LOADS:
                found[name, load] = generate(options.vllm, model, target, load)
    version = subprocess.run(
        [options.vllm, "-c", "import importlib.metadata as m; print(m.version('vllm-cpu'))"],
        capture_output=True,
        text=True,
        check=True,
    )
    print(describe(others={"vllm-cpu": version.stdout.strip()}))
    show(found)
    if options.json:
        rows = [{"server": name, **load._asdict(), **seen} for (name, load), seen in found.items()]
        options.json.write_text(json.dumps(rows))
    return int(any(seen["completed"] < load.requests for (name, load), seen in found.items() if name == "fairlane"))


if __name__ == "__main__":
    raise SystemExit(main())
