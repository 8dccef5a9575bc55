"""What a chat takes of a store that has no time to rest: a recorded load, sent again as fast as the store answers.

python -m benchmarks.fleet.replay [--rounds 3] [--seconds 20] CHECKOUT CHECKOUT ...

A store beside a small load wakes for each command with cold caches, so that its processor time for each says little of
its limit. Here each checkout's fleet gets one load, with nearly all rows in use, while MONITOR records what the clients
send. A new store then executes the same commands without pauses, over CONNECTIONS connections with one command each.
What the idle fleet sends in as much time is replayed as well, and subtracted. Another replay notes how long each script
took."""

import argparse
import re
import statistics
import threading
import time
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import redis
import rich.box
from rich.table import Table

from benchmarks.common.machine import describe
from benchmarks.common.report import open_console
from benchmarks.common.store import own_store
from benchmarks.fleet.__main__ import FULL, WARM_UP_CHATS, WARM_UP_EVERY_S, Figures, named, table
from benchmarks.fleet.readings import SCRIPTS
from benchmarks.fleet.stand import Fleet, Shape
from benchmarks.gateway.__main__ import PACKAGES

CONNECTIONS = 32
# Scripts that take less are not noted, nor are the commands in scripts, which take less as well.
NOTED_US, NOTED_CALLS = 10, 1_000_000
# Of connections and of the measurement, or pointless when others send them.
SKIPPED = frozenset({"HELLO", "CLIENT", "AUTH", "SELECT", "INFO", "CONFIG", "SLOWLOG", "MONITOR", "MULTI", "EXEC"})
_WORD = re.compile(rb'"((?:[^"\\]|\\.)*)"')
_ESCAPE = re.compile(rb"\\(x[0-9a-f]{2}|.)", re.DOTALL)
_PLAIN = {b"n": b"\n", b"r": b"\r", b"t": b"\t", b"a": b"\a", b"b": b"\b"}

Command = list[bytes]


class Part(NamedTuple):
    """Client commands in order, and the time in which they were recorded."""

    commands: list[Command]
    seconds: float


class Recorder:
    """Reads MONITOR on a thread, from `begin` until the store stops."""

    def __init__(self) -> None:
        self._lines: deque[bytes] = deque()
        self._since_s = time.monotonic()

    def begin(self, url: str) -> None:
        self._store = redis.Redis.from_url(url, socket_timeout=None)
        monitor = self._store.monitor().__enter__()  # type: ignore[no-untyped-call] # redis has no types for it
        self._connection: Any = monitor.connection
        threading.Thread(target=self._read, daemon=True).start()

    def cut(self) -> Part:
        """Return what has come since the last cut."""
        lines = [self._lines.popleft() for _ in range(len(self._lines))]
        since_s, self._since_s = self._since_s, time.monotonic()
        commands = [command for line in lines if b" lua]" not in line[:48] and (command := _parsed(line))]
        return Part(commands, self._since_s - since_s)

    def _read(self) -> None:
        while True:
            try:
                self._lines.append(self._connection.read_response(disable_decoding=True))
            except (redis.RedisError, OSError):
                return


def _parsed(line: bytes) -> Command | None:
    words = [_ESCAPE.sub(_unescaped, word) for word in _WORD.findall(line.partition(b"] ")[2])]
    return words if words and words[0].decode().upper() not in SKIPPED else None


def _unescaped(match: re.Match[bytes]) -> bytes:
    escaped = match[1]
    return bytes.fromhex(escaped[1:].decode()) if len(escaped) == 3 else _PLAIN.get(escaped, escaped)


class Replay:
    """Sends commands to one store."""

    def __init__(self, url: str) -> None:
        self._meter = redis.Redis.from_url(url)
        pool = redis.ConnectionPool.from_url(url)
        self._connections: list[Any] = [pool.make_connection() for _ in range(CONNECTIONS)]
        for connection in self._connections:
            connection.connect()
        # Of each stream, the last entry that was read: the ids of the recording are older than any here.
        self.last_ids: dict[bytes, bytes] = {}

    def run(self, commands: Sequence[Command]) -> float:
        """Send commands, and return the processor time of the store's main thread in microseconds."""
        before_us = self._core_us()
        for batch in _batches(commands):
            if _is_read(batch[0]):
                self._read_streams(batch[0])
                continue
            for connection, command in zip(self._connections, batch, strict=False):
                connection.send_packed_command(connection.pack_command(*command))
            for connection, _ in zip(self._connections, batch, strict=False):
                _answer(connection)
        return self._core_us() - before_us

    def _read_streams(self, command: Command) -> None:
        at = [word.upper() for word in command].index(b"STREAMS") + 1
        names = command[at : at + (len(command) - at) // 2]
        ids = [self.last_ids.get(name, b"0-0") for name in names]
        connection = self._connections[0]
        connection.send_packed_command(connection.pack_command(b"XREAD", b"COUNT", b"256", b"STREAMS", *names, *ids))
        for name, entries in _answer(connection) or ():
            self.last_ids[name] = entries[-1][0]

    def _core_us(self) -> float:
        cpu: Any = self._meter.info("cpu")
        return float(cpu["used_cpu_user_main_thread"] + cpu["used_cpu_sys_main_thread"]) * 1e6


def script_times(url: str, start: Sequence[Command], load: Sequence[Command]) -> dict[str, list[float]]:
    """Return how long each call took while `load` was replayed, in microseconds, by the name of the function."""
    replay, found = Replay(url), defaultdict[str, list[float]](list)
    replay.run(start)
    with redis.Redis.from_url(url) as store:
        store.config_set("slowlog-max-len", NOTED_CALLS)
        store.config_set("slowlog-log-slower-than", NOTED_US)
        store.slowlog_reset()
        replay.run(load)
        entries: Any = store.slowlog_get(-1)
    for entry in entries:
        command, _, rest = entry["command"].partition(b" ")
        if command.lower().decode() in SCRIPTS:
            found[rest.split(b" ")[0].rpartition(b"_")[0].decode() or "others"].append(entry["duration"])
    return found


def _answer(connection: Any) -> Any:  # noqa: ANN401 - a connection's type depends on the URL
    try:
        answer = connection.read_response(disable_decoding=True)
    except redis.ResponseError:  # as in the recording: a function that is not loaded yet
        return None
    return list(answer.items()) if isinstance(answer, dict) else answer


def _is_read(command: Command) -> bool:
    return command[0].upper() == b"XREAD"


def _batches(commands: Sequence[Command]) -> Iterator[list[Command]]:
    """Split commands: each read of a stream alone, the others up to CONNECTIONS at a time."""
    batch: list[Command] = []
    for command in commands:
        if batch and (len(batch) == CONNECTIONS or _is_read(command) or _is_read(batch[0])):
            yield batch
            batch = []
        batch.append(command)
    if batch:
        yield batch


def record(checkout: Path, shape: Shape, seconds: float) -> tuple[list[Part], int]:
    """Return a fleet's commands until it stands, idle, and under load, and the number of chats. Raises StandError."""
    with ExitStack() as stack:
        recorder = Recorder()
        fleet = Fleet(checkout, shape, stack, watch=recorder.begin)
        fleet.load(WARM_UP_CHATS * shape.workers, WARM_UP_EVERY_S / shape.workers)
        start = recorder.cut()
        time.sleep(seconds)
        idle, rate = recorder.cut(), FULL * shape.workers * shape.chats_per_s
        seen = fleet.load(round(rate * seconds), 1.0 / rate)
        return [start, idle, recorder.cut()], seen.chats


def measure(checkout: Path, shape: Shape, seconds: float) -> Figures:
    """Print the time of each function, and return the table's lines by name. Raises StandError."""
    (start, idle, load), chats = record(checkout, shape, seconds)
    with own_store() as url:
        replay = Replay(url)
        replay.run(start.commands)
        idle_us, load_us = replay.run(idle.commands), replay.run(load.commands)
    with own_store() as url:
        times = script_times(url, [*start.commands, *idle.commands], load.commands)
    open_console().print(_by_function(checkout, times, chats))
    part = load.seconds / idle.seconds
    core_us = (load_us - part * idle_us) / chats
    return {
        "commands that clients send for a chat": (len(load.commands) - part * len(idle.commands)) / chats,
        "store core of a chat, µs": core_us,
        "script time of a chat, all of the fleet's included, µs": sum(map(sum, times.values())) / chats,
        "longest script, ms": max(map(max, times.values())) / 1e3,
        "store core of the idle fleet, %": idle_us / idle.seconds / 1e4,
        "chats/s until a store core is full": 1e6 / core_us,
    }


def _by_function(checkout: Path, times: Mapping[str, Sequence[float]], chats: int) -> Table:
    shown = Table(f"function, {checkout.name}", "calls of a chat", "mean, µs", "longest, µs", box=rich.box.MARKDOWN)
    for name, us in sorted(times.items(), key=lambda each: -sum(each[1])):
        shown.add_row(name, f"{len(us) / chats:.2f}", f"{statistics.mean(us):.0f}", f"{max(us):.0f}")
    return shown


def main(arguments: Sequence[str] | None = None) -> int:
    """Print one table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fleet.replay", description=__doc__.splitlines()[0])
    parser.add_argument("checkouts", nargs="+", type=Path, metavar="CHECKOUT")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=20.0, help="of the load, and of the idle fleet before it")
    options = parser.parse_args(arguments)
    checkouts, shape = [one.resolve() for one in options.checkouts], Shape()
    found = []
    for number in range(options.rounds):
        turn = -1 if number % 2 else 1  # every other round in reverse
        found.append([measure(one, shape, options.seconds) for one in checkouts[::turn]][::turn])
    console = open_console()
    console.print(describe(PACKAGES), soft_wrap=True)
    console.print(table([named(one) for one in checkouts], found))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
