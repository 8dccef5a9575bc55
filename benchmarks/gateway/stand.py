"""A whole gateway on one core, with everything on, and all else that a measurement needs on the others."""

import asyncio
import contextlib
import http.server
import os
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import msgspec
import redis.asyncio

from benchmarks.common.served import free_port
from benchmarks.gateway.instant import MODEL, card
from benchmarks.gateway.load import LoadKind, Order, Seen
from fairlane.cli.embedded_store import EmbeddedStore
from fairlane.common.child_processes import die_with_parent
from fairlane.quotas.api_keys import KeyStore
from fairlane.quotas.tenants import TenantStore
from fairlane.scheduler.queue.registry import RedisRegistry, queue_name

TRACE_SAMPLE = 0.1
READY_TIMEOUT_S = 60.0
LOAD_TIMEOUT_S = 300.0
TENANT = "bench"
LIMITS = {
    "requests_per_minute": 10**9,
    "tokens_per_minute": 10**12,
    "tokens_per_day": 10**14,
    "concurrent_requests": 10**6,
    "queued_requests": 10**6,
}
"""All that a limit costs, and never refused."""
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
T = TypeVar("T")


class StandError(RuntimeError):
    """Something that a measurement needs did not start, or did not do what it was asked."""


@dataclass(frozen=True)
class Peer:
    """Another gateway, that somebody has started before `benchmarks.gateway.mock`: see benchmarks/peers.md."""

    name: str
    url: str
    key: str = "sk-bench"
    headers: dict[str, str] = field(default_factory=dict, hash=False)


class _Sink(http.server.BaseHTTPRequestHandler):
    """Takes traces in and drops them."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        """One batch of spans."""
        self.rfile.read(int(self.headers.get("content-length", 0)))
        self.server.batches += 1  # type: ignore[attr-defined] # its own server has it
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the library's own signature
        """Nothing."""


class Sink(http.server.ThreadingHTTPServer):
    """Where the gateway's traces go: on, and at no cost of ours. Use it as a context."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Sink)
        self.batches = 0

    def __enter__(self) -> "Sink":
        threading.Thread(target=self.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()


@dataclass
class Stand:
    """One gateway that answers. `cpu_s` before and after a load tell what it cost."""

    url: str
    key: str
    store_url: str
    queue: str
    gateway: subprocess.Popen[bytes]
    sink: Sink
    elsewhere: Callable[[], None] = field(repr=False)
    """Keeps a child off the gateway's core."""

    def cpu_s(self) -> float:
        """Processor time that the gateway has taken so far, all its threads together."""
        return cpu_s(self.gateway.pid)

    def load(
        self, kind: LoadKind, *, seconds: float, tokens: int, clients: int = 1, peer: "Peer | None" = None
    ) -> Seen:
        """Put a load on it, or on a peer, from a process of its own.

        Raises StandError where an answer was not as it should be.
        """
        url = peer.url if peer else self.store_url if kind == "direct" else self.url
        order = Order(
            kind=kind,
            url=url,
            seconds=seconds,
            tokens=tokens,
            clients=clients,
            key=peer.key if peer else self.key,
            headers=peer.headers if peer else {},
            model=MODEL,
            queue=self.queue,
        )
        seen = generate("benchmarks.gateway.load", order, Seen, self.elsewhere)
        if seen.failed:
            raise StandError(f"{seen.failed} of {seen.requests} answers were not whole, such as: {seen.complaint}")
        return seen


def generate(module: str, order: msgspec.Struct, seen: type[T], in_child: Callable[[], None] | None = None) -> T:
    """Run a load generator in its own process, and return what it saw. Raises StandError if it fails."""
    command = [sys.executable, "-m", module, msgspec.json.encode(order).decode()]
    done = subprocess.run(command, capture_output=True, timeout=LOAD_TIMEOUT_S, preexec_fn=in_child, check=False)
    if done.returncode or not done.stdout:
        raise StandError(f"the load generator failed ({done.returncode}): {done.stderr.decode()[-2000:]}")
    return msgspec.json.decode(done.stdout, type=seen)


def cpu_s(pid: int) -> float:
    """Processor time of a process, user and system."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


@contextlib.contextmanager
def stand(
    gateway_module: Sequence[str] = ("gateway",),
    *,
    checkout: Path | None = None,
    variables: Mapping[str, str] | None = None,
) -> Iterator[Stand]:
    """Store, engine, trace sink and gateway, until the block ends. Raises StandError. `gateway_module`: what is run as
    the gateway, with what stands before its options; `checkout`: whose gateway and engine, here if None; `variables`:
    further settings of the gateway."""
    cores = sorted(os.sched_getaffinity(0))
    here, elsewhere = cores[:1], cores[1:] or cores
    os.sched_setaffinity(0, elsewhere)  # ours, and by inheritance the store's
    with contextlib.ExitStack() as stack:
        stack.callback(os.sched_setaffinity, 0, cores)
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fairlane-bench-")))
        store = EmbeddedStore(directory / "store")
        stack.callback(store.stop)
        store.start()
        sink = stack.enter_context(Sink())
        command = [sys.executable, "-m", "benchmarks.gateway.instant", store.url]
        engine = stack.enter_context(running(command, directory / "engine.log", elsewhere, cwd=checkout))
        key, queue = asyncio.run(_prepare(store.url))
        port = free_port()
        gateway = stack.enter_context(
            running(
                [sys.executable, "-m", *gateway_module, "--port", str(port)],
                directory / "gateway.log",
                here,
                {
                    "FAIRLANE_REDIS_URL": store.url,
                    "FAIRLANE_GATEWAY__TRACE_SAMPLE": str(TRACE_SAMPLE),
                    "FAIRLANE_GATEWAY__STORE_TIMEOUT_S": "5",
                    "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{sink.server_port}",
                    **(variables or {}),
                },
                checkout,
            )
        )
        url = f"http://127.0.0.1:{port}"
        await_ready(url, {"engine": engine, "gateway": gateway}, directory)
        yield Stand(url, key, store.url, queue, gateway, sink, _pinned(elsewhere))


async def _prepare(url: str) -> tuple[str, str]:
    """A tenant's key, and the name of the engine's queue."""
    client = redis.asyncio.from_url(url)
    key = await tenant_key(client, TENANT)
    sha256 = await RedisRegistry(client).announce(card())
    await client.aclose()
    return key, queue_name(MODEL, sha256)


async def tenant_key(client: redis.asyncio.Redis, tenant_id: str) -> str:
    """A key of a new tenant whose limits are none to a benchmark."""
    tenant = await TenantStore(client).create({"id": tenant_id, "limits": LIMITS})
    return (await KeyStore(client).create(tenant, {"name": "bench"})).secret


@contextlib.contextmanager
def running(
    command: Sequence[str],
    log: Path,
    cores: Sequence[int],
    variables: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> Iterator[subprocess.Popen[bytes]]:
    """A process until the block ends, on these cores."""
    with log.open("wb") as out:
        process = subprocess.Popen(
            command,
            stdout=out,
            stderr=out,
            stdin=subprocess.DEVNULL,
            env={**os.environ, **(variables or {})},
            cwd=cwd,
            preexec_fn=_pinned(cores),
        )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(10.0)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _pinned(cores: Sequence[int]) -> Callable[[], None]:
    arm = die_with_parent()

    def pin() -> None:
        os.sched_setaffinity(0, cores)
        arm()

    return pin


def await_ready(url: str, processes: Mapping[str, subprocess.Popen[bytes]], directory: Path) -> None:
    """Wait until a gateway is ready. Raises StandError where one of the processes behind it ends or is too slow."""
    deadline = time.monotonic() + READY_TIMEOUT_S
    while not _is_ready(url):
        dead = [name for name, process in processes.items() if process.poll() is not None]
        if dead or time.monotonic() > deadline:
            name = dead[0] if dead else "gateway"
            said = (directory / f"{name}.log").read_text()[-2000:]
            raise StandError(f"the {name} did not start: {said}")
        time.sleep(0.05)


def _is_ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/readyz", timeout=1.0) as answer:  # noqa: S310 - our own http address
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False
