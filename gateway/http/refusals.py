"""Requests rejected before they reach the application: the reason, and the bytes of the response."""

import logging
import random
import time
from collections.abc import Callable, Sequence

import msgspec
from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from fairlane.gateway.errors import ApiError, error_body, error_headers, headers_too_large, invalid
from fairlane.gateway.http.limits import HttpLimits
from fairlane.gateway.http.request_id import request_id_of

log = logging.getLogger(__name__)

Headers = Sequence[tuple[bytes, bytes]]
# Versions of HTTP; the parser accepts others too.
SUPPORTED = ("1.1", "1.0")
TELL_EVERY_S = 10.0
_SEPARATORS = len(": " + "\r\n")


class Malformed:
    """Counts requests that are not valid HTTP or exceed its limits, and logs them at intervals."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.count = 0
        self._clock = clock
        self._untold = 0
        self._told_s = -TELL_EVERY_S

    def note(self, address: str, error: ApiError) -> None:
        self.count += 1
        self._untold += 1
        if self._clock() - self._told_s >= TELL_EVERY_S:
            log.warning("%d malformed requests, the last from %s: %s", self._untold, address or "?", error.code)
            self._untold, self._told_s = 0, self._clock()


def refusal_of(
    method: bytes, url: bytes, version: str, headers: Headers, limits: HttpLimits, head_bytes: int
) -> ApiError | None:
    """Return the error for a request with these headers, in lower case, if it is not served.

    `head_bytes` is an upper bound of the head's size."""
    if method == b"CONNECT":
        return invalid(None, "CONNECT is not supported: this is not a proxy.")
    hosts, codings, has_length = 0, [], False
    for name, value in headers:
        if name == b"host":
            hosts += 1
        elif name == b"content-length":
            has_length = True
        elif name == b"transfer-encoding":
            codings.append(value.strip().lower())
    if head_bytes > limits.max_header_bytes:
        exact_bytes = len(url) + sum(len(name) + len(value) + _SEPARATORS for name, value in headers)
        if exact_bytes > limits.max_header_bytes:
            return headers_too_large(limits.max_header_bytes)
    if len(headers) > limits.max_headers:
        return ApiError(f"The request has more than {limits.max_headers} headers.", "headers_too_large")
    if version not in SUPPORTED:
        return invalid(None, "This is not a valid HTTP/1.1 request.")
    if not (0 if version == "1.0" else 1) <= hosts <= 1:
        return invalid("host", "The header `host` must be given once.")
    return _misframed(version, codings, has_length) if codings else None


def _misframed(version: str, codings: Sequence[bytes], has_length: bool) -> ApiError | None:
    if has_length:
        return invalid("content-length", "`content-length` and `transfer-encoding` exclude each other.")
    if codings != [b"chunked"] or version == "1.0":
        return invalid("transfer-encoding", "The only supported `transfer-encoding` is HTTP/1.1's `chunked`.")
    return None


def answer_bytes(error: ApiError, headers: Headers, url: bytes = b"") -> bytes:
    """Return a whole HTTP/1.1 response. `headers` and `url` are the request's, as far as they are known."""
    request_id = request_id_of(headers)
    body = msgspec.json.encode(error_body(error, url.partition(b"?")[0].decode("latin-1"), request_id))
    fields = {
        "content-type": "application/json",
        "content-length": str(len(body)),
        "connection": "close",
        "x-request-id": request_id,
        **error_headers(error, random.Random()),
    }
    head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    return STATUS_LINE[error.status] + head.encode("ascii") + b"\r\n" + body
