"""The folder of request traces on this machine: what its gateways recorded, and what operators uploaded. Blocking: call
it in a thread.
"""

import os
import re
import secrets
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Literal

import msgspec

Kind = Literal["recorded", "uploaded"]
NAME = re.compile(r"(recorded|uploaded)-\d{8}T\d{12}-[0-9a-f]{8}\.trace")
MOST_UPLOADS = 8
DRAFT = ".part"
"""Ends the name of an upload that is not whole yet."""
FORGOTTEN_S = 3_600.0
"""What nobody has written to for so long a killed gateway has left."""
READ_BYTES = 256 * 1024


class StoredTrace(msgspec.Struct, frozen=True):
    """One file."""

    name: str
    kind: Kind
    bytes: int
    changed_at: float
    """Unix seconds; a recording goes on until some time after it."""


class TraceFolder:
    """Names are made here and hold nothing of a caller's. Files of a kind beyond a count go, the oldest first."""

    def __init__(self, folder: Path, *, most_recorded: int) -> None:
        self._folder = folder
        self._most: dict[str, int] = {"recorded": most_recorded, "uploaded": MOST_UPLOADS}

    def new(self, kind: Kind) -> Path:
        """A path for a new file, which comes after all others."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        now_us = time.time_ns() // 1_000
        moment = time.strftime("%Y%m%dT%H%M%S", time.gmtime(now_us // 1_000_000))
        return self._folder / f"{kind}-{moment}{now_us % 1_000_000:06}-{secrets.token_hex(4)}.trace"

    def listed(self) -> list[StoredTrace]:
        """All that is there, the newest first."""
        return sorted(self._entries(), key=lambda each: order(each.name), reverse=True)

    def path(self, name: str) -> Path | None:
        """Where the trace of this name is; None where there is none."""
        path = self._folder / name
        return path if NAME.fullmatch(name) and path.is_file() else None

    def sweep(self, kind: Kind) -> None:
        """Remove files of a kind beyond its count, and what was never finished."""
        there = [each for each in self.listed() if each.kind == kind]
        for each in there[self._most[kind] :]:
            with suppress(FileNotFoundError):
                (self._folder / each.name).unlink()
        for draft in self._folder.glob(f"*{DRAFT}"):
            with suppress(FileNotFoundError):
                if draft.stat().st_mtime < time.time() - FORGOTTEN_S:
                    draft.unlink()

    def _entries(self) -> Iterator[StoredTrace]:
        with suppress(FileNotFoundError):
            for entry in os.scandir(self._folder):
                found = NAME.fullmatch(entry.name)
                with suppress(FileNotFoundError):
                    if found is not None:
                        stat = entry.stat()
                        kind: Kind = "recorded" if found[1] == "recorded" else "uploaded"
                        yield StoredTrace(entry.name, kind, stat.st_size, stat.st_mtime)


def order(name: str) -> str:
    """By which names are sorted: by time, whatever their kind."""
    return name.partition("-")[2]


def read(path: Path, start: int) -> Iterator[bytes]:
    """A file's bytes from `start` on, as far as it was written when its end is reached; beyond it there are none."""
    with path.open("rb") as file:
        if start > file.seek(0, os.SEEK_END):  # not every place is one that a file could have
            return
        file.seek(start)
        while part := file.read(READ_BYTES):
            yield part
