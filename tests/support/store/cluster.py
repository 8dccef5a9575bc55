"""Three masters of a Redis Cluster as processes on loopback, for tests of moving slots and dying nodes."""

import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import redis
from redis.crc import REDIS_CLUSTER_HASH_SLOTS, key_slot

from fairlane.common.child_processes import die_with_parent
from tests.support.ports import free_port

WAIT_S = 60.0
MASTERS = 3


class Masters:
    """The masters. Slots of a dead one are unavailable until it restarts, or its replica (`follow`) takes over."""

    def __init__(self, directory: Path, binary: str) -> None:
        self._directory = directory
        self._binary = binary
        self.ports = [free_port() for _ in range(MASTERS)]
        self._buses = {port: free_port() for port in self.ports}
        self._processes: dict[int, subprocess.Popen[bytes]] = {}

    @property
    def url(self) -> str:
        """Return the store's URL. The first node that it names does not exist."""
        return f"redis+cluster://127.0.0.1:1,127.0.0.1:{self.ports[1]}"

    def start(self) -> None:
        """Start the masters, each with a replica."""
        self.begin()
        self.agree()
        for port in self.ports:
            self.follow(port)

    def begin(self) -> None:
        """Start the masters and assign their slots. They need two seconds to `agree`."""
        for port in self.ports:
            self._spawn(port)
        share = -(-REDIS_CLUSTER_HASH_SLOTS // MASTERS)
        for number, port in enumerate(self.ports):
            last = min(REDIS_CLUSTER_HASH_SLOTS, share * (number + 1)) - 1
            self.ask(port, "CLUSTER", "SET-CONFIG-EPOCH", number + 1)
            self.ask(port, "CLUSTER", "ADDSLOTSRANGE", share * number, last)
        for other in self.ports[1:]:
            self._meet(other)

    def stop(self) -> None:
        """End all processes."""
        for process in self._processes.values():
            process.kill()
            process.wait()

    def kill(self, port: int) -> None:
        """Kill a node's process."""
        self._processes[port].kill()
        self._processes[port].wait()

    def restart(self, port: int) -> None:
        """Start a killed node with its data. The others accept it after two seconds."""
        self._spawn(port)

    def follow(self, master: int) -> None:
        """Add a replica to a master, and return once it has all data and all nodes know it."""
        replica = free_port()
        self._buses[replica] = free_port()
        self._spawn(replica)
        self._meet(replica)
        wait_for(lambda: self.ask(replica, "CLUSTER", "REPLICATE", self._id(master)) == b"OK")
        wait_for(lambda: b"master_link_status:up" in self.ask(replica, "INFO", "replication"))
        wait_for(lambda: all(self._knows_replica(port, replica) for port in self.ports))

    def replicate(self, key: str) -> None:
        """Return once a replica has all that was written to the node that holds the key's slot."""
        with redis.Redis(port=self.holder(key), socket_timeout=WAIT_S) as client:
            client.set(key, "", px=1)
            assert client.wait(1, int(WAIT_S * 1_000)) >= 1

    def holder(self, key: str) -> int:
        """Return the port of the node that holds a key's slot."""
        slot = key_slot(key.encode())
        alive = next(port for port in self.ports if self._processes[port].poll() is None)
        for first, last, (_, port, *_), *_ in self.ask(alive, "CLUSTER", "SLOTS"):
            if first <= slot <= last:
                return int(port)
        raise AssertionError(key)

    def begin_move(self, slot: int, source: int, target: int) -> None:
        """Begin to migrate a slot: the target gets its new keys."""
        self.ask(target, "CLUSTER", "SETSLOT", slot, "IMPORTING", self._id(source))
        self.ask(source, "CLUSTER", "SETSLOT", slot, "MIGRATING", self._id(target))

    def move_keys(self, slot: int, source: int, target: int, most: int = 1_000) -> None:
        """Migrate at most this many keys of the slot."""
        for key in self.ask(source, "CLUSTER", "GETKEYSINSLOT", slot, most):
            self.ask(source, "MIGRATE", "127.0.0.1", target, key, 0, 5_000)

    def end_move(self, slot: int, source: int, target: int) -> None:
        """Assign the slot to the target."""
        for port in (target, source, *self.ports):
            self.ask(port, "CLUSTER", "SETSLOT", slot, "NODE", self._id(target))

    def flush(self) -> None:
        """Delete all keys."""
        for port in self.ports:
            self.ask(port, "FLUSHALL")

    def ask(self, port: int, *command: Any) -> Any:
        """Run one command on one node and return its reply, not converted."""
        with redis.Redis(port=port, socket_timeout=WAIT_S) as client:
            client.response_callbacks.clear()
            return client.execute_command(*command)

    def _id(self, port: int) -> bytes:
        found: bytes = self.ask(port, "CLUSTER", "MYID")
        return found

    def agree(self) -> None:
        """Return once all nodes know all slots."""
        wait_for(lambda: all(self._is_whole(port) for port in self.ports))

    def _meet(self, port: int) -> None:
        self.ask(self.ports[0], "CLUSTER", "MEET", "127.0.0.1", port, self._buses[port])

    def _knows_replica(self, port: int, replica: int) -> bool:
        nodes = self.ask(port, "CLUSTER", "NODES").decode().splitlines()
        return any(f":{replica}@" in line and " slave " in line for line in nodes)

    def _is_whole(self, port: int) -> bool:
        told = self.ask(port, "CLUSTER", "INFO").decode().splitlines()
        holds = {"cluster_state:ok", f"cluster_slots_ok:{REDIS_CLUSTER_HASH_SLOTS}", f"cluster_known_nodes:{MASTERS}"}
        return holds <= set(told)

    def _spawn(self, port: int) -> None:
        directory = self._directory / str(port)
        directory.mkdir(exist_ok=True)
        settings = {
            "port": port,
            "bind": "127.0.0.1",
            "dir": directory,
            "save": "",
            "appendonly": "yes",
            "repl-diskless-sync-delay": 0,
            "cluster-enabled": "yes",
            "cluster-port": self._buses[port],
            "cluster-node-timeout": 1_000,
            "cluster-require-full-coverage": "no",
        }
        arguments = [part for name, value in settings.items() for part in (f"--{name}", str(value))]
        with (directory / "log").open("ab") as log:
            self._processes[port] = subprocess.Popen(
                [self._binary, *arguments], stdout=log, stderr=log, preexec_fn=die_with_parent()
            )


def wait_for(holds: Callable[[], bool]) -> None:
    """Return once the condition holds; an error of the store means that it does not."""
    expires_s = time.monotonic() + WAIT_S
    while True:
        with suppress(redis.RedisError):
            if holds():
                return
        assert time.monotonic() < expires_s
        time.sleep(0.02)
