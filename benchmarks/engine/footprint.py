"""What a worker takes besides weights and pool, how long it takes to start, and whether it grows: the whole of
`fairlane serve` as users start it, measured from outside."""

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.common.served import MODEL, ServedFairlane
from benchmarks.gateway.load import Order, Seen, over_http
from benchmarks.gateway.stand import LIMITS

MIB = 2**20
POOL_BYTES = 64 * MIB
"""Of the device pool; there is no host pool. What of it is in use cannot be seen from outside, so all of it is used
before anything is measured."""
FILLING, FILLING_TOKENS = 16, 512
"""Prompts, none of them another's prefix, that hold more than the pool together."""
CLIENTS = 32
SLICE_S = 5.0


@dataclass(frozen=True, slots=True)
class Footprint:
    """Of one worker."""

    starts_s: tuple[float, ...]
    """Each from the command to a gateway that serves: store, gateway, and a worker with its weights."""
    bare_bytes: int
    """Of a process that has imported torch and transformers, and no more."""
    worker_bytes: int
    """Resident, after some load, less its pool."""
    grown_bytes: int
    """From a tenth of the requests to their end."""
    requests: int


def footprint(models_dir: Path, requests: int, starts: int) -> Footprint:
    """Start so many times, load the last one with tiny requests, stop. Raises AssertionError where something fails."""
    starts_s = []
    for _ in range(starts - 1):
        with _serving(models_dir) as (_, start_s):
            starts_s.append(start_s)
    with _serving(models_dir) as (server, start_s):
        starts_s.append(start_s)
        key, worker = server.tenant("bench", limits=LIMITS), server.worker()
        _fill_pool(server, key)
        done = _load(server, key, max(CLIENTS, requests // 10))
        before = worker.memory_info().rss
        done += _load(server, key, requests - done)
        after = worker.memory_info().rss
    return Footprint(tuple(starts_s), bare_bytes(), after - POOL_BYTES, after - before, done)


@contextmanager
def _serving(models_dir: Path) -> Iterator[tuple[ServedFairlane, float]]:
    """A server that is stopped at the end, and the seconds that it took to start."""
    settings = {
        "WORKER__KV_MEMORY": str(POOL_BYTES),
        "WORKER__HOST_KV_MEMORY": "0",
        "WORKER__MODELS_DIR": str(models_dir.resolve()),
    }
    with tempfile.TemporaryDirectory(prefix="fairlane-bench-") as directory:
        began = time.perf_counter()
        with ServedFairlane(Path(directory), settings, {"PYTHONPATH": str(Path.cwd())}) as server:
            yield server, time.perf_counter() - began


def _fill_pool(server: ServedFairlane, key: str) -> None:
    """Every block is used once: free ones are given before those of the prefix cache."""
    with server.sdk(key) as client:
        for number in range(FILLING):
            client.completions.create(model=MODEL, prompt=[number + 1] * FILLING_TOKENS, max_tokens=1)


def _load(server: ServedFairlane, key: str, requests: int) -> int:
    """At least so many; how many they were."""
    done = 0
    while done < requests:
        order = Order(kind="plain", url=server.url, seconds=SLICE_S, clients=CLIENTS, tokens=1, key=key, model=MODEL)
        seen: Seen = asyncio.run(over_http(order))
        assert not seen.failed, seen.complaint  # noqa: S101 - a figure of failed requests is none
        done += seen.requests
    return done


def bare_bytes() -> int:
    """Resident bytes of a Python that has imported what every worker imports."""
    code = "import sys, torch, transformers; sys.stdout.write('.'); sys.stdout.flush(); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=os.environ
    ) as process:
        assert process.stdout is not None  # noqa: S101 - a pipe, as asked for
        process.stdout.read(1)
        found: int = psutil.Process(process.pid).memory_info().rss
        process.kill()
    return found
