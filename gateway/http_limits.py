"""Bounds on what a client may send and how slowly: uvicorn alone has none on headers, bodies or silence."""

from dataclasses import dataclass

from starlette.types import Receive
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpLimits:
    """What one connection may do before its request is whole."""

    max_header_bytes: int = 32 * 1024
    """Request line and headers together: 431 above it."""
    max_headers: int = 128
    header_timeout_s: float = 10.0
    """From connecting, or from the first byte of a later request, to the end of its headers: 408 after it."""
    linger_s: float = 2.0
    """How long a refused client may go on sending before it is cut: an early close would destroy its answer."""


def limited_protocol(limits: HttpLimits) -> type[HttpToolsProtocol]:
    """The protocol class to give to `uvicorn.Config(http=…)`. Idle keep-alive is uvicorn's `timeout_keep_alive`."""
    raise NotImplementedError


async def read_body(receive: Receive, headers: list[tuple[bytes, bytes]], *, max_bytes: int, timeout_s: float) -> bytes:
    """The whole body. `headers`: the ASGI scope's.

    Raises ApiError: `request_too_large` before reading it all (by Content-Length, or as soon as the count is over),
    `request_timeout` if it is not there in time; starlette's ClientDisconnect if the client went away.
    """
    raise NotImplementedError
