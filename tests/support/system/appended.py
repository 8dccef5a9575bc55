"""What a store did, read from its append-only file: every write of every script in order, whoever was killed then."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from fairlane.quotas.packing import FIGURES, HELD, MONTH_SUM

Command = tuple[bytes, ...]
ENTRY = [
    "at_ms",
    "job",
    "key",
    "model",
    "lane",
    "prompt_tokens",
    "cached_tokens",
    "output_tokens",
    "preemptions",
    "outcome",
]
"""Fields of the ledger."""


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
    """One tenant's budget, followed write by write."""

    tenant: str
    limit: int
    """Of the month."""
    ledger: dict[str, dict[str, str]] = field(default_factory=dict)
    """By booking."""
    settled: set[str] = field(default_factory=set)
    """Bookings that are over; one without an entry in the ledger was given back, its request refused."""
    held: int = 0
    spent: int = 0
    worst: int = 0
    """The most that was spent and held at one time."""

    def follow(self, directory: Path) -> "Account":
        """All of a store's life."""
        for writes in transactions(directory):
            for command in writes:
                self._take(command)
            self.worst = max(self.worst, self.spent + self.held)
        return self

    def _take(self, command: Command) -> None:
        verb, key = command[0].upper(), command[1].decode() if len(command) > 1 else ""
        if verb in (b"SET", b"MSET"):
            for name, value in zip(command[1::2], command[2::2], strict=False):
                self._set(name.decode(), value)
        elif verb == b"XADD" and key.endswith(f":ledger:{self.tenant}"):
            entry = _entry(command[command.index(b"entry") + 1].decode())
            assert entry["job"] not in self.ledger, "settled twice"
            self.ledger[entry["job"]] = entry

    def _set(self, name: str, value: bytes) -> None:
        if name.endswith(f":figures:tenant:{self.tenant}"):
            figures = FIGURES.unpack_from(value)
            _, prompt, output = figures[HELD : HELD + 3]
            self.held, self.spent = int(prompt + output), int(figures[MONTH_SUM])
        elif ":job:" in name and value == b"settled":
            self.settled.add(name.split(":job:")[1])


def _entry(line: str) -> dict[str, str]:
    """One of the ledger, as `settle` writes it."""
    return dict(zip(ENTRY, line.split("\t"), strict=True))
