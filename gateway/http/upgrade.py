"""Requests that ask for an upgrade to another protocol than HTTP/1.1.

They are served in HTTP/1.1, as RFC 9110 allows: Java's client sends `Upgrade: h2c` with every call.

The parser stops at such a request and would read its body as the next request. So the head is rewritten without the
upgrade, for a new parser."""

from collections.abc import Sequence

Headers = Sequence[tuple[bytes, bytes]]
_UPGRADES = frozenset({b"upgrade", b"http2-settings"})


def plain_head(method: bytes, url: bytes, version: str, headers: Headers) -> bytes:
    """Return the request line and headers without the upgrade. Header names are in lower case."""
    kept = [(name, value) for name, value in headers if name not in _UPGRADES]
    lines = [
        b"%s: %s\r\n" % (name, _without_upgrades(value) if name == b"connection" else value) for name, value in kept
    ]
    return b"%s %s HTTP/%s\r\n%s\r\n" % (method, url, version.encode("ascii"), b"".join(lines))


def _without_upgrades(connection: bytes) -> bytes:
    tokens = (token.strip() for token in connection.split(b","))
    return b", ".join(token for token in tokens if token.lower() not in _UPGRADES)
