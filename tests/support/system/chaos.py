"""Two gateways, two workers and a store as processes of their own, any of which may be killed at any time."""

import asyncio
import contextlib
import json
import os
import random
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from fairlane.cli.embedded_store import EmbeddedStore
from fairlane.common.child_processes import die_with_parent
from tests.support.ports import free_port
from tests.support.system.harness import ADMIN_KEY

LEASE_S = 1.0
READY_S = 180.0
REQUESTS = 10
LONGEST = 160
"""Output tokens of a request."""


@dataclass
class Process:
    """A command that is started again when it was killed."""

    command: list[str]
    environ: dict[str, str]
    log: Path
    running: subprocess.Popen[bytes] | None = None
    python: str = sys.executable
    directory: Path | None = None
    """Where it runs, if not where the tests do."""

    def start(self) -> None:
        with self.log.open("ab") as log:
            self.running = subprocess.Popen(
                [self.python, *self.command],
                env=self.environ,
                cwd=self.directory,
                stdout=log,
                stderr=log,
                preexec_fn=die_with_parent(),
            )

    def kill(self) -> None:
        """At once, as the kernel does."""
        if self.running is not None:
            self.running.kill()
            self.running.wait()


Victim = Process | EmbeddedStore


def kill(victim: Victim, away_s: float = 0.0) -> None:
    """End it as the kernel does, and start it again so much later. Blocking."""
    if isinstance(victim, EmbeddedStore):
        victim.process.kill()
        victim.process.wait()
    else:
        victim.kill()
    time.sleep(away_s)
    victim.start()


@dataclass
class Received:
    """What a client has of one request."""

    booking: str = ""
    tokens: int = 0
    """Output tokens, as the last usage that arrived has them."""
    is_whole: bool = False
    """Its answer arrived to its end."""
    deaths: int = 0
    """Processes that were killed while it ran, or just before or after."""


@dataclass
class World:
    """All of them. Use it as a context."""

    directory: Path
    chooser: random.Random
    settings: dict[str, str] = field(default_factory=dict)
    """Of its gateways, by `FAIRLANE_*` name without the prefix."""
    step_s: float = 0.0
    """How long a step of its scripted workers takes, beside what it does."""
    worker: tuple[str, ...] = ()
    """Command of its workers; without one they speak from a script."""
    store: EmbeddedStore = field(init=False)
    gateways: list[Process] = field(default_factory=list)
    urls: list[str] = field(default_factory=list)
    workers: list[Process] = field(default_factory=list)
    key: str = ""
    received: list[Received] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.store = EmbeddedStore(self.directory)
        for number in range(2):
            port = free_port()
            environ = {
                **{name: value for name, value in os.environ.items() if not name.startswith("FAIRLANE_")},
                "FAIRLANE_REDIS_URL": self.store.url,
                "FAIRLANE_ADMIN_KEY": ADMIN_KEY,
                "FAIRLANE_PORT": str(port),
                "FAIRLANE_DATA_DIR": str(self.directory / f"data{number}"),
                "FAIRLANE_LEASE_S": str(LEASE_S),
                "FAIRLANE_GATEWAY__RESERVATION_LEASE_S": "2",
                "FAIRLANE_GATEWAY__QUANTUM_TOKENS": "16",
                "FAIRLANE_GATEWAY__STORE_TIMEOUT_S": "1",
                **{f"FAIRLANE_{name}": value for name, value in self.settings.items()},
            }
            self.urls.append(f"http://127.0.0.1:{port}")
            self.gateways.append(Process(["-m", "fairlane.gateway"], environ, self.directory / f"gateway{number}.log"))
            figures = str(round(LEASE_S * 1e3)), "256", str(self.step_s)
            script = ("-m", "tests.support.system.script_worker", self.store.url, *figures)
            command = list(self.worker or script)
            self.workers.append(Process(command, environ, self.directory / f"worker{number}.log"))

    def __enter__(self) -> "World":
        self.store.start()
        for process in (*self.workers, *self.gateways):
            process.start()
        return self

    def __exit__(self, *error: object) -> None:
        for process in (*self.workers, *self.gateways):
            process.kill()
        self.store.stop()

    async def ready(self) -> None:
        """Until both gateways would serve a request."""
        async with httpx.AsyncClient(timeout=5.0) as client, asyncio.timeout(READY_S):
            for url in self.urls:
                while True:
                    with contextlib.suppress(httpx.TransportError):
                        if (await client.get(f"{url}/readyz")).status_code == httpx.codes.OK:
                            break
                    await asyncio.sleep(0.05)

    async def admin(self, method: str, path: str, **options: Any) -> Any:
        """One call of the admin API."""
        headers = {"Authorization": f"Bearer {ADMIN_KEY}"}
        async with httpx.AsyncClient(base_url=f"{self.urls[0]}/admin/v1", headers=headers, timeout=20.0) as client:
            return (await client.request(method, path, **options)).raise_for_status().json()

    async def tenant(self, name: str, **fields: Any) -> str:
        """Make a tenant with one key; the key."""
        await self.admin("POST", "/tenants", json={"id": name, **fields})
        return str((await self.admin("POST", f"/tenants/{name}/keys", json={"name": "test"}))["key"])

    async def schedule(self) -> None:
        """Requests of every kind, and one or two deaths amid them."""
        deaths = self.chooser.choice((1, 1, 2))
        received = [Received(deaths=deaths) for _ in range(REQUESTS)]
        self.received += received
        asking = [asyncio.create_task(self._ask(each)) for each in received]
        for _ in range(deaths):
            await asyncio.sleep(self.chooser.uniform(0.0, 0.25))
            kill(self.chooser.choice(self.victims))
        await asyncio.gather(*asking)

    @property
    def victims(self) -> "list[Victim]":
        """Whom to kill."""
        return [*self.gateways, *self.workers, self.store]

    async def _ask(self, received: Received) -> None:
        chooser = self.chooser
        await asyncio.sleep(chooser.uniform(0.0, 0.2))
        body: dict[str, Any] = {
            "model": "tiny",
            "prompt": [[5] * chooser.randint(1, 4) for _ in range(chooser.choice((1, 1, 2)))],
            "n": chooser.choice((1, 1, 2)),
            "stream": chooser.random() < 0.5,
            "ignore_eos": True,
        }
        if body["stream"]:
            body["stream_options"] = {"include_usage": True, "continuous_usage_stats": True}
        if chooser.random() < 0.7:
            body["max_tokens"] = chooser.randint(1, LONGEST)
        lines = chooser.choice((None, None, chooser.randint(0, 40)))
        headers = {"Authorization": f"Bearer {self.key}", "x-fairlane-deadline-ms": "8000"}
        with contextlib.suppress(httpx.TransportError):
            async with (
                httpx.AsyncClient(timeout=20.0) as client,
                client.stream(
                    "POST", f"{chooser.choice(self.urls)}/v1/completions", json=body, headers=headers
                ) as answer,
            ):
                async for line in answer.aiter_lines():
                    _note(received, line)
                    if lines is not None:
                        lines -= 1
                        if lines <= 0:
                            return  # the client has gone

    async def landed(self, tenant: str = "acme") -> None:
        """Until nothing of a tenant's is reserved any more."""
        until = time.monotonic() + READY_S
        while time.monotonic() < until:
            with contextlib.suppress(httpx.HTTPError):
                limits = (await self.admin("GET", f"/tenants/{tenant}/quota"))["limits"]
                if not any(limit["reserved"] for limit in limits.values()):
                    return
            await asyncio.sleep(0.1)
        raise AssertionError("tokens stay reserved")


def _note(received: Received, line: str) -> None:
    """Keep what a line of an answer, plain or streamed, says of its request."""
    said = line.removeprefix("data: ")
    if said == "[DONE]":
        received.is_whole = True
    if not said.startswith("{"):
        return
    chunk = json.loads(said)
    if usage := chunk.get("usage"):
        received.booking = chunk["id"].partition("-")[2]
        received.tokens = usage["completion_tokens"]
        received.is_whole = received.is_whole or line == said
