"""A connection that has become a WebSocket, within bounds of bytes, frames, waiting messages and time.

    GET, upgrade ──> Exchange.upgrade ──> accept ──101──> WebSocket ──> next, say … close

The reason for an end is sent as an event before the close frame. Frames are never compressed."""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

import msgspec
from starlette.requests import ClientDisconnect
from websockets.datastructures import Headers
from websockets.frames import CloseCode, Frame, Opcode
from websockets.http11 import Request
from websockets.protocol import OPEN, Protocol, Side
from websockets.server import ServerProtocol

from fairlane.gateway.errors import ApiError, error_body, invalid, request_too_large
from fairlane.gateway.http.body_budget import BodyHold
from fairlane.gateway.http.disconnect import Disconnect
from fairlane.gateway.http.exchange import Carried, Upgrade
from fairlane.gateway.http.flow import Patience
from fairlane.gateway.http.sse import Headers as RawHeaders

# Time for the client's own close frame.
LINGER_S = 5.0
# Messages behind the one that is being answered.
MOST_WAITING = 4
# Bytes that are parsed at once: at most 340 empty frames.
PIECE_BYTES = 2_048
# Frames since the last whole message: this many, and one more per FRAME_BYTES received. A client may split a message,
# and send pings while it waits; parsing a frame takes about 10 µs, however short it is.
MOST_FRAMES, FRAME_BYTES = 256, 256
_SWITCHING = 101
# The library's log would contain what clients send.
_SILENT = logging.Logger("fairlane.frames", logging.CRITICAL + 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class SocketBounds:
    """Bounds of one connection."""

    max_message_bytes: int
    # How long the client may send no message while none is being answered.
    idle_s: float
    # After this time no further message is answered.
    age_s: float
    # A client that reads nothing for this long is disconnected.
    write_timeout_s: float


def error_event(error: ApiError, headers: Mapping[str, str] | None = None) -> bytes:
    """Return an error as the Responses API sends it in a message. `headers`: those of the HTTP response."""
    event = {"type": "error", "status": error.status, **error_body(error)}
    return msgspec.json.encode({**event, "headers": headers} if headers else event)


Converse = Callable[["WebSocket"], Awaitable[None]]


def accept(upgrade: Upgrade, tenant: str, bounds: SocketBounds, converse: Converse) -> RawHeaders:
    """Accept a handshake of a tenant, and return the headers of the 101. Raises ApiError if it is not valid."""
    fields = Headers()
    for name, value in upgrade.headers:
        fields[name.decode("ascii")] = value.decode("latin-1")
    answer = ServerProtocol(logger=_SILENT).accept(Request("/", fields))
    if answer.status_code != _SWITCHING:
        raise invalid("sec-websocket-key", "This is not a valid WebSocket handshake of version 13.")
    upgrade.takes = lambda carried: WebSocket(carried, tenant, bounds, converse).begin()
    return [(name.lower().encode(), value.encode()) for name, value in answer.headers.raw_items() if name != "Date"]


class _Frames(Protocol):
    """The library's protocol, which closes for a message that is too long, but gives the client no reason."""

    def fail(self, code: CloseCode | int, reason: str = "") -> None:
        if code == CloseCode.MESSAGE_TOO_BIG and self.state is OPEN:
            self.send_text(error_event(request_too_large(self.max_message_size or 0)))
        super().fail(code, reason)


class WebSocket(asyncio.Protocol):
    """One connection from its 101 on. `next` and `say` are for the task that converses."""

    def __init__(self, carried: Carried, tenant: str, bounds: SocketBounds, converse: Converse) -> None:
        self._loop = asyncio.get_running_loop()
        self._carried, self._transport = carried, carried.transport
        self.place = carried.place
        self._tenant = tenant
        self._bounds = bounds
        self._converse = converse
        # Of the message that is being answered.
        self.disconnect = Disconnect(lambda: None)
        self._frames = _Frames(Side.SERVER, max_size=bounds.max_message_bytes, logger=_SILENT)
        self._parts: list[bytes] = []
        self._frame_count, self._received_bytes = 0, 0
        self._hold = self._new_hold()
        self._waiting: deque[tuple[bytes, BodyHold]] = deque()
        self._news, self._writable = asyncio.Event(), asyncio.Event()
        self._writable.set()
        # Nothing more is sent except what is already written.
        self._is_over = False
        self._is_deaf = False
        self._is_answering = False
        self._began_s = self._loop.time()
        self._linger: asyncio.TimerHandle | None = None
        self._patience: Patience | None = None

    def begin(self) -> None:
        self._carried.connections.add(self)
        if self.place is not None:
            self.place.connection = self
        self._transport.set_protocol(self)
        task = self._loop.create_task(self._run(), name="websocket")
        self._carried.tasks.add(task)
        task.add_done_callback(self._carried.tasks.discard)

    async def _run(self) -> None:
        try:
            await self._converse(self)
        except ClientDisconnect:
            pass
        finally:
            self.close(CloseCode.NORMAL_CLOSURE)

    async def next(self) -> tuple[bytes, BodyHold]:
        """Return the next message, and its share of the budget for bodies, which the caller has to release.

        Raises ClientDisconnect if there will be none."""
        self._is_answering = False
        self.disconnect = Disconnect(lambda: None)
        idle_s, age_s = self._bounds.idle_s, self._began_s + self._bounds.age_s - self._loop.time()
        if age_s > 0 and not (self._waiting or self._is_over):
            self._news.clear()
            try:
                async with asyncio.timeout(min(idle_s, age_s)):
                    await self._news.wait()
            except TimeoutError:
                self.refuse(_idle(idle_s) if idle_s < age_s else _too_old(self._bounds.age_s), CloseCode.GOING_AWAY)
        elif age_s <= 0:
            self.refuse(_too_old(self._bounds.age_s), CloseCode.GOING_AWAY)
        if self._is_over:
            raise ClientDisconnect
        self._is_answering = True
        return self._waiting.popleft()

    @property
    def is_paused(self) -> bool:
        """Whether the client reads too slowly for more to be sent now."""
        return not self._writable.is_set()

    async def drain(self) -> None:
        """Wait until more can be sent. Raises ClientDisconnect if that is over."""
        await self._writable.wait()
        if self._is_over:
            raise ClientDisconnect

    def say(self, text: bytes) -> None:
        """Send one message, unless the connection is over."""
        if not self._is_over:
            self._frames.send_text(text)
            self._flush()

    def ping(self) -> None:
        if not self._is_over and not self.is_paused:
            self._frames.send_ping(b"")
            self._flush()

    def refuse(self, error: ApiError, code: CloseCode) -> None:
        """Send the reason, and close."""
        self.say(error_event(error))
        self.close(code)

    def close(self, code: CloseCode) -> None:
        """Begin the closing handshake. What the client sends from now on is discarded."""
        if not self._is_over:
            self._frames.send_close(code)
            self._flush()
            self._leave()

    def abort(self) -> None:
        """Close without a handshake, because a response is incomplete."""
        self._leave()
        self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._leave()
        if self._linger is not None:
            self._linger.cancel()
        if self._patience is not None:
            self._patience.end()
        self._carried.connections.discard(self)
        if self.place is not None:
            self.place.leave()
            self.place = None

    def data_received(self, data: bytes) -> None:
        for start in range(0, len(data), PIECE_BYTES):
            if self._is_over:
                break
            self._read(data[start : start + PIECE_BYTES])
        else:
            return
        self._discard(data)

    def _read(self, piece: bytes) -> None:
        if not self._hold.takes(len(piece)):
            refusal, self._hold.refusal = self._hold.refusal, None
            assert refusal is not None  # noqa: S101 - the only reason for which a hold that is in use takes nothing
            self.refuse(refusal, CloseCode.TRY_AGAIN_LATER)
            return
        self._received_bytes += len(piece)
        self._frames.receive_data(piece)
        events = self._frames.events_received()
        self._frame_count += len(events)
        for event in events:
            if isinstance(event, Frame):
                self._hear(event)
        self._flush()
        if self._frames.state is not OPEN:
            self._leave()
        elif self._frame_count > MOST_FRAMES + self._received_bytes // FRAME_BYTES:
            self.refuse(invalid(None, "Too many frames are shorter than they need to be."), CloseCode.POLICY_VIOLATION)

    def _discard(self, data: bytes) -> None:
        """Look for the client's close frame. If it sends much else, end the output instead, and read no frame more."""
        if self._is_deaf or self._transport.is_closing():
            return
        if len(data) <= PIECE_BYTES and self._frame_count <= MOST_FRAMES:
            self._frames.receive_data(data)
            self._frame_count += len(self._frames.events_received())
            self._flush()
        else:
            self._is_deaf = True
            self._transport.write_eof()

    def _hear(self, frame: Frame) -> None:
        if self._is_over or frame.opcode in (Opcode.CLOSE, Opcode.PING, Opcode.PONG):
            return
        if frame.opcode is Opcode.BINARY:
            self.refuse(invalid(None, "Each message must be text, a JSON object."), CloseCode.UNSUPPORTED_DATA)
            return
        self._parts.append(bytes(frame.data))
        if frame.fin:
            self._deliver(b"".join(self._parts))

    def _deliver(self, message: bytes) -> None:
        self._parts.clear()
        self._frame_count = self._received_bytes = 0
        hold, self._hold = self._hold, self._new_hold()
        if len(self._waiting) >= MOST_WAITING:
            hold.release()
            error = ApiError("Too many messages wait on this connection.", "concurrency_limit_exceeded")
            self.refuse(error, CloseCode.POLICY_VIOLATION)
            return
        self._waiting.append((message, hold))
        self._news.set()

    def _new_hold(self) -> BodyHold:
        hold = BodyHold(self._carried.bodies)
        hold.claim(self._tenant, 0)
        return hold

    def _leave(self) -> None:
        """End the conversation. The connection ends when the client has closed it too, at the latest after LINGER_S."""
        if self._is_over:
            return
        self._is_over = True
        self._linger = self._loop.call_later(LINGER_S, self._transport.abort)
        self._hold.release()
        for _, hold in self._waiting:
            hold.release()
        self._waiting.clear()
        self._parts.clear()
        self._news.set()
        self._writable.set()
        self.disconnect.left()

    def _flush(self) -> None:
        for data in self._frames.data_to_send():
            if self._transport.is_closing():
                return
            if data:
                self._transport.write(data)
            elif self._frames.close_rcvd is not None:  # empty: nothing more is sent
                self._transport.close()
            else:  # the client may still be sending, and closing now would lose what it has not read
                self._transport.write_eof()

    def pause_writing(self) -> None:
        self._writable.clear()
        self._transport.pause_reading()  # otherwise the answers to pings would add up
        self._patience = Patience(self._transport, self._bounds.write_timeout_s)

    def resume_writing(self) -> None:
        self._writable.set()
        if self._patience is not None:
            self._patience.end()
            self._patience = None
        if not self._transport.is_closing():
            self._transport.resume_reading()

    def is_answering(self) -> bool:
        return self._is_answering

    def give_way(self) -> None:
        """Leave the place to another connection."""
        self.close(CloseCode.TRY_AGAIN_LATER)

    def shutdown(self) -> None:
        self.close(CloseCode.SERVICE_RESTART)
        self._transport.close()


def _too_old(age_s: float) -> ApiError:
    message = f"A WebSocket serves messages for {age_s:g} s: open a new one."
    return ApiError(message, "websocket_connection_limit_reached")


def _idle(idle_s: float) -> ApiError:
    return ApiError(f"No message was received for {idle_s:g} s.", "request_timeout")
