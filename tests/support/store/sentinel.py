"""A master, a replica and a Sentinel as processes, for tests of what happens when the master goes."""

import asyncio
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import redis.asyncio

from fairlane.common.child_processes import die_with_parent
from tests.support.ports import free_port

SERVICE = "fairlane"
WAIT_S = 60.0


@dataclass(frozen=True)
class Certificate:
    """Of 127.0.0.1, signed by itself."""

    certificate: Path
    key: Path

    def settings(self, port: int) -> list[str]:
        """Lines of a server's configuration: TLS and nothing else."""
        files = [
            f"tls-cert-file {self.certificate}",
            f"tls-key-file {self.key}",
            f"tls-ca-cert-file {self.certificate}",
        ]
        return ["port 0", f"tls-port {port}", "tls-auth-clients no", "tls-replication yes", *files]


class Watch:
    """A master, its replica and one Sentinel on loopback, who decides alone that the master is gone."""

    def __init__(self, directory: Path, binary: str, tls: Certificate | None = None) -> None:
        """`tls`: what all present, where they are to speak nothing else."""
        self._directory = directory
        self._binary = binary
        self._tls = tls
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self.servers = [free_port(), free_port()]
        self.sentinel = free_port()

    @property
    def url(self) -> str:
        """What a process of ours is told; the first Sentinel that it names does not exist."""
        hosts = f"127.0.0.1:1,127.0.0.1:{self.sentinel}/{SERVICE}/0"
        if self._tls is None:
            return f"redis+sentinel://{hosts}"
        return f"rediss+sentinel://{hosts}?ssl_ca_certs={self._tls.certificate}"

    async def start(self) -> None:
        """Return once the Sentinel knows master and replica."""
        master, replica = self.servers
        self._spawn(master, ["save ''", "repl-diskless-sync-delay 0"])
        self._spawn(replica, ["save ''", f"replicaof 127.0.0.1 {master}"])
        await self.replicated()
        rules = (
            f"monitor {SERVICE} 127.0.0.1 {master} 1",
            f"down-after-milliseconds {SERVICE} 1000",
            f"known-replica {SERVICE} 127.0.0.1 {replica}",  # it looks for replicas every ten seconds only
        )
        self._spawn(self.sentinel, [f"sentinel {rule}" for rule in rules], "--sentinel")
        await self._until(self.sentinel, lambda said: "slaves=1" in said, "INFO", "sentinel")

    async def replicated(self) -> None:
        """Return once one server follows the other."""
        async with asyncio.timeout(WAIT_S):
            while not any([await self._follows(port) for port in self.servers]):  # noqa: ASYNC110 - as above
                await asyncio.sleep(0.05)

    async def kill_master(self) -> None:
        """Without a word."""
        self._processes[await self.master()].kill()

    async def master(self) -> int:
        """Its port."""
        _, port = await self._ask(self.sentinel, "SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE)
        return int(port)

    def stop(self) -> None:
        """End all processes."""
        for process in self._processes.values():
            process.kill()
            process.wait()

    def _spawn(self, port: int, lines: list[str], *arguments: str) -> None:
        directory = self._directory / str(port)
        directory.mkdir()
        config = directory / "server.conf"
        listening = [f"port {port}"] if self._tls is None else self._tls.settings(port)
        config.write_text("\n".join([*listening, "bind 127.0.0.1", f"dir {directory}", *lines, ""]))
        with (directory / "log").open("wb") as log:
            self._processes[port] = subprocess.Popen(
                [self._binary, str(config), *arguments], stdout=log, stderr=log, preexec_fn=die_with_parent()
            )

    async def _follows(self, port: int) -> bool:
        with suppress(redis.RedisError):
            return "master_link_status:up" in str(await self._ask(port, "INFO", "replication"))
        return False

    async def _until(self, port: int, holds: Callable[[str], bool], *command: str) -> None:
        async with asyncio.timeout(WAIT_S):
            while True:
                try:
                    if holds(str(await self._ask(port, *command))):
                        return
                except redis.RedisError:
                    pass
                await asyncio.sleep(0.05)

    async def _ask(self, port: int, *command: str) -> list[bytes]:
        tls: dict[str, Any] = {} if self._tls is None else {"ssl": True, "ssl_ca_certs": str(self._tls.certificate)}
        async with redis.asyncio.Redis(host="127.0.0.1", port=port, socket_timeout=None, **tls) as client:
            client.response_callbacks.clear()
            return await client.execute_command(*command)  # type: ignore[no-untyped-call, no-any-return]


@asynccontextmanager
async def watched(directory: Path, binary: str, tls: Certificate | None = None) -> AsyncIterator[Watch]:
    """All of it, for one test."""
    watch = Watch(directory, binary, tls)
    try:
        await watch.start()
        yield watch
    finally:
        watch.stop()
