"""The handshake of a WebSocket: a plain GET, whose response is a 101.

GET, upgrade ──> Exchange.upgrade ──> accept ──101──> WebSocket ──> next, say … close"""

from websockets.datastructures import Headers
from websockets.http11 import Request
from websockets.server import ServerProtocol

from fairlane.gateway.errors import ApiError, invalid
from fairlane.gateway.http import sse
from fairlane.gateway.http.exchange import Upgrade
from fairlane.gateway.websocket.connection import SILENT, Converse, SocketBounds, WebSocket

SWITCHING, _UPGRADE_REQUIRED = 101, 426


def accept(upgrade: Upgrade, tenant: str, bounds: SocketBounds, converse: Converse) -> sse.Headers:
    """Accept a handshake of a tenant, and return the headers of the 101. Raises ApiError if it is not valid."""
    fields = Headers()
    for name, value in upgrade.headers:
        fields[name.decode("ascii")] = value.decode("latin-1")
    answer = ServerProtocol(logger=SILENT).accept(Request("/", fields))
    if answer.status_code == _UPGRADE_REQUIRED:
        raise ApiError("Only version 13 of WebSockets is served.", "upgrade_required")
    if answer.status_code != SWITCHING:
        raise invalid("sec-websocket-key", "This is not a valid WebSocket handshake.")
    upgrade.takes = lambda carried: WebSocket(carried, tenant, bounds).begin(converse)
    return [(name.lower().encode(), value.encode()) for name, value in answer.headers.raw_items() if name != "Date"]
