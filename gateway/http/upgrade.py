"""Requests that wish for another protocol than HTTP/1.1.

They go on in HTTP/1.1 (`Upgrade: h2c`, as Java's client asks on every call); one that wishes for a WebSocket too, until
it is answered with a 101 (`websocket.py`).

The parser stops at such a request and drops its body, which would then be read as the next request. So its head is
written anew, without the wish, for a parser that has not stopped.
"""

from collections.abc import Sequence

Headers = Sequence[tuple[bytes, bytes]]
_WISHES = frozenset({b"upgrade", b"http2-settings"})


def plain_head(method: bytes, url: bytes, version: str, headers: Headers) -> bytes:
    """The same request line and headers without the wish. Names are in lower case."""
    kept = [(name, value) for name, value in headers if name not in _WISHES]
    lines = [b"%s: %s\r\n" % (name, _without_wishes(value) if name == b"connection" else value) for name, value in kept]
    return b"%s %s HTTP/%s\r\n%s\r\n" % (method, url, version.encode("ascii"), b"".join(lines))


def _without_wishes(connection: bytes) -> bytes:
    tokens = (token.strip() for token in connection.split(b","))
    return b", ".join(token for token in tokens if token.lower() not in _WISHES)


def wishes_websocket(method: bytes, version: str, headers: Headers) -> bool:
    """Whether a request asks for one. Names are in lower case."""
    has_body = any(name in (b"content-length", b"transfer-encoding") for name, _ in headers)
    upgrades = [value.strip().lower() for name, value in headers if name == b"upgrade"]
    return method == b"GET" and version == "1.1" and upgrades == [b"websocket"] and not has_body
