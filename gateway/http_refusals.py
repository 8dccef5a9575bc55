"""Requests that never reach the application: why, and the bytes that say so."""

import random
from collections.abc import Sequence

import msgspec
from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from gateway.errors import ApiError, error_body, error_headers, headers_too_large, invalid
from gateway.request_id import request_id_of

Headers = Sequence[tuple[bytes, bytes]]
_SEPARATORS = len(": " + "\r\n")


def refusal_of(
    method: bytes, url: bytes, version: str, headers: Headers, *, max_bytes: int, max_headers: int
) -> ApiError | None:
    """Why a request with these headers is not served, if so. `version`: of HTTP. Names are in lower case."""
    if method == b"CONNECT":
        return invalid(None, "This is no proxy.")
    size = len(url) + sum(len(name) + len(value) + _SEPARATORS for name, value in headers)
    if size > max_bytes:
        return headers_too_large(max_bytes)
    if len(headers) > max_headers:
        return ApiError(f"The request has more than {max_headers} headers.", "headers_too_large")
    names = [name for name, _ in headers]
    if not (0 if version == "1.0" else 1) <= names.count(b"host") <= 1:
        return invalid("host", "The header `host` must be given once.")
    return _misframed(headers)


def _misframed(headers: Headers) -> ApiError | None:
    """Why it cannot be told where the body ends, or what was done to it on its way."""
    codings = [value.strip().lower() for name, value in headers if name == b"transfer-encoding"]
    if codings and any(name == b"content-length" for name, _ in headers):
        return invalid("content-length", "`content-length` and `transfer-encoding` exclude each other.")
    if codings not in ([], [b"chunked"]):
        return invalid("transfer-encoding", "No `transfer-encoding` but `chunked` is supported.")
    return None


def answer_bytes(error: ApiError, headers: Headers) -> bytes:
    """A whole HTTP/1.1 answer. `headers`: the request's, as far as they are known."""
    body = msgspec.json.encode(error_body(error))
    fields = {
        "content-type": "application/json",
        "content-length": str(len(body)),
        "connection": "close",
        "x-request-id": request_id_of(headers),
        **error_headers(error, random.Random()),
    }
    head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    return STATUS_LINE[error.status] + head.encode("ascii") + b"\r\n" + body
