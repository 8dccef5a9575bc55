"""`GET /v1/responses` as a WebSocket: each message `response.create` is a POST of its own, one at a time.

The message goes through the very application that a POST goes through, tenant middleware and all: the key is looked up
anew, so that one that ended in the meantime is refused. What comes of it is told event by event, an error as one event
with its status, and the connection goes on.

    message ──as a body──> tenant middleware ──> Respond ──frames──> events

The last response is remembered with its connection, so that the next may go on from it where nothing is stored. What
all connections remember together is bounded: the oldest is forgotten, which its client reads as
`previous_response_not_found`.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import msgspec
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fairlane.gateway.answers.builder import AnswerBuilder
from fairlane.gateway.answers.responses import ResponseAnswer
from fairlane.gateway.api.generate import Parts
from fairlane.gateway.api.responses import PARAM, PATH, Respond, kept_content
from fairlane.gateway.auth import Caller
from fairlane.gateway.errors import TABLE, ApiError, invalid
from fairlane.gateway.http import body_budget, connections, disconnect, response, sse, websocket
from fairlane.gateway.http.websocket import Offer, Terms, WebSocket
from fairlane.gateway.middleware.idempotent_run import HEADER as IDEMPOTENCY_HEADER
from fairlane.gateway.openai.response_body import parse_response
from fairlane.quotas.responses import KeptResponses
from fairlane.quotas.seals import TenantSeals

REMEMBERED_BYTES = 64 * 2**20
"""Of the last responses of all connections."""
_OF_THE_HANDSHAKE = (b"sec-websocket-", b"x-request-id", b"content-length", b"content-type", b"origin")
"""What headers of the handshake begin with that say nothing about a message."""
_TOLD_HEADERS = (b"x-request-id", b"retry-after", b"x-should-retry", b"x-ratelimit-")


class LastResponses:
    """What connections remember."""

    def __init__(self, most_bytes: int = REMEMBERED_BYTES) -> None:
        self._most_bytes, self._bytes = most_bytes, 0
        self._kept: OrderedDict[object, tuple[str, bytes]] = OrderedDict()

    def keep(self, owner: object, response_id: str, content: bytes) -> None:
        """A connection's last response, instead of the one before it."""
        self.forget(owner)
        self._kept[owner] = response_id, content
        self._bytes += len(content)
        while self._bytes > self._most_bytes:
            self.forget(next(iter(self._kept)))

    def read(self, owner: object, response_id: str) -> bytes | None:
        """It, where it has this id."""
        known_id, content = self._kept.get(owner, ("", b""))
        return content if known_id == response_id else None

    def forget(self, owner: object) -> None:
        """A connection's."""
        _, content = self._kept.pop(owner, ("", b""))
        self._bytes -= len(content)


class _RespondOnSocket(Respond):
    """The endpoint of one connection."""

    def __init__(self, parts: Parts, kept: KeptResponses, seals: TenantSeals, last: LastResponses) -> None:
        super().__init__(parts, kept, seals)
        self._last = last
        self._asked = ""
        """The response that the running turn goes on from."""
        self._parse = partial(parse_response, is_message=True)

    async def _known(self, body: bytes, caller: Caller) -> dict[str, Any]:
        self._asked = ""
        return await super()._known(body, caller)

    async def _previous(self, caller: Caller, response_id: str) -> bytes:
        self._asked = response_id
        found = self._last.read(self, response_id)
        if found is None:
            found = await self._kept.read(caller.root, caller.tenant_id, response_id)
        if found is None:
            raise ApiError("The response to go on from is unknown here.", "previous_response_not_found", PARAM)
        return found

    async def _heard(self, answer: AnswerBuilder, caller: Caller) -> None:
        assert isinstance(answer, ResponseAnswer)  # noqa: S101 - as the kind says
        await super()._heard(answer, caller)
        self._last.keep(self, answer.id, kept_content(answer))

    def failed(self) -> None:
        """The turn came to nothing: nobody goes on from what it went on from."""
        if self._last.read(self, self._asked) is not None:
            self._last.forget(self)

    def left(self) -> None:
        """The connection is gone."""
        self._last.forget(self)


class _Turn:
    """What the endpoint finds of one message as its request, and where it answers: `Channel` and `send`."""

    def __init__(self, socket: WebSocket, body: bytes) -> None:
        self._socket = socket
        self._body: bytes | None = body
        self._status, self._headers = 0, dict[str, str]()
        self._whole: list[bytes] = []
        self._is_stream = False
        self.is_whole = False
        """It was told to its end."""
        self.has_failed = False

    def take_body(self) -> bytes | None:
        """All of it has come."""
        body, self._body = self._body, None
        return body

    def push(self, body: bytes) -> bool:
        """Frames of a stream that has begun, without waiting."""
        if self._socket.is_paused:
            return False
        self._tell(body)
        return True

    async def send(self, message: Message) -> None:
        """One ASGI message. Raises ClientDisconnect."""
        await self._socket.drain()
        if message["type"] == "http.response.start":
            self._status, headers = message["status"], dict(message.get("headers", ()))
            self._is_stream = headers.get(b"content-type") == sse.MEDIA_TYPE.encode()
            self._headers = {
                name.decode(): value.decode() for name, value in headers.items() if name.startswith(_TOLD_HEADERS)
            }
            return
        if self._is_stream:
            self._tell(message.get("body", b""))
        else:
            self._whole.append(message.get("body", b""))
        if not message.get("more_body", False):
            self.is_whole = True
            if not self._is_stream:
                self._refuse()

    def _tell(self, frames: bytes) -> None:
        for frame in frames.split(b"\n\n"):
            name, _, data = frame.strip(b"\n").partition(b"\ndata: ")
            if not name:
                self._socket.ping() if frames == sse.PULSE else None
            elif name == b"event: error":
                self._fail(data)
            elif data and not self.has_failed:
                self._socket.say(data)

    def _fail(self, data: bytes) -> None:
        """A stream that has begun ends with this, and nothing after it."""
        self.has_failed = True
        error = msgspec.json.decode(data)
        rule = TABLE[error["code"]]
        told = {"type": rule.type, "code": error["code"], "message": error["message"], "param": error["param"]}
        number = error["sequence_number"]
        event = {"type": "error", "status": rule.status, "error": told, "sequence_number": number}
        self._socket.say(msgspec.json.encode({**event, "headers": self._headers}))

    def _refuse(self) -> None:
        self.has_failed = True
        told = msgspec.json.decode(b"".join(self._whole))
        event = {"type": "error", "status": self._status, "error": told["error"], "headers": self._headers}
        self._socket.say(msgspec.json.encode(event))


class RespondOnSocket:
    """The endpoint that makes a connection of a request for one."""

    def __init__(
        self,
        parts: Parts,
        kept: KeptResponses,
        seals: TenantSeals,
        wrap: Callable[[ASGIApp], ASGIApp],
        origins: Sequence[str],
        *,
        idle_s: float,
        age_s: float,
    ) -> None:
        """`wrap`: puts around an endpoint what stands around a POST's. `origins`: of the web pages that may connect.
        `idle_s`, `age_s`: as in `Terms`."""
        self._parts = parts
        self._kept = kept
        self._seals = seals
        self._wrap = wrap
        self._origins = [origin.encode() for origin in origins]
        self._idle_s, self._age_s = idle_s, age_s
        self._last = LastResponses()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One ASGI call, inside its tenant middleware. Raises ApiError for a request that is no such wish."""
        offer: Offer | None = scope["state"].get(websocket.STATE)
        if offer is None:
            raise invalid("upgrade", "A GET of this path is for a WebSocket: POST a request otherwise.")
        given = dict(scope["headers"])
        origin = given.get(b"origin")
        if origin is not None and origin not in self._origins and b"*" not in self._origins:
            raise ApiError("Web pages of this origin may not connect.", "origin_not_allowed", "origin")
        if IDEMPOTENCY_HEADER.encode() in given:
            raise invalid(IDEMPOTENCY_HEADER, f"`{IDEMPOTENCY_HEADER}` names one request, and a WebSocket has many.")
        bounds = self._parts.bounds
        terms = Terms(
            max_message_bytes=bounds.room.most_bytes(1),
            message_timeout_s=bounds.body_timeout_s,
            idle_s=self._idle_s,
            age_s=self._age_s,
            ping_every_s=bounds.stream_rhythm.pulse_s,
            write_timeout_s=bounds.write_timeout_s,
        )
        headers = offer.accept(terms, partial(self._converse, scope))
        await send({"type": "http.response.start", "status": 101, "headers": headers})
        await send({"type": "http.response.body", "body": b""})

    async def _converse(self, asked: Scope, socket: WebSocket) -> None:
        """Answer one message after the other. Raises ClientDisconnect at the end."""
        endpoint = _RespondOnSocket(self._parts, self._kept, self._seals, self._last)
        app = self._wrap(endpoint)
        try:
            while True:
                body, hold = await socket.next()
                turn = _Turn(socket, body)
                del body
                try:
                    await app(_scope(asked, socket, turn, hold), _nothing_more, turn.send)
                finally:
                    hold.release()
                if turn.has_failed or not turn.is_whole:
                    endpoint.failed()
                if not turn.is_whole:
                    socket.abort()
        finally:
            endpoint.left()


def _scope(asked: Scope, socket: WebSocket, turn: _Turn, hold: body_budget.BodyHold) -> Scope:
    """A message as the POST that it stands for. `asked`: the handshake's."""
    kept = {name: asked["state"][name] for name in (connections.PEER,) if name in asked["state"]}
    return {
        **{name: asked[name] for name in ("asgi", "http_version", "scheme", "server", "client", "root_path")},
        "type": "http",
        "method": "POST",
        "path": PATH,
        "raw_path": PATH.encode(),
        "query_string": b"",
        "headers": [(name, value) for name, value in asked["headers"] if not name.startswith(_OF_THE_HANDSHAKE)],
        "state": {
            **kept,
            connections.STATE: socket.place,
            disconnect.STATE: socket.disconnect,
            response.STATE: turn,
            body_budget.STATE: hold,
        },
    }


async def _nothing_more() -> Message:
    """`receive` of a request whose body was read."""
    return {"type": "http.disconnect"}
