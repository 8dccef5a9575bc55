"""What a store did, read from its append-only file: every write of every script in order, whoever was killed then."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

Command = tuple[bytes, ...]


def transactions(directory: Path) -> Iterator[list[Command]]:
    """The writes of each script or command that were made as one."""
    folder = directory / "appendonlydir"
    manifest = (folder / "appendonly.aof.manifest").read_text().splitlines()
    found: list[Command] = []
    is_open = False
    for line in manifest:
        words = line.split()
        name, kind = words[1], words[5]
        if kind != "i":
            continue
        for command in _commands((folder / name).read_bytes()):
            verb = command[0].upper()
            if verb == b"MULTI":
                is_open = True
            elif verb == b"EXEC":
                is_open = False
            elif verb != b"SELECT":
                found.append(command)
            if not is_open and found:
                yield found
                found = []


def _commands(data: bytes) -> Iterator[Command]:
    """RESP arrays of bulk strings, up to the end or a torn one."""
    at = 0
    while at < len(data):
        if data[at : at + 1] == b"#":  # a comment, such as a timestamp
            at = data.index(b"\r\n", at) + 2
            continue
        words: list[bytes] = []
        end = data.index(b"\r\n", at)
        count, at = int(data[at + 1 : end]), end + 2
        for _ in range(count):
            end = data.find(b"\r\n", at)
            if end < 0:
                return
            length, at = int(data[at + 1 : end]), end + 2
            words.append(data[at : at + length])
            at += length + 2
        yield tuple(words)


@dataclass
class Account:
    """One tenant's budget and what was published for it, followed write by write."""

    tenant: str
    limit: int
    """Of the month."""
    published: dict[str, int] = field(default_factory=dict)
    """By flight."""
    ledger: dict[str, dict[str, str]] = field(default_factory=dict)
    """By booking."""
    settled: set[str] = field(default_factory=set)
    """Bookings that are over; one without an entry in the ledger was given back, its request refused."""
    held: dict[str, int] = field(default_factory=dict)
    spent: int = 0
    worst: int = 0
    """The most that was spent and held at one time."""

    def follow(self, directory: Path) -> "Account":
        """All of a store's life."""
        for writes in transactions(directory):
            for command in writes:
                self._take(command)
            tokens = self.held.get("input", 0) + self.held.get("output", 0)
            self.worst = max(self.worst, self.spent + tokens)
        return self

    def _take(self, command: Command) -> None:
        verb, key = command[0].upper(), command[1].decode() if len(command) > 1 else ""
        if verb == b"APPEND" and ":ids:" in key:
            flight = key.split(":ids:")[1].rsplit(":", 1)[0]
            self.published[flight] = self.published.get(flight, 0) + len(command[2]) // 4
        elif key.endswith(f":reserved:tenant:{self.tenant}"):
            self._hold(verb, command)
        elif f":spent:tenant:{self.tenant}:" in key and verb == b"HSET":
            self.spent = int(_pairs(command)["month"])
        elif verb == b"HSET" and ":flight:" in key and command[2:4] == (b"state", b"settled"):
            self.settled.add(key.split(":flight:")[1])
        elif verb == b"XADD" and key.endswith(f":ledger:{self.tenant}"):
            entry = _pairs(command[command.index(b"at_ms") - 2 :])
            assert entry["flight"] not in self.ledger, "settled twice"
            self.ledger[entry["flight"]] = entry

    def _hold(self, verb: bytes, command: Command) -> None:
        if verb in (b"DEL", b"UNLINK"):
            self.held.clear()
        elif verb == b"HSET":
            self.held |= {name: int(value) for name, value in _pairs(command).items()}

    @property
    def given_back(self) -> set[str]:
        """Bookings of requests that were refused, though a worker may have begun with them."""
        return self.settled - self.ledger.keys()

    def published_of(self, booking: str) -> int:
        """Tokens of all its flights."""
        return sum(count for flight, count in self.published.items() if flight.split("-")[0] == booking)


def _pairs(command: Command) -> dict[str, str]:
    """Fields and values of a command, after its verb and key."""
    words = [word.decode() for word in command[2:]]
    return dict(zip(words[::2], words[1::2], strict=True))
