"""Three masters of a Redis Cluster as processes on loopback, for tests of what happens to slots and nodes."""

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
    """What a dead one held is away until it is back, or until the replica stands in that `follow` made."""

    def __init__(self, directory: Path, binary: str) -> None:
        self._directory = directory
        self._binary = binary
        self.ports = [free_port() for _ in range(MASTERS)]
        self._buses = {port: free_port() for port in self.ports}
        self._processes: dict[int, subprocess.Popen[bytes]] = {}

    @property
    def url(self) -> str:
        """What a process of ours is told; the first node that it names does not exist."""
        return f"redis+cluster://127.0.0.1:1,127.0.0.1:{self.ports[1]}"

    def start(self) -> None:
        """Start the masters, each with a replica."""
        self.begin()
        self.agree()
        for port in self.ports:
            self.follow(port)

    def begin(self) -> None:
        """Start them and say who holds what; it takes them two seconds to `agree`."""
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
        """Without a word."""
        self._processes[port].kill()
        self._processes[port].wait()

    def restart(self, port: int) -> None:
        """With what it held; it takes it two seconds to be let in again."""
        self._spawn(port)

    def follow(self, master: int) -> None:
        """Give a master a replica that has all it holds."""
        replica = free_port()
        self._buses[replica] = free_port()
        self._spawn(replica)
        self._meet(replica)
        wait_for(lambda: self.ask(replica, "CLUSTER", "REPLICATE", self._id(master)) == b"OK")
        wait_for(lambda: b"master_link_status:up" in self.ask(replica, "INFO", "replication"))
        wait_for(lambda: all(self._knows_replica(port, replica) for port in self.ports))

    def holder(self, key: str) -> int:
        """The port of the node that holds a key's slot now."""
        slot = key_slot(key.encode())
        alive = next(port for port in self.ports if self._processes[port].poll() is None)
        for first, last, (_, port, *_), *_ in self.ask(alive, "CLUSTER", "SLOTS"):
            if first <= slot <= last:
                return int(port)
        raise AssertionError(key)

    def begin_move(self, slot: int, source: int, target: int) -> None:
        """From now on new keys of the slot are the target's."""
        self.ask(target, "CLUSTER", "SETSLOT", slot, "IMPORTING", self._id(source))
        self.ask(source, "CLUSTER", "SETSLOT", slot, "MIGRATING", self._id(target))

    def move_keys(self, slot: int, source: int, target: int, most: int = 1_000) -> None:
        """At most so many keys of the slot."""
        for key in self.ask(source, "CLUSTER", "GETKEYSINSLOT", slot, most):
            self.ask(source, "MIGRATE", "127.0.0.1", target, key, 0, 5_000)

    def end_move(self, slot: int, source: int, target: int) -> None:
        """The slot is the target's."""
        for port in (target, source, *self.ports):
            self.ask(port, "CLUSTER", "SETSLOT", slot, "NODE", self._id(target))

    def flush(self) -> None:
        """Delete all keys."""
        for port in self.ports:
            self.ask(port, "FLUSHALL")

    def ask(self, port: int, *command: Any) -> Any:
        """One command to one node, as it is answered."""
        with redis.Redis(port=port, socket_timeout=WAIT_S) as client:
            client.response_callbacks.clear()
            return client.execute_command(*command)

    def _id(self, port: int) -> bytes:
        found: bytes = self.ask(port, "CLUSTER", "MYID")
        return found

    def agree(self) -> None:
        """Return once all know who holds what."""
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
    """Ask again and again; an error is a no."""
    expires_s = time.monotonic() + WAIT_S
    while True:
        with suppress(redis.RedisError):
            if holds():
                return
        assert time.monotonic() < expires_s
        time.sleep(0.02)
