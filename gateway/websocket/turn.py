"""One message as the POST that it stands for: the endpoint reads it as the body, and its events become messages."""

from collections.abc import Sequence

import msgspec
from starlette.types import Message, Scope

from fairlane.gateway.errors import TABLE
from fairlane.gateway.http import sse
from fairlane.gateway.http.body_budget import BodyHold
from fairlane.gateway.http.exchange import KEY, Exchange, exchange_of
from fairlane.gateway.http.request_id import HEADER, request_id_of
from fairlane.gateway.websocket.connection import WebSocket

# Beginnings of the handshake's headers that do not apply to its messages.
_OF_THE_HANDSHAKE = (b"sec-websocket-", b"content-", b"accept-encoding", HEADER)
# Beginnings of response headers that an error event repeats.
_SHOWN = (HEADER, b"retry-after", b"x-should-retry", b"x-ratelimit-")
# An event that has this field is preceded by the line of its name, in the frames of a stream.
_NAMED, _ERROR = b"event: ", b"event: error\n"


class Turn:
    """One message's request: its `Channel`, and its `send`."""

    def __init__(self, socket: WebSocket, body: bytes, stream_id: str | None = None) -> None:
        """`stream_id` is added to each event."""
        self._socket = socket
        self._body: bytes | None = body
        self._mark = b"" if stream_id is None else b',"stream_id":' + msgspec.json.encode(stream_id) + b"}"
        self._status = 0
        self._headers: dict[str, str] = {}
        self._whole: list[bytes] = []
        self._is_stream = False
        # The last message was sent.
        self.is_whole = False
        self.has_failed = False

    def scope(self, handshake: Scope, path: str, hold: BodyHold) -> Scope:
        """Return the ASGI scope of the request, with the handshake's key, address and other headers."""
        headers = [each for each in handshake["headers"] if not each[0].startswith(_OF_THE_HANDSHAKE)]
        place, peer = self._socket.place, exchange_of(handshake).peer
        exchange = Exchange(self._socket.disconnect, self, request_id_of(headers), hold, place, peer)
        kept = ("asgi", "http_version", "scheme", "server", "client", "root_path")
        return {
            **{name: handshake[name] for name in kept if name in handshake},
            "type": "http",
            "method": "POST",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "path_params": {},
            "headers": headers,
            "state": {KEY: exchange},
        }

    async def receive(self) -> Message:
        """Be the request's `receive`, after its body was taken."""
        return {"type": "http.disconnect"}

    def take_body(self) -> bytes | None:
        body, self._body = self._body, None
        return body

    def push(self, body: bytes) -> bool:
        if self._socket.is_paused:
            return False
        self._pass_on(body)
        return True

    async def send(self, message: Message) -> None:
        """Handle one ASGI message. Raises ClientDisconnect."""
        await self._socket.drain()
        if message["type"] == "http.response.start":
            headers: Sequence[tuple[bytes, bytes]] = message.get("headers", ())
            self._status = message["status"]
            self._is_stream = dict(headers).get(b"content-type") == sse.MEDIA_TYPE.encode()
            shown = [(name.lower(), value) for name, value in headers if name.lower().startswith(_SHOWN)]
            self._headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in shown}
            return
        if self._is_stream:
            self._pass_on(message.get("body", b""))
        else:
            self._whole.append(message.get("body", b""))
        if not message.get("more_body", False):
            self.is_whole = True
            if not self._is_stream:
                self._fail(self._status, msgspec.json.decode(b"".join(self._whole))["error"])

    def _pass_on(self, frames: bytes) -> None:
        if frames == sse.PULSE:
            self._socket.ping()
            return
        for frame in frames.split(b"\n\n"):
            named = frame.strip(b"\n")
            _, _, data = named.partition(b"\ndata: ")
            if self.has_failed or not (named.startswith(_NAMED) and data):
                continue
            if named.startswith(_ERROR):
                error = msgspec.json.decode(data)
                rule = TABLE[error["code"]]
                self._fail(
                    rule.status, {name: error[name] for name in ("code", "message", "param")} | {"type": rule.type}
                )
            else:
                self._socket.say(data[:-1] + self._mark if self._mark else data)

    def _fail(self, status: int, error: object) -> None:
        """End the turn with one event: clients count the turns of a connection by their last events."""
        self.has_failed = True
        event = msgspec.json.encode({"type": "error", "status": status, "error": error, "headers": self._headers})
        self._socket.say(event[:-1] + self._mark if self._mark else event)
