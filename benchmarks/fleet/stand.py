"""The processes of one checkout: a store, gateways, and workers whose steps only wait."""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import httpx
import redis

from benchmarks.common.served import ADMIN_KEY, free_port
from benchmarks.fleet.load import MODEL, Order, Seen
from benchmarks.fleet.readings import Meter, Spent
from benchmarks.gateway.stand import LIMITS, READY_TIMEOUT_S, StandError, await_ready, generate, running
from fairlane.cli.embedded_store import EmbeddedStore

WORKER = Path(__file__).with_name("worker.py")
HTTP_TIMEOUT_S = 30.0


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What stands, and what the chats are. The idle workers start later, all in one process."""

    gateways: int = 2
    workers: int = 2
    idle_workers: int = 24
    rows: int = 64
    step_ms: float = 30.0
    prompt_tokens: int = 500
    tokens: int = 256
    rest_s: float = 3.0
    """How long an idle fleet is looked at before each load."""

    @property
    def chats_per_s(self) -> float:
        """What one worker can serve."""
        return self.rows / (self.tokens * self.step_ms / 1e3)


@dataclass(frozen=True, slots=True)
class Turn:
    """One load once: what each chat costs above what the idle fleet spends, and the longest script."""

    spent: Spent
    idle: Spent
    seen: Seen
    longest_ms: float


class Fleet:
    """What stands, until its stack is closed."""

    def __init__(
        self, checkout: Path, shape: Shape, stack: ExitStack, *, watch: Callable[[str], object] | None = None
    ) -> None:
        """Start the store, the gateways and the busy workers. `watch` gets the store's URL first. Raises StandError."""
        self.shape, self._checkout, self._stack = shape, checkout, stack
        self._directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fairlane-bench-")))
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        store = EmbeddedStore(self._directory / "store")
        stack.callback(store.stop)
        store.start()
        self._store_url = store.url
        if watch is not None:
            watch(store.url)
        for _ in range(shape.workers):
            self._start_workers(1)
        ports = [free_port() for _ in range(shape.gateways)]
        gateways = [self._start("gateway", "-m", "gateway", "--port", str(port)).pid for port in ports]
        self._meter = Meter(stack.enter_context(redis.Redis.from_url(store.url)), gateways)
        self._urls = [f"http://127.0.0.1:{port}" for port in ports]
        for url in self._urls:
            await_ready(url, self._processes, self._directory)
        base, headers = f"{self._urls[0]}/admin/v1", {"Authorization": f"Bearer {ADMIN_KEY}"}
        self._admin = stack.enter_context(httpx.Client(base_url=base, headers=headers, timeout=HTTP_TIMEOUT_S))
        self._admin.post("/tenants", json={"id": "bench", "limits": LIMITS}).raise_for_status()
        answer = self._admin.post("/tenants/bench/keys", json={"name": "bench"}).raise_for_status()
        self._key = str(answer.json()["key"])
        self._await_workers(shape.workers)

    def add_idle_workers(self) -> None:
        """Start the workers that are only idle. Raises StandError."""
        self._start_workers(self.shape.idle_workers)
        self._await_workers(self.shape.workers + self.shape.idle_workers)

    def turn(self, chats_per_s: float, seconds: float) -> Turn:
        """Look at the idle fleet, then put a load on it. Raises StandError where an answer is not whole."""
        before = self._meter.read()
        time.sleep(self.shape.rest_s)
        began = self._meter.read()
        seen = self.load(max(1, round(chats_per_s * seconds)), 1.0 / chats_per_s)
        longest_ms, idle = self._meter.longest_ms(), began.since(before)
        return Turn(self._meter.read().since(began).above(idle, seen.chats), idle, seen, longest_ms)

    def load(self, chats: int, every_s: float) -> Seen:
        """Send chats, one each `every_s`, and read all of them. Raises StandError where an answer is not whole."""
        order = Order(
            kind="stream",
            url="",
            urls=self._urls,
            seconds=0.0,
            model=MODEL,
            key=self._key,
            chats=chats,
            every_s=every_s,
            prompt_tokens=self.shape.prompt_tokens,
            tokens=self.shape.tokens,
        )
        seen = generate("benchmarks.fleet.load", order, Seen)
        if seen.chats < chats:
            raise StandError(f"{chats - seen.chats} of {chats} answers were not whole, such as: {seen.complaint}")
        return seen

    def _start_workers(self, count: int) -> None:
        arguments = self._store_url, count, self.shape.rows, self.shape.step_ms
        self._start("worker", str(WORKER), *map(str, arguments))

    def _await_workers(self, count: int) -> None:
        deadline = time.monotonic() + READY_TIMEOUT_S
        while len(self._admin.get("/workers", params={"limit": 100}).raise_for_status().json()["data"]) < count:
            if time.monotonic() > deadline:
                said = "".join(log.read_text()[-2_000:] for log in self._directory.glob("worker*.log"))
                raise StandError(f"the workers did not start: {said}")
            time.sleep(0.1)

    def _start(self, kind: str, *arguments: str) -> subprocess.Popen[bytes]:
        variables = {
            "PYTHONPATH": str(self._checkout),
            "FAIRLANE_REDIS_URL": self._store_url,
            "FAIRLANE_ADMIN_KEY": ADMIN_KEY,
            "FAIRLANE_GATEWAY__STORE_TIMEOUT_S": "5",
        }
        name, cores = f"{kind}{len(self._processes)}", sorted(os.sched_getaffinity(0))
        command, log = [sys.executable, *arguments], self._directory / f"{name}.log"
        process = self._stack.enter_context(running(command, log, cores, variables, self._checkout))
        self._processes[name] = process
        return process
