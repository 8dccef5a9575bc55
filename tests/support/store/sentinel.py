"""A master, its replicas and their Sentinels as processes, for tests of what happens when the master goes."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import redis

from fairlane.common.child_processes import die_with_parent
from tests.support.ports import free_port
from tests.support.store.cluster import WAIT_S, wait_for

SERVICE = "fairlane"


@dataclass(frozen=True)
class Certificate:
    """A self-signed certificate of 127.0.0.1."""

    certificate: Path
    key: Path

    def settings(self, port: int) -> list[str]:
        """Return the lines of a server's configuration that make it speak TLS only."""
        files = [
            f"tls-cert-file {self.certificate}",
            f"tls-key-file {self.key}",
            f"tls-ca-cert-file {self.certificate}",
        ]
        return ["port 0", f"tls-port {port}", "tls-auth-clients no", "tls-replication yes", *files]


class Watch:
    """A master, its replicas and the Sentinels that watch them, all on loopback. Most Sentinels must agree that the
    master is down."""

    def __init__(
        self, directory: Path, binary: str, tls: Certificate | None = None, *, replicas: int = 1, sentinels: int = 1
    ) -> None:
        """With `tls`, all of them speak TLS only."""
        self._directory = directory
        self._binary = binary
        self._tls = tls
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self.servers = [free_port() for _ in range(1 + replicas)]
        self.sentinels = [free_port() for _ in range(sentinels)]

    @property
    def url(self) -> str:
        """Return the store's URL. The first Sentinel that it names does not exist."""
        named = ",".join(f"127.0.0.1:{port}" for port in (1, *self.sentinels))
        if self._tls is None:
            return f"redis+sentinel://{named}/{SERVICE}/0"
        return f"rediss+sentinel://{named}/{SERVICE}/0?ssl_ca_certs={self._tls.certificate}"

    def start(self) -> None:
        """Start all processes; return once each Sentinel knows all servers and all other Sentinels."""
        master, *replicas = self.servers
        self._spawn(master, ["save ''", "appendonly yes", "repl-diskless-sync-delay 0"])
        for replica in replicas:
            self._spawn(replica, ["save ''", "appendonly yes", f"replicaof 127.0.0.1 {master}"])
        self.replicated()
        rules = (
            f"monitor {SERVICE} 127.0.0.1 {master} {len(self.sentinels) // 2 + 1}",
            f"down-after-milliseconds {SERVICE} 1000",
            f"failover-timeout {SERVICE} 5000",
            # Without these, a Sentinel looks for replicas every ten seconds only.
            *(f"known-replica {SERVICE} 127.0.0.1 {replica}" for replica in replicas),
        )
        for sentinel in self.sentinels:
            self._spawn(sentinel, [f"sentinel {rule}" for rule in rules], "--sentinel")
        known = f"status=ok,address=127.0.0.1:{master},slaves={len(replicas)},sentinels={len(self.sentinels)}"
        for sentinel in self.sentinels:
            wait_for(lambda port=sentinel: known in str(self.ask(port, "INFO", "sentinel")))  # type: ignore[misc]

    def replicated(self) -> None:
        """Return once all replicas follow the master."""
        wait_for(lambda: sum(map(self._follows, self.servers)) >= len(self.servers) - 1)

    def kill_master(self) -> int:
        """Kill the master's process and return its port."""
        port = self.master()
        self._processes[port].kill()
        self._processes[port].wait()
        return port

    def master(self) -> int:
        """Return the master's port."""
        _, port = self.ask(self.sentinels[0], "SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE)
        return int(port)

    def flush(self) -> None:
        """Delete all keys."""
        self.ask(self.master(), "FLUSHALL")

    def stop(self) -> None:
        """End all processes."""
        for process in self._processes.values():
            process.kill()
            process.wait()

    def ask(self, port: int, *command: str) -> Any:
        """Run one command on one server or Sentinel and return its reply, not converted."""
        tls: dict[str, Any] = {} if self._tls is None else {"ssl": True, "ssl_ca_certs": str(self._tls.certificate)}
        with redis.Redis(host="127.0.0.1", port=port, socket_timeout=WAIT_S, **tls) as client:
            client.response_callbacks.clear()
            return client.execute_command(*command)

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

    def _follows(self, port: int) -> bool:
        try:
            return "master_link_status:up" in str(self.ask(port, "INFO", "replication"))
        except redis.RedisError:
            return False


@contextmanager
def watched(
    directory: Path, binary: str, tls: Certificate | None = None, *, replicas: int = 1, sentinels: int = 1
) -> Iterator[Watch]:
    """Run servers and Sentinels until the end of the context."""
    watch = Watch(directory, binary, tls, replicas=replicas, sentinels=sentinels)
    try:
        watch.start()
        yield watch
    finally:
        watch.stop()
