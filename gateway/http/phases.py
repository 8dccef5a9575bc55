"""The phases of what one connection receives, and the legal moves between them."""

from collections.abc import Mapping
from enum import StrEnum, auto

import msgspec


class Phase(StrEnum):
    """Phase of a connection's input."""

    # Connected, nothing received yet.
    SILENT = auto()
    # A request line or headers are incomplete.
    HEAD = auto()
    # A complete head asks for another protocol: it is parsed again, as plain HTTP/1.1.
    UPGRADE = auto()
    # A head is complete, its body is not.
    BODY = auto()
    # The same, after the whole response was sent.
    LATE_BODY = auto()
    # The last request is complete, and no byte of another one was received.
    IDLE = auto()
    # Too many pipelined requests: those waiting are answered, further input is dropped.
    LAST = auto()
    # After a refusal, or when a late body is too long: input is dropped until the client has read the response.
    DISCARDED = auto()
    CLOSED = auto()


# Aliases for code that runs for each request: looking up an enum member is slow.
SILENT, HEAD, UPGRADE, BODY, LATE_BODY, IDLE, LAST, DISCARDED, CLOSED = Phase
_ENDS = {DISCARDED, CLOSED}
MOVES: Mapping[Phase, frozenset[Phase]] = {
    SILENT: frozenset({HEAD, *_ENDS}),
    HEAD: frozenset({BODY, UPGRADE, LAST, *_ENDS}),
    UPGRADE: frozenset({HEAD, *_ENDS}),
    BODY: frozenset({LATE_BODY, IDLE, *_ENDS}),
    LATE_BODY: frozenset({IDLE, *_ENDS}),
    IDLE: frozenset({HEAD, *_ENDS}),
    LAST: frozenset(_ENDS),
    DISCARDED: frozenset({CLOSED}),
    CLOSED: frozenset(),
}
# While a body is awaited, no further head is complete.
AWAITS_HEAD = frozenset({SILENT, IDLE, HEAD})
UNPARSED = frozenset({LAST, DISCARDED, CLOSED})
# Bytes on the wire per byte of a body that is sent in chunks of one byte.
_BYTES_PER_CHUNKED_BYTE = 8


class IllegalMove(RuntimeError):
    """A connection's phase does not allow the move."""


class Input(msgspec.Struct, gc=False):
    """The phase of one connection's input, and its counts since the last complete request."""

    phase: Phase = SILENT
    received_bytes: int = 0
    body_bytes: int = 0
    # Bytes and chunks of the body, in LATE_BODY.
    late_bytes: int = 0
    late_chunks: int = 0
    # Bytes of the next head that arrived with the end of the last request: an upper bound.
    ahead_bytes: int = 0
    discarded_bytes: int = 0

    def begin_next(self) -> None:
        self.received_bytes = self.body_bytes = 0
        self.late_bytes = self.late_chunks = 0

    @property
    def head_bytes(self) -> int:
        """An upper bound of the bytes of the current head."""
        return self.received_bytes + self.ahead_bytes

    def move(self, phase: Phase) -> None:
        if phase not in MOVES[self.phase]:
            raise IllegalMove(f"a connection's input cannot go from {self.phase} to {phase}")
        self.phase = phase

    def most_bytes(self, max_header_bytes: int) -> int:
        """Return the most bytes of a head; with its body in the worst case, chunks of one byte and trailers."""
        if self.phase in AWAITS_HEAD:
            return max_header_bytes
        return 2 * max_header_bytes + _BYTES_PER_CHUNKED_BYTE * self.body_bytes
