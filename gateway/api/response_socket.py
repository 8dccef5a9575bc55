"""`GET /v1/responses` as a WebSocket: each message `response.create` is a `POST /v1/responses`, one after the other.

A message passes through the tenant middleware, so its key is looked up anew. A message can continue from the last
responses of its connection, stored or not."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from starlette.types import ASGIApp, Scope

from fairlane.gateway.api.generate import Parts
from fairlane.gateway.api.responses import PATH, RESPONSE, Respond, ResponseKind
from fairlane.gateway.api.stored_input import StoredInput
from fairlane.gateway.dialects.openai.response_body import parse_message
from fairlane.gateway.errors import ApiError, invalid
from fairlane.gateway.http.json_reader import scalars
from fairlane.gateway.identity.auth import Caller
from fairlane.gateway.middleware.idempotent_run import HEADER as IDEMPOTENCY_HEADER
from fairlane.gateway.pipeline.context import Endpoint, RequestContext
from fairlane.gateway.websocket.connection import SocketBounds, WebSocket
from fairlane.gateway.websocket.handshake import SWITCHING, accept
from fairlane.gateway.websocket.recent import Recent, RecentResponses
from fairlane.gateway.websocket.turn import Turn

# How long a connection may send no message, and serves messages.
IDLE_S, AGE_S = 600.0, 3_600.0
_STREAM_ID = "stream_id"


@dataclass(frozen=True, slots=True)
class _ConnectionInput(StoredInput):
    """Finds the connection's own responses too."""

    recent: Recent

    async def previous(self, caller: Caller, response_id: str) -> bytes:
        found = self.recent.read(_name(caller), response_id)
        if found is not None:
            return found
        try:
            return await StoredInput.previous(self, caller, response_id)
        except ApiError as error:
            message = "This connection has no response with this id, and none is stored."
            raise ApiError(message, "previous_response_not_found", error.param) from None


@dataclass(eq=False)
class ResponseSocket:
    """The endpoint that turns its request's connection into a WebSocket."""

    parts: Parts
    stored: StoredInput
    # Wraps an endpoint as that of the POST is wrapped.
    wrap: Callable[[Endpoint, str], ASGIApp]
    # Returns the error for new requests while the gateway shuts down.
    refusal: Callable[[], ApiError | None]
    recent: RecentResponses = field(default_factory=RecentResponses)

    async def __call__(self, context: RequestContext) -> None:
        """Serve one handshake. Raises ApiError if the request is none."""
        upgrade, bounds = context.exchange.upgrade, self.parts.bounds
        if upgrade is None:
            message = "A GET of this path opens a WebSocket. Without one, send a POST."
            raise ApiError(message, "upgrade_required")
        if any(name == IDEMPOTENCY_HEADER.encode() for name, _ in context.headers):
            message = f"`{IDEMPOTENCY_HEADER}` names one request, and a WebSocket has many."
            raise invalid(IDEMPOTENCY_HEADER, message)
        bounds_of_socket = SocketBounds(
            max_message_bytes=bounds.room.most_bytes(1),
            message_timeout_s=bounds.body_timeout_s,
            idle_s=IDLE_S,
            age_s=AGE_S,
            write_timeout_s=bounds.write_timeout_s,
        )
        tenant = context.tenant
        headers = accept(upgrade, tenant, bounds_of_socket, partial(self._converse, context.scope, tenant))
        await context.send({"type": "http.response.start", "status": SWITCHING, "headers": headers})
        await context.send({"type": "http.response.body", "body": b""})

    async def _converse(self, handshake: Scope, tenant: str, socket: WebSocket) -> None:
        """Answer one message after the other. Raises ClientDisconnect at the end."""
        recent = Recent(self.recent)
        stored = _ConnectionInput(self.stored.kept, self.stored.seals, self.stored.room, recent)

        def remember(caller: Caller, response_id: str, content: bytes) -> None:
            recent.keep(_name(caller), response_id, content)

        app = self.wrap(Respond(self.parts, ResponseKind(RESPONSE, stored, parse_message), remember), PATH)
        try:
            while True:
                recent.ended(has_failed=not await self._answered(app, handshake, tenant, socket))
                if self.refusal() is not None:
                    socket.shutdown()
        finally:
            recent.close()

    async def _answered(self, app: ASGIApp, handshake: Scope, tenant: str, socket: WebSocket) -> bool:
        """Answer the next message. Return whether it was without an error."""
        body, hold = await socket.next()
        try:
            turn = Turn(socket, body, await self._stream_id(tenant, body))
            await app(turn.scope(handshake, PATH, hold), turn.receive, turn.send)
        finally:
            hold.release()
        if not turn.is_whole:
            socket.abort()
        return turn.is_whole and not turn.has_failed

    async def _stream_id(self, tenant: str, body: bytes) -> str | None:
        if _STREAM_ID.encode() not in body:
            return None
        found = await self.stored.room.run(tenant, len(body), partial(scalars, body, [_STREAM_ID]))
        stream_id = found.get(_STREAM_ID)
        return stream_id if isinstance(stream_id, str) else None


def _name(caller: Caller) -> str:
    return f"{caller.root} {caller.account}"
