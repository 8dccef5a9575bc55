"""One request as the server passes it to the application: its connection, its body and its response. A request from
another source, such as a test, gets an `Exchange` without a connection."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from starlette.types import Scope

from fairlane.gateway.http.body_budget import BodyBudget, BodyHold
from fairlane.gateway.http.connections import Place
from fairlane.gateway.http.disconnect import Disconnect
from fairlane.gateway.http.flow import Flow
from fairlane.gateway.http.request_id import request_id_of
from fairlane.gateway.http.response import Channel
from fairlane.gateway.http.turns import Turns

# The exchange in the `state` of its ASGI scope.
KEY = "exchange"


@dataclass(frozen=True, slots=True)
class Carried:
    """A connection that HTTP has passed on, with its place on the port. `connections` and `tasks` are the server's."""

    transport: asyncio.Transport
    flow: Flow
    turns: Turns
    place: Place | None
    connections: set[Any]
    tasks: set[asyncio.Task[None]]
    bodies: BodyBudget


@dataclass(slots=True)
class Upgrade:
    """A handshake for a WebSocket, served as a plain request until its response is a 101."""

    headers: Sequence[tuple[bytes, bytes]]
    # Takes the connection once the 101 is written. The endpoint sets it.
    takes: Callable[[Carried], None] | None = None


@dataclass(slots=True)
class Exchange:
    """The server's state of one request."""

    disconnect: Disconnect
    channel: Channel
    request_id: str
    hold: BodyHold
    place: Place | None = None
    # The connection's own address, if a trusted proxy named another client.
    peer: str | None = None
    upgrade: Upgrade | None = None

    def release(self) -> None:
        self.hold.release()

    def vouch(self, caller: str) -> None:
        if self.place is not None:
            self.place.vouch(caller)


def exchange_of(scope: Scope) -> Exchange:
    """Return a scope's exchange."""
    try:
        found: Exchange = scope["state"][KEY]
    except KeyError:
        unbounded = BodyHold(BodyBudget(most_bytes=2**62, most_tenant_bytes=2**62))
        found = Exchange(Disconnect(lambda: None), _NoChannel(), request_id_of(scope["headers"]), unbounded)
        scope.setdefault("state", {})[KEY] = found
    return found


def peer_of(scope: Scope) -> str:
    """Return the address of the connection's peer; empty without one."""
    peer = exchange_of(scope).peer
    return (scope.get("client") or ("",))[0] if peer is None else peer


class _NoChannel:
    """The channel of a request without a connection: its body and response are ASGI messages."""

    def take_body(self) -> None:
        return None

    def push(self, body: bytes) -> bool:
        return False
