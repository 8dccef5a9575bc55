"""The folder of request traces on this machine: recordings and uploads. Its calls block: use a thread."""

import math
import os
import re
import secrets
import time
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Literal

import msgspec

Kind = Literal["recorded", "uploaded"]
NAME = re.compile(r"(recorded|uploaded)-\d{8}T\d{12}-[0-9a-f]{8}\.trace")
MOST_UPLOADS = 8
DRAFT = ".part"
# Seconds without a write after which a draft's process is considered dead.
FORGOTTEN_S = 3_600.0
READ_BYTES = 256 * 1024
NOTE_EVERY_S = 3_600.0
MOST_REMEMBERED = 10_000


class StoredTrace(msgspec.Struct, frozen=True):
    """One file."""

    name: str
    kind: Kind
    bytes: int
    changed_at: float


class TraceFolder:
    """The traces. Their names contain nothing from a caller. Each kind keeps its newest files."""

    def __init__(self, folder: Path, *, most_recorded: int) -> None:
        self._folder = folder
        self._most: dict[str, int] = {"recorded": most_recorded, "uploaded": MOST_UPLOADS}

    def new(self, kind: Kind) -> Path:
        """Return the path of a new file, whose name sorts after all others."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        now_us = time.time_ns() // 1_000
        moment = time.strftime("%Y%m%dT%H%M%S", time.gmtime(now_us // 1_000_000))
        return self._folder / f"{kind}-{moment}{now_us % 1_000_000:06}-{secrets.token_hex(4)}.trace"

    def listed(self) -> list[StoredTrace]:
        found = list[StoredTrace]()
        with suppress(FileNotFoundError):
            for entry in os.scandir(self._folder):
                match = NAME.fullmatch(entry.name)
                with suppress(FileNotFoundError):
                    if match is not None:
                        stat = entry.stat()
                        kind: Kind = "recorded" if match[1] == "recorded" else "uploaded"
                        found.append(StoredTrace(entry.name, kind, stat.st_size, stat.st_mtime))
        return sorted(found, key=lambda each: order(each.name), reverse=True)

    def path(self, name: str) -> Path | None:
        path = self._folder / name
        return path if NAME.fullmatch(name) and path.is_file() else None

    def sweep(self, kind: Kind) -> None:
        there = [each for each in self.listed() if each.kind == kind]
        for each in there[self._most[kind] :]:
            with suppress(FileNotFoundError):
                (self._folder / each.name).unlink()
        for draft in self._folder.glob(f"*{DRAFT}"):
            with suppress(FileNotFoundError):
                if draft.stat().st_mtime < time.time() - FORGOTTEN_S:
                    draft.unlink()


class TraceReads:
    """Recent reads of traces, by operator. Further calls within an hour count as the same read."""

    def __init__(self) -> None:
        self._noted_s: OrderedDict[tuple[str, str], float] = OrderedDict()

    def is_first(self, operator: str, trace: str) -> bool:
        read, now_s = (operator, trace), time.monotonic()
        if now_s - self._noted_s.get(read, -math.inf) < NOTE_EVERY_S:
            return False
        self._noted_s[read] = now_s
        self._noted_s.move_to_end(read)
        if len(self._noted_s) > MOST_REMEMBERED:
            self._noted_s.popitem(last=False)
        return True


def order(name: str) -> str:
    """Return the sort key of a name: its time, regardless of its kind."""
    return name.partition("-")[2]


def read(path: Path, start: int) -> Iterator[bytes]:
    """Yield a file's bytes from `start` to its current end."""
    with path.open("rb") as file:
        if start > file.seek(0, os.SEEK_END):  # `seek` rejects offsets that no file can have
            return
        file.seek(start)
        while part := file.read(READ_BYTES):
            yield part
