"""The phases of what one connection receives, and the legal moves between them.

    SILENT ──► HEAD ──► BODY ──────────► IDLE ──► HEAD …
                │ ▲      └─► LATE_BODY ───┘
                │ └─ UPGRADE ◄─┐
                ├──────────────┘
                └──► LAST              any ──► DISCARDED ──► CLOSED

    SILENT      connected, nothing received yet
    HEAD        a request line or headers are incomplete
    UPGRADE     a complete head asks for another protocol: it is parsed again, as plain HTTP/1.1
    BODY        a head is complete, its body is not
    LATE_BODY   the same, after the whole response was sent
    IDLE        the last request is complete, and no byte of another one was received
    LAST        too many pipelined requests: those waiting are answered, further input is dropped
    DISCARDED   after a refusal, or too much of a late body: input is dropped, until the client has read the response
    CLOSED      the connection is gone

An illegal move raises `IllegalMove` and changes nothing."""

from collections.abc import Mapping
from enum import StrEnum

import msgspec


class Phase(StrEnum):
    """Phase of a connection's input."""

    SILENT = "silent"
    HEAD = "head"
    UPGRADE = "upgrade"
    BODY = "body"
    LATE_BODY = "late_body"
    IDLE = "idle"
    LAST = "last"
    DISCARDED = "discarded"
    CLOSED = "closed"


_ENDS = {Phase.DISCARDED, Phase.CLOSED}
MOVES: Mapping[Phase, frozenset[Phase]] = {
    Phase.SILENT: frozenset({Phase.HEAD, *_ENDS}),
    Phase.HEAD: frozenset({Phase.BODY, Phase.UPGRADE, Phase.LAST, *_ENDS}),
    Phase.UPGRADE: frozenset({Phase.HEAD, *_ENDS}),
    Phase.BODY: frozenset({Phase.LATE_BODY, Phase.IDLE, *_ENDS}),
    Phase.LATE_BODY: frozenset({Phase.IDLE, *_ENDS}),
    Phase.IDLE: frozenset({Phase.HEAD, *_ENDS}),
    Phase.LAST: frozenset(_ENDS),
    Phase.DISCARDED: frozenset({Phase.CLOSED}),
    Phase.CLOSED: frozenset(),
}
# Aliases for code that runs for each request: looking up an enum member is slow.
SILENT, HEAD, UPGRADE, BODY, LATE_BODY = Phase.SILENT, Phase.HEAD, Phase.UPGRADE, Phase.BODY, Phase.LATE_BODY
IDLE, LAST, DISCARDED, CLOSED = Phase.IDLE, Phase.LAST, Phase.DISCARDED, Phase.CLOSED
# No head is complete whose body is awaited.
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
    # Of the body, in LATE_BODY.
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
        """Change the phase. Raises IllegalMove."""
        if phase not in MOVES[self.phase]:
            raise IllegalMove(f"a connection's input cannot go from {self.phase} to {phase}")
        self.phase = phase

    def most_bytes(self, max_header_bytes: int) -> int:
        """Return the most bytes that may have been received: the head; then the body, at worst in chunks of one byte,
        and trailers."""
        if self.phase in AWAITS_HEAD:
            return max_header_bytes
        return 2 * max_header_bytes + _BYTES_PER_CHUNKED_BYTE * self.body_bytes
