"""Bounds of one connection, enforced by `protocol.py`."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpLimits:
    """Bounds on what one connection may send, and on how slowly."""

    # Request line and headers together: 431 above it.
    max_header_bytes: int = 32 * 1024
    max_headers: int = 128
    # From the connection to the first byte of a request, after which it is closed without a response.
    first_byte_timeout_s: float = 5.0
    # From the first byte of a request to the end of its headers: 408 after it.
    header_timeout_s: float = 10.0
    # How long a client may continue to send a body after the response.
    linger_s: float = 5.0
    linger_bytes: int = 2**20
    # Bytes of such a body that are parsed, so that the connection can serve the next request. Further bytes are
    # discarded, and the connection is closed after `discard_bytes` of them.
    linger_chunks: int = 1_024
    discard_bytes: int = 64 * 2**20
    # A client that reads nothing of its response for this long is disconnected.
    write_timeout_s: float = 60.0
    # Pipelined requests waiting behind the one in progress. One read may contain thousands: this many are served,
    # then the connection is closed.
    max_pipelined: int = 16
