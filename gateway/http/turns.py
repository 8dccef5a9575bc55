"""Turns at parsing, for reads with many lines: one read of 256 KiB may be 43,000 chunks of one byte.

The cost of parsing depends on the number of parser callbacks, so a turn counts callbacks; after it the loop is free
for REST_S. Holders (a tenant, or an unauthenticated address) take turns, each with bounded waiting bytes."""

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from typing import Protocol

# At most 340 chunks of one byte.
PIECE_BYTES = 2_048
# Lines of a read that is parsed at once. A request has fewer, and each parser callback takes a line of its own.
MOST_LINES = 256
# Callbacks of one turn. The piece that reaches it is the turn's last.
MOST_EVENTS = 256
TURN_BYTES = 128 * 1024
REST_S = 0.001
MOST_BYTES, MOST_HOLDER_BYTES = 32 * 2**20, 4 * 2**20


def has_many_lines(data: bytes) -> bool:
    """Return whether parsing this read may take long."""
    return len(data) > MOST_LINES and data.count(b"\n") > MOST_LINES


class Parsing(Protocol):
    """A connection with bytes to parse."""

    def parse(self, piece: bytes) -> int:
        """Parse the next bytes. Return the number of parser callbacks."""

    def parsed(self) -> None: ...


class _Waiting:
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
        # Loop time at which the next connection that discards its input may be read.
        self._discarding_s = 0.0
        self.waiting_bytes = 0

    def wait(self, connection: Parsing, holder: str, data: bytes) -> bool:
        """Parse `data` in turns. Return False, and keep nothing, if too much is waiting for its holder or in total."""
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
        return connection in self._waiting

    def leave(self, connection: Parsing) -> None:
        if connection not in self._waiting:
            return
        found = self._waiting.pop(connection)
        self._add(found.holder, -found.left)
        line = self._lines[found.holder]
        del line[connection]
        if not line:
            del self._lines[found.holder]

    def discard_later(self, after_s: float, read: Callable[[], None]) -> None:
        """Call `read` after this time, and at least REST_S after the previous connection."""
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
        self._next = loop.call_soon(self._turn)  # rescheduled first, so that an exception below does not stop the turns
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
