"""The processes of a fleet on loopback, the proxies between them, and a store with a replica."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil
import redis.asyncio

from fairlane.cli.embedded_store import valkey_binary
from fairlane.common.child_processes import die_with_parent
from tests.support.ports import free_port
from tests.support.system.harness import ADMIN_KEY
from tests.system.chaos import members
from tests.system.chaos.network import Proxy

READY_S = 120.0
GATEWAYS, WORKERS = 3, 3
LEASE_S = 2.0
# Longer than a process is stopped or cut off from the store.
RESERVATION_LEASE_S = 8.0
QUANTUM = 16


@dataclass
class Member:
    """A process that can be killed and started again."""

    name: str
    command: list[str]
    environ: dict[str, str]
    directory: Path
    running: subprocess.Popen[bytes] | None = None
    started_s: float = 0.0

    @property
    def log(self) -> Path:
        return self.directory / f"{self.name}.log"

    def start(self) -> None:
        self.started_s, dies = time.monotonic(), die_with_parent()

        def prepare() -> None:
            dies()
            signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # until it reports its state on this signal

        with self.log.open("ab") as log:
            self.running = subprocess.Popen(self.command, env=self.environ, stdout=log, stderr=log, preexec_fn=prepare)

    def send(self, number: signal.Signals) -> None:
        if self.running is not None:
            self.running.send_signal(number)

    def kill(self) -> None:
        if self.running is not None:
            self.running.kill()
            self.running.wait()

    def rss(self) -> int:
        """Return the resident memory in bytes, 0 for a dead process."""
        with suppress(psutil.Error):
            if self.running is not None:
                return int(psutil.Process(self.running.pid).memory_info().rss)
        return 0

    async def state(self) -> dict[str, int]:
        """Return the sizes of the process's tables."""
        path, found = Path(self.environ[members.STATE]), dict[str, int]()
        _drop(path)
        async with asyncio.timeout(10.0):
            while not found:
                self.send(signal.SIGUSR1)
                await asyncio.sleep(0.05)
                found = _read(path)
        return found


def _drop(path: Path) -> None:
    path.unlink(missing_ok=True)


def _read(path: Path) -> dict[str, int]:
    return dict(json.loads(path.read_text())) if path.exists() else {}


class Store:
    """Two servers, one of which follows the other, and a proxy on the replication."""

    def __init__(self, directory: Path) -> None:
        self._binary = valkey_binary()
        ports = [free_port(), free_port()]
        self.servers = [Member(f"store{number}", [], dict(os.environ), directory) for number in range(2)]
        self.ports = ports
        self.master = 0
        self.replication = Proxy(free_port(), ports[0])

    async def start(self) -> None:
        await self.replication.start()
        self.start_server(0)
        self.start_server(1, follows=True)

    def start_server(self, number: int, *, follows: bool = False) -> None:
        server = self.servers[number]
        folder = server.directory / server.name
        folder.mkdir(exist_ok=True)
        options = {"port": self.ports[number], "bind": "127.0.0.1", "dir": folder, "save": "", "appendonly": "yes"}
        options |= {"repl-diskless-sync-delay": 0, "repl-backlog-size": "64mb"}
        if follows:
            options["replicaof"] = f"127.0.0.1 {self.replication.port}"
        words = [str(word) for name, value in options.items() for word in (f"--{name}", *str(value).split(" "))]
        server.command = [self._binary, *words]
        server.start()

    @property
    def port(self) -> int:
        return self.ports[self.master]

    async def ask(self, number: int, *command: Any) -> Any:
        async with redis.asyncio.Redis(host="127.0.0.1", port=self.ports[number], socket_timeout=5.0) as client:
            return await client.execute_command(*command)  # type: ignore[no-untyped-call]

    async def data_bytes(self, number: int) -> int:
        """Return a server's memory without its replication backlog, which fills up; 0 if it does not answer."""
        with suppress(redis.RedisError, OSError):
            memory = await self.ask(number, "INFO", "memory")
            return int(memory["used_memory"] - memory["mem_replication_backlog"])
        return 0

    async def answers(self) -> None:
        async with asyncio.timeout(READY_S):
            while True:
                with suppress(redis.RedisError, OSError):
                    await self.ask(self.master, "PING")
                    return
                await asyncio.sleep(0.02)

    async def replicated(self, within_s: float = READY_S) -> bool:
        """Wait until the replica follows, and return whether it does."""
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                while True:
                    with suppress(redis.RedisError, OSError):
                        if (await self.ask(1 - self.master, "INFO", "replication"))["master_link_status"] == "up":
                            return True
                    await asyncio.sleep(0.05)
        return False

    async def promote(self) -> None:
        """Kill the master and make its replica the master. The old one starts anew and follows."""
        old = self.master
        self.servers[old].kill()
        await self.ask(1 - old, "REPLICAOF", "NO", "ONE")
        self.master = 1 - old
        self.replication.reset()
        self.replication.heal()
        self.replication.target_port = self.port
        self.start_server(old, follows=True)

    async def stop(self) -> None:
        await self.replication.stop()
        for server in self.servers:
            server.kill()


@dataclass
class Fleet:
    """All of it. Use it as an asynchronous context."""

    directory: Path
    step_s: float = 0.03
    reservation_lease_s: float = RESERVATION_LEASE_S
    store: Store = field(init=False)
    gateways: list[Member] = field(default_factory=list)
    workers: list[Member] = field(default_factory=list)
    urls: list[str] = field(default_factory=list)
    # By worker and gateway.
    links: dict[tuple[int, int], Proxy] = field(default_factory=dict)
    # By the name of the process.
    to_store: dict[str, Proxy] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.store = Store(self.directory)
        link_ports = [free_port() for _ in range(GATEWAYS)]
        for worker in range(WORKERS):
            for gateway in range(GATEWAYS):
                self.links[worker, gateway] = Proxy(free_port(), link_ports[gateway])
        for number, link_port in enumerate(link_ports):
            port = free_port()
            self.urls.append(f"http://127.0.0.1:{port}")
            own = {
                "PORT": port,
                "ADMIN_KEY": ADMIN_KEY,
                "DATA_DIR": self.directory / f"data{number}",
                "GATEWAY__LINK_PORT": link_port,
                "GATEWAY__RESERVATION_LEASE_S": self.reservation_lease_s,
                "GATEWAY__QUANTUM_TOKENS": QUANTUM,
                "GATEWAY__STORE_TIMEOUT_S": 1,
                "GATEWAY__GRACE_S": 5,
            }
            self.gateways.append(self._member("gateway", number, own))
        for number in range(WORKERS):
            ports = {str(port): self.links[number, gateway].port for gateway, port in enumerate(link_ports)}
            self.workers.append(
                self._member("worker", number, {"WORKER__DRAIN_S": 1}, {members.LINKS: json.dumps(ports)})
            )

    def _member(self, kind: str, number: int, settings: dict[str, Any], more: dict[str, str] | None = None) -> Member:
        name = f"{kind}{number}"
        proxy = self.to_store[name] = Proxy(free_port(), self.store.port)
        environ = {name: value for name, value in os.environ.items() if not name.startswith(("FAIRLANE_", "OTEL_"))}
        settings = {
            "REDIS_URL": f"redis://127.0.0.1:{proxy.port}",
            "LEASE_S": LEASE_S,
            "MODEL": members.MODEL,
            **settings,
        }
        environ |= {f"FAIRLANE_{setting}": str(value) for setting, value in settings.items()}
        environ |= {
            members.STATE: str(self.directory / f"{name}.state"),
            members.STEP: str(self.step_s),
            **(more or {}),
        }
        command = [sys.executable, "-m", "tests.system.chaos.members", kind]
        return Member(name, command, environ, self.directory)

    @property
    def members(self) -> Sequence[Member]:
        return *self.gateways, *self.workers

    @property
    def proxies(self) -> Sequence[Proxy]:
        return *self.links.values(), *self.to_store.values(), self.store.replication

    async def __aenter__(self) -> "Fleet":
        await self.store.start()
        for proxy in (*self.links.values(), *self.to_store.values()):
            await proxy.start()
        await self.store.answers()
        for member in self.members:
            member.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        for member in self.members:
            member.kill()
        for proxy in (*self.links.values(), *self.to_store.values()):
            await proxy.stop()
        await self.store.stop()

    def retarget(self) -> None:
        """Lead all processes to the present master."""
        for proxy in self.to_store.values():
            proxy.target_port = self.store.port
            proxy.reset()

    async def ready(self) -> None:
        """Wait until each gateway serves, and knows all workers."""
        async with httpx.AsyncClient(timeout=5.0) as client, asyncio.timeout(READY_S):
            for url in self.urls:
                while True:
                    with suppress(httpx.TransportError):
                        if (await client.get(f"{url}/readyz")).status_code == httpx.codes.OK:
                            break
                    await asyncio.sleep(0.05)
            while len((await self.admin("GET", "/workers"))["data"]) < WORKERS:  # noqa: ASYNC110 - polled
                await asyncio.sleep(0.05)

    async def admin(self, method: str, path: str, **options: Any) -> Any:
        return (await self.admin_call(method, path, **options)).json()

    async def admin_call(self, method: str, path: str, **options: Any) -> httpx.Response:
        headers = {"Authorization": f"Bearer {ADMIN_KEY}"}
        async with httpx.AsyncClient(base_url=f"{self.urls[0]}/admin/v1", headers=headers, timeout=20.0) as client:
            return (await client.request(method, path, **options)).raise_for_status()

    async def tenant(self, name: str) -> str:
        """Create a tenant with a monthly limit, and return its key."""
        await self.admin("POST", "/tenants", json={"id": name, "limits": {"tokens_per_month": 10**9}})
        return str((await self.admin("POST", f"/tenants/{name}/keys", json={"name": "test"}))["key"])
