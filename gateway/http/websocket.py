"""A connection that goes on as a WebSocket (RFC 6455), within bounds: bytes, time, and messages that wait.

The request for it is an ordinary GET: it goes through all that any request goes through, and whoever serves it says
yes with a 101, or refuses it with an answer of its own. Bytes that come before the 101 wait.

    GET, upgrade ──> Offer in the request's state ──> accept ──101──> WebSocket ──> next, say … close
                                                  └──any other answer──> HTTP, as before

What ends a connection is told as an `error` event first, then by a close frame. Frames are never compressed: a small
message cannot become a large one. Nothing of what is said goes to a log.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Protocol as Interface

import msgspec
from starlette.requests import ClientDisconnect
from websockets.datastructures import Headers as HeaderFields
from websockets.frames import CloseCode, Frame, Opcode
from websockets.http11 import Request
from websockets.protocol import OPEN, Protocol, Side
from websockets.server import ServerProtocol

from fairlane.gateway.errors import ApiError, error_body, invalid, request_timeout, request_too_large
from fairlane.gateway.http.body_budget import BodyBudget, BodyHold
from fairlane.gateway.http.connections import Place
from fairlane.gateway.http.disconnect import Disconnect
from fairlane.gateway.http.patience import Patience
from fairlane.gateway.http.upgrade import Headers

STATE = "websocket"
"""Where the `state` of a scope has the `Offer` of a request that wishes for a WebSocket."""
MAX_EARLY_BYTES = 64 * 1024
"""What may come before the 101."""
_SWITCHING = 101
_SILENT = logging.Logger("fairlane.frames", logging.CRITICAL)
"""The library's own log tells what frames hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What one connection may do. Times in seconds."""

    max_message_bytes: int
    message_timeout_s: float
    """From the first byte of a message to its end."""
    idle_s: float
    """So long the client may say nothing while it is not being answered."""
    age_s: float
    """After it the connection takes no further message."""
    ping_every_s: float
    write_timeout_s: float
    """A client that takes nothing for so long is cut off."""
    linger_s: float = 5.0
    """For the client's own close frame."""
    most_waiting: int = 4
    """Messages behind the one that is answered."""


def error_event(error: ApiError, headers: Mapping[str, str] | None = None) -> bytes:
    """An error as clients of the Responses API read it on a WebSocket. `headers`: what HTTP would have told there."""
    told = {"type": "error", "status": error.status, **error_body(error)}
    return msgspec.json.encode({**told, "headers": headers} if headers else told)


Converse = Callable[["WebSocket"], Awaitable[None]]


class Offer:
    """A request's wish for a WebSocket."""

    def __init__(self, headers: Headers) -> None:
        self._headers = headers
        self.early = b""
        """What came of the frames already."""
        self.accepted: tuple[Terms, Converse] | None = None

    def accept(self, terms: Terms, converse: Converse) -> list[tuple[bytes, bytes]]:
        """Go on with this once a 101 with these headers was sent. Raises ApiError for a handshake that is none."""
        fields = HeaderFields()
        for name, value in self._headers:
            fields[name.decode("ascii")] = value.decode("latin-1")
        answer = ServerProtocol(logger=_SILENT).accept(Request("/", fields))
        if answer.status_code != _SWITCHING:
            raise invalid("sec-websocket-key", "This is no valid WebSocket handshake of version 13.")
        self.accepted = terms, converse
        return [(name.lower().encode(), value.encode()) for name, value in answer.headers.raw_items() if name != "Date"]


class _Frames(Protocol):
    """The library's, which tells why before it closes for a message that is too large."""

    def fail(self, code: CloseCode | int, reason: str = "") -> None:
        if code == CloseCode.MESSAGE_TOO_BIG and self.state is OPEN:
            self.send_text(error_event(request_too_large(self.max_message_size or 0)))
        super().fail(code, reason)


class Carrier(Interface):
    """The HTTP connection that it was."""

    transport: asyncio.Transport
    connections: set[object]
    tasks: set[asyncio.Task[None]]
    bodies: BodyBudget


class WebSocket(asyncio.Protocol):
    """One connection from its 101 on. `next` and `say` are for the one task that converses."""

    def __init__(self, carrier: Carrier, place: Place | None, terms: Terms, converse: Converse) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport = carrier.transport
        self._connections, self._tasks, self._bodies = carrier.connections, carrier.tasks, carrier.bodies
        self.place = place
        self._terms = terms
        self._converse = converse
        self.disconnect = Disconnect(lambda: None)
        self._frames = _Frames(Side.SERVER, max_size=terms.max_message_bytes, logger=_SILENT)
        self._message = bytearray()
        self._is_mid_message = False
        self._hold = BodyHold(self._bodies)
        self._waiting: deque[tuple[bytes, BodyHold]] = deque()
        self._news = asyncio.Event()
        self._writable = asyncio.Event()
        self._writable.set()
        self._is_over = False
        """Nothing more is said."""
        self._is_answering = False
        self._began_s = self._loop.time()
        self._deadline: asyncio.TimerHandle | None = None
        """Of the message that is coming; then of the client's close frame."""
        self._patience: Patience | None = None

    def begin(self, early: bytes) -> None:
        """The 101 is sent. `early`: what came before it."""
        self._connections.add(self)
        if self.place is not None:
            self.place.connection = self
        self._transport.set_protocol(self)
        task = self._loop.create_task(self._run(), name="websocket")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        if early:
            self.data_received(early)
        if not self._transport.is_closing():
            self._transport.resume_reading()

    async def _run(self) -> None:
        try:
            await self._converse(self)
        except ClientDisconnect:
            pass
        finally:
            self.close(CloseCode.NORMAL_CLOSURE)

    async def next(self) -> tuple[bytes, BodyHold]:
        """The next message, and what it holds of the budget for bodies, which is the caller's from then on.

        Raises ClientDisconnect when there will be none.
        """
        self._is_answering = False
        idle_from_s, terms = self._loop.time(), self._terms
        while not self._is_over:
            now_s = self._loop.time()
            age_left_s, idle_left_s = self._began_s + terms.age_s - now_s, idle_from_s + terms.idle_s - now_s
            if age_left_s <= 0:
                self.refuse(_too_old(terms.age_s), CloseCode.GOING_AWAY)
            elif self._waiting:
                self._is_answering = True
                return self._waiting.popleft()
            elif idle_left_s <= 0:
                self.refuse(_idle(terms.idle_s), CloseCode.GOING_AWAY)
            else:
                await self._wait(min(age_left_s, idle_left_s, terms.ping_every_s))
        raise ClientDisconnect

    async def _wait(self, for_s: float) -> None:
        self._news.clear()
        try:
            async with asyncio.timeout(for_s):
                await self._news.wait()
        except TimeoutError:
            self.ping()

    @property
    def is_paused(self) -> bool:
        """The client takes nothing for now: `drain` waits until it does."""
        return not self._writable.is_set()

    async def drain(self) -> None:
        """Wait until more may be said. Raises ClientDisconnect once nothing may."""
        await self._writable.wait()
        if self._is_over:
            raise ClientDisconnect

    def say(self, text: bytes) -> None:
        """One message. Goes nowhere once the connection is over."""
        if not self._is_over:
            self._frames.send_text(text)
            self._flush()

    def ping(self) -> None:
        """Keep the connection alive, and find out whether it still is."""
        if not self._is_over and not self.is_paused:
            self._frames.send_ping(b"")
            self._flush()

    def refuse(self, error: ApiError, code: CloseCode) -> None:
        """Say why, and close."""
        self.say(error_event(error))
        self.close(code)

    def close(self, code: CloseCode) -> None:
        """Nothing more is said, nor heard but the client's close frame."""
        if not self._is_over:
            self._frames.send_close(code)
            self._flush()
            self._leave()

    def abort(self) -> None:
        """An answer broke off: whoever reads it must not take what it has for all of it."""
        self._is_over = True
        self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_over = True
        self._expect_nothing()
        self._trust()
        self._connections.discard(self)
        if self.place is not None:
            self.place.leave()
            self.place = None
        self._let_go()

    def data_received(self, data: bytes) -> None:
        if not self._is_over and not self._hold.takes(len(data)):
            refusal = self._hold.refusal
            self._hold.refusal = None  # it would keep this connection alive by its traceback
            assert refusal is not None  # noqa: S101 - it takes nothing for no other reason
            self.refuse(refusal, CloseCode.TRY_AGAIN_LATER)
        if self._deadline is None:
            self._deadline = self._loop.call_later(self._terms.message_timeout_s, self._too_slow)
        self._frames.receive_data(data)
        for event in self._frames.events_received():
            if isinstance(event, Frame):
                self._hear(event)
        self._flush()
        if self._frames.state is not OPEN and not self._is_over:
            self._leave()
        if not self._is_over and not self._is_mid_message and not self._frames.reader.buffer:
            self._expect_nothing()
            self._hold.release()
            self._hold = BodyHold(self._bodies)

    def eof_received(self) -> bool:
        """The client will say nothing more: it has left."""
        return False

    def _hear(self, frame: Frame) -> None:
        if frame.opcode is Opcode.CLOSE:
            self._leave()
            self._transport.close()
        elif self._is_over or frame.opcode in (Opcode.PING, Opcode.PONG):
            return
        elif frame.opcode is Opcode.BINARY:
            self.refuse(invalid(None, "Messages must be text, a JSON object each."), CloseCode.UNSUPPORTED_DATA)
        else:
            self._message += frame.data
            self._is_mid_message = not frame.fin
            if frame.fin:
                self._deliver()

    def _deliver(self) -> None:
        message, self._message = bytes(self._message), bytearray()
        if len(self._waiting) >= self._terms.most_waiting:
            error = ApiError("Too many messages wait on this connection.", "concurrency_limit_exceeded")
            self.refuse(error, CloseCode.POLICY_VIOLATION)
            return
        self._waiting.append((message, self._hold))
        self._hold = BodyHold(self._bodies)
        self._news.set()

    def _leave(self) -> None:
        """The conversation ends; the connection does when the client has closed it too, or soon."""
        if self._is_over:
            return
        self._is_over = True
        self._let_go()
        self._expect_nothing()
        self._deadline = self._loop.call_later(self._terms.linger_s, self._transport.abort)

    def _let_go(self) -> None:
        self._hold.release()
        for _, hold in self._waiting:
            hold.release()
        self._waiting.clear()
        self._message = bytearray()
        self._news.set()
        self._writable.set()
        self.disconnect.left()

    def _too_slow(self) -> None:
        self._deadline = None
        self.refuse(request_timeout(self._terms.message_timeout_s), CloseCode.POLICY_VIOLATION)

    def _flush(self) -> None:
        if self._transport.is_closing():
            return
        for data in self._frames.data_to_send():
            if data:
                self._transport.write(data)
            else:  # as the library says that the connection is to end
                self._transport.close()

    def pause_writing(self) -> None:
        self._writable.clear()
        self._transport.pause_reading()  # it would have us answer pings that nobody takes
        self._patience = Patience(self._transport, self._terms.write_timeout_s)

    def resume_writing(self) -> None:
        self._writable.set()
        self._trust()
        if not self._transport.is_closing():
            self._transport.resume_reading()

    def _trust(self) -> None:
        if self._patience is not None:
            self._patience.end()
            self._patience = None

    def _expect_nothing(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def is_answering(self) -> bool:
        """A message is being answered."""
        return self._is_answering

    def give_way(self) -> None:
        """Others need its place."""
        self.close(CloseCode.TRY_AGAIN_LATER)

    def shutdown(self) -> None:
        """The server ends."""
        self.close(CloseCode.GOING_AWAY)
        self._transport.close()


def _too_old(age_s: float) -> ApiError:
    message = f"A WebSocket is open for at most {age_s:g} s here: open a new one to go on."
    return ApiError(message, "websocket_connection_limit_reached")


def _idle(idle_s: float) -> ApiError:
    return ApiError(f"Nothing was sent for {idle_s:g} s.", "request_timeout")
