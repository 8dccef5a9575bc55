"""How attacks speak to the server: bytes on sockets of their own, from addresses of their own."""

import re
import resource
import socket
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from urllib.parse import urlsplit

from tests.support.ports import free_port
from tests.support.system.harness import Server

PERSON, STRANGER, PROXY = "127.0.0.1", "127.0.0.2", "127.0.0.3"
"""Loopback addresses: who asks for something, who attacks, and a proxy whose word counts."""
PATIENCE_S = 30.0
"""What takes longer hangs: more than any limit on a request's way."""
OTHER_FILES = 512
_STATUS = re.compile(rb"HTTP/1\.1 (\d{3}) ")
KEPT_OPEN = {"connection": "keep-alive"}
Address = tuple[str, int]


def settings() -> dict[str, str]:
    """The server's that is attacked: operators and metrics on ports of their own, and a proxy that is trusted."""
    return {
        "ADMIN_PORT": str(free_port()),
        "METRICS_PORT": str(free_port()),
        "TRUSTED_PROXIES": PROXY,
    }


def address_of(url: str) -> Address:
    """Where a URL leads."""
    parts = urlsplit(url)
    return parts.hostname or "", parts.port or 80


@dataclass(frozen=True, slots=True)
class Heard:
    """What came back on one connection."""

    raw: bytes
    ended: bool
    """The server has closed it."""

    @property
    def statuses(self) -> tuple[int, ...]:
        """Of all answers, in order."""
        return tuple(int(status) for status in _STATUS.findall(self.raw))

    @property
    def outcome(self) -> str:
        """The statuses; `closed` where there are none; `hangs` where nothing ended it."""
        if not self.ended:
            return "hangs"
        return " ".join(map(str, self.statuses)) or "closed"


def connected(address: Address, source: str = PERSON) -> socket.socket:
    """A connection from an address."""
    return socket.create_connection(address, PATIENCE_S, (source, 0))


def heard(address: Address, said: bytes, *, source: str = PERSON) -> Heard:
    """Say it, and listen until the server closes the connection."""
    raw = bytearray()
    with connected(address, source) as connection:
        with suppress(OSError):  # it does not listen any more, but may have said why
            connection.sendall(said)
        try:
            while part := connection.recv(65_536):
                raw += part
        except TimeoutError:
            return Heard(bytes(raw), ended=False)
        except ConnectionResetError:
            pass
    return Heard(bytes(raw), ended=True)


def request(method: str, path: str, headers: Mapping[str, str] | None = None, body: bytes = b"") -> bytes:
    """One request, the last on its connection unless its headers say otherwise."""
    framed = {"host": "x", "connection": "close"} | ({"content-length": str(len(body))} if body else {})
    lines = "".join(f"{name}: {value}\r\n" for name, value in {**framed, **(headers or {})}.items())
    return f"{method} {path} HTTP/1.1\r\n{lines}\r\n".encode("latin-1") + body


def bearer(key: str) -> dict[str, str]:
    """The header of a key."""
    return {"authorization": f"Bearer {key}"}


def room_for(connections: int) -> int:
    """As many of so many connections as this process may open, of which it takes all it can get."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    return connections if most == resource.RLIM_INFINITY else min(connections, most - OTHER_FILES)


def tenants(server: Server) -> Address:
    """The tenants' port."""
    return address_of(server.url)


def operators(server: Server) -> Address:
    """The operators' port."""
    return address_of(server.admin_url)


def metrics(server: Server) -> Address:
    """The metrics' port."""
    return "127.0.0.1", int(server.settings["METRICS_PORT"])
