"""Connections that hold places, and beside them probes and another tenant's request on connections of their own."""

import json
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass

from tests.support.system.harness import MODEL, Server
from tests.system.attacks.rows import Row
from tests.system.attacks.target import (
    KEPT_OPEN,
    PERSON,
    PROXY,
    STRANGER,
    Address,
    bearer,
    connected,
    heard,
    request,
    room_for,
    tenants,
)

KIND = "connections"
TENANT = "crowd"
PROBES = ("/healthz", "/readyz")
_BEGUN, _DRIP = b"GET /healthz HTTP/1.1\r\nhost: x\r\nx: ", b"a"
_WIDE = b"GET /healthz HTTP/1.1\r\nhost: x\r\n" + b"".join(b"x%d: %b\r\n" % (each, b"a" * 300) for each in range(100))
_WHOLE = request("GET", "/healthz", KEPT_OPEN)
TEN = [f"127.0.1.{number}" for number in range(1, 11)]
"""Addresses, so that 10,000 connections are within the bound of each."""


@dataclass(frozen=True, slots=True)
class Crowd:
    """What each of many connections says, and from where."""

    attacked: str
    sources: Sequence[str]
    said: Callable[[str], bytes]
    """By the attacker's key."""
    drip: bytes = b""
    """What it says now and then after that, in a flood."""

    @property
    def by_proxy(self) -> bool:
        """A trusted one's connections."""
        return PROXY in self.sources


def _forwarded(address: str) -> dict[str, str]:
    return {"x-forwarded-for": address}


CROWDS: Mapping[str, Crowd] = {
    "silent": Crowd("that say nothing", [STRANGER], lambda _: b""),
    "slow heads": Crowd("with half of a head", [STRANGER], lambda _: _BEGUN, _DRIP),
    "idle": Crowd("after one request without a key", [STRANGER], lambda _: request("GET", "/v1/models", KEPT_OPEN)),
    "silent by a proxy": Crowd("that say nothing, through a trusted proxy", [PROXY], lambda _: b""),
    "slow heads by a proxy": Crowd("with half of a head, through a trusted proxy", [PROXY], lambda _: _BEGUN, _DRIP),
    "idle by a proxy": Crowd(
        "after one request without a key, through a trusted proxy",
        [PROXY],
        lambda _: request("GET", "/v1/models", KEPT_OPEN | _forwarded(STRANGER)),
    ),
    "idle with a key": Crowd(
        "after one request, with one tenant's key",
        [STRANGER],
        lambda key: request("GET", "/v1/models", KEPT_OPEN | bearer(key)),
    ),
    "of ten addresses": Crowd("that say nothing, from ten addresses", TEN, lambda _: b""),
    "wide heads": Crowd("with 31 KB of a head, from ten addresses", TEN, lambda _: _WIDE),
    "wide heads behind": Crowd("with the same behind a whole request", TEN, lambda _: _WHOLE + _WIDE),
    "wide and idle": Crowd(
        "after one request with a head of 31 KB, from ten addresses", TEN, lambda _: _WIDE + b"\r\n"
    ),
}


@contextmanager
def opened(address: Address, count: int, crowd: Crowd, key: str) -> Iterator[list[socket.socket]]:
    """So many connections, each of which has said its word."""
    said = crowd.said(key)
    with ExitStack() as stack:
        connections = []
        for number in range(count):
            source = crowd.sources[number % len(crowd.sources)]
            connection = stack.enter_context(connected(address, source))
            with suppress(OSError):  # turned away already
                connection.sendall(said)
            connections.append(connection)
        yield connections


def rows(server: Server, count: int = 10_000) -> Iterator[Row]:
    """Each crowd."""
    attacker, person = server.tenant(TENANT), server.tenant(f"not-in-the-{TENANT}")
    count = room_for(count)
    body = json.dumps({"model": MODEL, "prompt": "a", "max_tokens": 1}).encode()
    for crowd in CROWDS.values():
        forwarded = _forwarded(PERSON) if crowd.by_proxy else {}
        asked = [request("GET", path, forwarded) for path in PROBES]
        asked += [request("POST", "/v1/completions", bearer(person) | forwarded, body)]
        source = PROXY if crowd.by_proxy else PERSON
        with opened(tenants(server), count, crowd, attacker):
            seen = [heard(tenants(server), each, source=source).outcome for each in asked]
        told = f"probes {seen[0]} and {seen[1]}, a tenant's request {seen[2]}"
        yield Row(KIND, f"{count:,} connections {crowd.attacked}", "all 200", told, set(seen) == {"200"})
