"""Bounds of one connection, as its port has them; `protocol.py` keeps them."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpLimits:
    """What one connection may do before its request is whole."""

    max_header_bytes: int = 32 * 1024
    """Request line and headers together: 431 above it."""
    max_headers: int = 128
    first_byte_timeout_s: float = 5.0
    """From connecting to the first byte of a request: the connection is closed without a word after it."""
    header_timeout_s: float = 10.0
    """From the first byte of a request to the end of its headers: 408 after it."""
    linger_s: float = 5.0
    """How long a client may go on sending what nobody will read."""
    write_timeout_s: float = 60.0
    """A client that takes nothing of its answer for so long is cut off."""
    max_pipelined: int = 16
    """Requests that may wait on a connection behind the one that is answered. One read may bring thousands: so many
    are answered, then it is closed."""
