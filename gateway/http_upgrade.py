"""Requests that ask for another protocol (`Upgrade: h2c`, as Java's client does on every call) go on in HTTP/1.1.

The parser stops at such a request and drops its body, which would then be read as the next request. So its head is
written anew, without the wish, for a parser that has not stopped.
"""

from collections.abc import Sequence

_WISHES = frozenset({b"upgrade", b"http2-settings"})


def plain_head(method: bytes, url: bytes, version: str, headers: Sequence[tuple[bytes, bytes]]) -> bytes:
    """The same request line and headers without the wish. Names are in lower case."""
    kept = [(name, value) for name, value in headers if name not in _WISHES]
    lines = [b"%s: %s\r\n" % (name, _without_wishes(value) if name == b"connection" else value) for name, value in kept]
    return b"%s %s HTTP/%s\r\n%s\r\n" % (method, url, version.encode("ascii"), b"".join(lines))


def _without_wishes(connection: bytes) -> bytes:
    tokens = (token.strip() for token in connection.split(b","))
    return b", ".join(token for token in tokens if token.lower() not in _WISHES)
