"""Turns at parsing, for reads that hold many lines: one read of 256 KiB may be 43,000 chunks of a byte.

    a read of few lines  ──> parsed at once
    any other            ──> waits here; its connection is not read meanwhile
    each turn            ──> pieces of PIECE_BYTES, one connection after the other, until MOST_EVENTS were parsed

Parsing costs by the number of callbacks, not by bytes, so that a turn counts those. After a turn that was used up the
loop is free for REST_S. Connections take turns by their holder (a tenant, or a stranger's address), so that many
connections get no more than one. What waits is bounded for each holder and in all.

Connections that only discard what comes are read one every REST_S as well.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from typing import Protocol

PIECE_BYTES = 2_048
"""At most 340 chunks of a byte."""
MOST_LINES = 256
"""Of a read that is parsed at once: a request has fewer, and each callback of the parser takes a line of its own."""
MOST_EVENTS = 256
"""Callbacks of one turn, after which the piece in hand is the last."""
TURN_BYTES = 128 * 1024
REST_S = 0.001
MOST_BYTES, MOST_HOLDER_BYTES = 32 * 2**20, 4 * 2**20


def has_many_lines(data: bytes) -> bool:
    """Whether parsing this read may take long."""
    return len(data) > MOST_LINES and data.count(b"\n") > MOST_LINES


class Parsing(Protocol):
    """A connection with bytes to parse."""

    def parse(self, piece: bytes) -> int:
        """Parse the next bytes. Return the number of callbacks that they made."""

    def parsed(self) -> None:
        """All that waited was parsed."""


class _Waiting:
    """What one connection has still to parse."""

    __slots__ = ("at", "data", "holder")

    def __init__(self, data: bytes, holder: str) -> None:
        self.data, self.at, self.holder = data, 0, holder

    @property
    def left(self) -> int:
        return len(self.data) - self.at

    def next_piece(self) -> bytes:
        piece = self.data[self.at : self.at + PIECE_BYTES]
        self.at += len(piece)
        return piece


class Turns:
    """All connections of one port that wait for a turn."""

    def __init__(self, *, most_bytes: int = MOST_BYTES, most_holder_bytes: int = MOST_HOLDER_BYTES) -> None:
        self._most_bytes, self._most_holder_bytes = most_bytes, most_holder_bytes
        self._waiting: dict[Parsing, _Waiting] = {}
        self._lines: OrderedDict[str, OrderedDict[Parsing, None]] = OrderedDict()
        self._holder_bytes: dict[str, int] = {}
        self._next: asyncio.Handle | None = None
        self._discarding_s = 0.0
        """When the next connection that discards may be read, on the loop's clock."""
        self.waiting_bytes = 0

    def wait(self, connection: Parsing, holder: str, data: bytes) -> bool:
        """Parse `data` in turns. Return False, and keep nothing, where its holder or all have too much waiting."""
        found = self._waiting.get(connection)
        holder = holder if found is None else found.holder
        own_bytes = self._holder_bytes.get(holder, 0) + len(data)
        if own_bytes > self._most_holder_bytes or self.waiting_bytes + len(data) > self._most_bytes:
            return False
        if found is None:
            self._waiting[connection] = _Waiting(data, holder)
            self._lines.setdefault(holder, OrderedDict())[connection] = None
        else:
            found.data, found.at = found.data[found.at :] + data, 0
        self._add(holder, len(data))
        if self._next is None:
            self._next = asyncio.get_running_loop().call_soon(self._turn)
        return True

    def is_waiting(self, connection: Parsing) -> bool:
        """Whether some of what it read is still to be parsed."""
        return connection in self._waiting

    def leave(self, connection: Parsing) -> None:
        """Drop what waits of a connection."""
        found = self._waiting.pop(connection, None)
        if found is None:
            return
        self._add(found.holder, -found.left)
        line = self._lines[found.holder]
        del line[connection]
        if not line:
            del self._lines[found.holder]

    def discard_later(self, after_s: float, read: Callable[[], None]) -> None:
        """Call `read` after this time, and no sooner than REST_S after the connection before it."""
        loop = asyncio.get_running_loop()
        self._discarding_s = max(loop.time() + after_s, self._discarding_s + REST_S)
        loop.call_at(self._discarding_s, read)

    def _add(self, holder: str, count: int) -> None:
        self.waiting_bytes += count
        held = self._holder_bytes[holder] = self._holder_bytes.get(holder, 0) + count
        if not held:
            del self._holder_bytes[holder]

    def _turn(self) -> None:
        loop, events = asyncio.get_running_loop(), 0
        self._next = loop.call_soon(self._turn)  # first, so that a fault here stops nobody
        until = self.waiting_bytes - TURN_BYTES
        while self._lines and events < MOST_EVENTS and self.waiting_bytes > until:
            events += self._parse_one()
        self._next.cancel()
        self._next = None
        if self._lines:
            is_used_up = events >= MOST_EVENTS
            self._next = loop.call_later(REST_S, self._turn) if is_used_up else loop.call_soon(self._turn)

    def _parse_one(self) -> int:
        holder, line = next(iter(self._lines.items()))
        self._lines.move_to_end(holder)
        connection = next(iter(line))
        line.move_to_end(connection)
        waiting = self._waiting[connection]
        piece = waiting.next_piece()
        self._add(holder, -len(piece))
        events = connection.parse(piece)
        if self._waiting.get(connection) is waiting and not waiting.left:
            self.leave(connection)
            connection.parsed()
        return events
