"""Bounds of one connection; `protocol.py` enforces them."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpLimits:
    """What one connection may do before its request is whole."""

    max_header_bytes: int = 32 * 1024
    """Request line and headers together: 431 above it."""
    max_headers: int = 128
    first_byte_timeout_s: float = 5.0
    """From connecting to the first byte of a request: afterwards the connection is closed without an answer."""
    header_timeout_s: float = 10.0
    """From the first byte of a request to the end of its headers: 408 after it."""
    linger_s: float = 5.0
    """How long a client may go on sending a body that was answered already."""
    linger_bytes: int = 2**20
    linger_chunks: int = 1_024
    """How much of such a body is still parsed, so that the connection can serve the next request. What comes beyond is
    discarded, and the connection closed after `discard_bytes` of it."""
    discard_bytes: int = 64 * 2**20
    write_timeout_s: float = 60.0
    """A client that reads nothing of its answer for this long is disconnected."""
    max_pipelined: int = 16
    """Requests that may wait on a connection behind the one that is answered. One read may bring thousands: this many
    are answered, then the connection is closed."""
