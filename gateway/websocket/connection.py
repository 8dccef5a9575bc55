"""A connection that has become a WebSocket, within bounds of bytes, frames, waiting messages and time.

The reason for an end is sent as an event before the close frame. Frames are never compressed."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import msgspec
from starlette.requests import ClientDisconnect
from websockets.frames import CloseCode, Frame, Opcode
from websockets.protocol import OPEN, Protocol, Side

from fairlane.gateway.errors import ApiError, error_body, invalid, request_timeout, request_too_large
from fairlane.gateway.http.body_budget import BodyHold
from fairlane.gateway.http.connection import DISCARD_REST_S
from fairlane.gateway.http.disconnect import Disconnect
from fairlane.gateway.http.exchange import Carried
from fairlane.gateway.http.flow import Patience
from fairlane.gateway.websocket.inbox import MOST_FRAMES, Inbox

# Time for the client's own close frame.
LINGER_S = 5.0
# Frames of one read that are parsed at once, in pieces of PIECE_BYTES. The others take turns with other connections.
MOST_AT_ONCE, PIECE_BYTES = 32, 512
# The library's log would contain what clients send.
SILENT = logging.Logger("fairlane.frames", logging.CRITICAL + 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class SocketBounds:
    """Bounds of one connection."""

    max_message_bytes: int
    # From the first byte of a message to its end.
    message_timeout_s: float
    # How long the client may send no message while none is being answered.
    idle_s: float
    # After this time no further message is answered.
    age_s: float
    # A client that reads nothing for this long is disconnected.
    write_timeout_s: float


Converse = Callable[["WebSocket"], Awaitable[None]]


class _Frames(Protocol):
    """The library's protocol, which closes for a message that is too long, but gives the client no reason."""

    def fail(self, code: CloseCode | int, reason: str = "") -> None:
        if code == CloseCode.MESSAGE_TOO_BIG and self.state is OPEN:
            self.send_text(_event(request_too_large(self.max_message_size or 0)))
        super().fail(code, reason)


class WebSocket(asyncio.Protocol):
    """One connection from its 101 on. `next` and `say` are for the task that converses."""

    def __init__(self, carried: Carried, tenant: str, bounds: SocketBounds) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport, self._flow, self._turns = carried.transport, carried.flow, carried.turns
        self._connections, self._tasks = carried.connections, carried.tasks
        self.place = carried.place
        self._tenant, self._bounds = tenant, bounds
        # Of the message that is being answered.
        self.disconnect = Disconnect(lambda: None)
        self._frames = _Frames(Side.SERVER, max_size=bounds.max_message_bytes, logger=SILENT)
        self._news, self._writable = asyncio.Event(), asyncio.Event()
        self._writable.set()
        # Over: nothing more is sent except what is already written. Deaf: what the client sends is no longer parsed.
        self._is_over = self._is_deaf = self._is_answering = False
        self._began_s = self._loop.time()
        self._inbox = Inbox(carried.bodies, tenant, self._began_s)
        # For the rest of a message; after the end for the client's close frame.
        self._deadline: asyncio.TimerHandle | None = None
        self._patience: Patience | None = None

    def begin(self, converse: Converse) -> None:
        self._connections.add(self)
        if self.place is not None:
            self.place.connection = self
        self._transport.set_protocol(self)
        task = self._loop.create_task(self._run(converse), name="websocket")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, converse: Converse) -> None:
        try:
            with suppress(ClientDisconnect):
                await converse(self)
        finally:
            self.close(CloseCode.NORMAL_CLOSURE)

    async def next(self) -> tuple[bytes, BodyHold]:
        """Return the next message, and its share of the budget for bodies, which the caller has to release.

        Raises ClientDisconnect if there will be none."""
        self._is_answering = False
        self.disconnect = Disconnect(lambda: None)
        idle_s, age_s = self._bounds.idle_s, self._began_s + self._bounds.age_s - self._loop.time()
        self._news.clear()
        if age_s > 0 and not (self._inbox or self._is_over):
            with suppress(TimeoutError):
                async with asyncio.timeout(min(idle_s, age_s)):
                    await self._news.wait()
        if not self._is_over and (age_s <= 0 or not self._inbox):
            self.refuse(_idle(idle_s) if idle_s < age_s else _too_old(self._bounds.age_s), CloseCode.GOING_AWAY)
        if self._is_over:
            raise ClientDisconnect
        self._is_answering = True
        return self._inbox.take()

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
        self.say(_event(error))
        self.close(code)

    def close(self, code: CloseCode) -> None:
        """Begin the closing handshake. What the client sends from now on is discarded."""
        if not self._is_over:
            self._frames.send_close(code)
            self._flush()
            self._leave()

    def abort(self) -> None:
        """Close without a handshake, because a response is incomplete."""
        if not self._is_over:
            self._leave()
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._leave()
        self._expect_nothing()
        self._stop_watching()
        self._turns.leave(self)
        self._connections.discard(self)
        if self.place is not None:
            self.place.leave()
            self.place = None
        self._inbox.close()
        self._frames.parser.close()  # it refers to the frames
        self._frames.reader.buffer.clear()

    def data_received(self, data: bytes) -> None:
        start, frames = 0, 0
        while start < len(data) and frames < MOST_AT_ONCE and not self._turns.is_waiting(self):
            frames += self.parse(data[start : start + PIECE_BYTES])
            start += PIECE_BYTES
        if start < len(data):
            self._flow.hold()
            if not self._turns.wait(self, self._tenant, data[start:]):
                self._flow.release()
                error = ApiError("Too many frames are arriving in small pieces.", "overloaded")
                self.refuse(error, CloseCode.TRY_AGAIN_LATER)

    def parse(self, piece: bytes) -> int:
        """Parse the next bytes. Return the number of frames."""
        if self._is_over:
            self._discard(piece)
            return 0
        if refusal := self._inbox.count_bytes(len(piece)):
            self.refuse(refusal, CloseCode.TRY_AGAIN_LATER)
            return 0
        self._frames.receive_data(piece)
        events = self._frames.events_received()
        self._inbox.frames += len(events)
        for event in events:
            if isinstance(event, Frame):
                self._hear(event)
        self._flush()
        if self._frames.state is not OPEN:
            self._leave()
        elif self._inbox.is_flooded(self._loop.time()):
            self.refuse(invalid(None, "Too many frames are shorter than they need to be."), CloseCode.POLICY_VIOLATION)
        elif not self._is_over:
            self._expect_rest()
        return len(events)

    def parsed(self) -> None:
        self._flow.release()

    def _expect_rest(self) -> None:
        """Expect the rest of a message in time, if there is a part of one; otherwise hold nothing."""
        if self._inbox.has_part or self._frames.reader.buffer:
            if self._deadline is None:
                limit_s = self._bounds.message_timeout_s
                late = partial(self.refuse, request_timeout(limit_s), CloseCode.POLICY_VIOLATION)
                self._deadline = self._loop.call_later(limit_s, late)
        else:
            self._expect_nothing()
            self._inbox.release_rest()

    def _discard(self, piece: bytes) -> None:
        """Look for the client's close frame. If it sends much else, end the output, and read no frame more."""
        if self._transport.is_closing():
            return
        if not self._is_deaf and self._inbox.frames <= MOST_FRAMES and len(piece) < PIECE_BYTES:
            self._frames.receive_data(piece)
            self._inbox.frames += len(self._frames.events_received())
            self._flush()
            return
        self._end_output()
        if not self._flow.is_held:
            self._flow.hold()
            self._turns.discard_later(DISCARD_REST_S, self._flow.release)

    def _hear(self, frame: Frame) -> None:
        if self._is_over or frame.opcode in (Opcode.CLOSE, Opcode.PING, Opcode.PONG):
            return
        if frame.opcode is Opcode.BINARY:
            self.refuse(invalid(None, "Each message must be text, a JSON object."), CloseCode.UNSUPPORTED_DATA)
            return
        if not self._inbox.put(bytes(frame.data), is_last=frame.fin):
            error = ApiError("Too many messages wait on this connection.", "concurrency_limit_exceeded")
            self.refuse(error, CloseCode.POLICY_VIOLATION)
        elif frame.fin:
            self._expect_nothing()
            self._news.set()

    def _leave(self) -> None:
        """End the conversation. The connection ends when the client has closed it too, at the latest after LINGER_S."""
        if self._is_over:
            return
        self._is_over = True
        self._expect_nothing()
        self._deadline = self._loop.call_later(LINGER_S, self._transport.abort)
        self._inbox.forget_waiting()
        self._news.set()
        self._writable.set()
        self.disconnect.left()

    def _expect_nothing(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _flush(self) -> None:
        writes = self._frames.data_to_send()
        if not writes or self._transport.is_closing():
            return
        self._transport.write(b"".join(writes))
        if writes[-1]:
            return
        if self._frames.close_rcvd is not None:  # an empty write: nothing more is sent
            self._transport.close()
        else:  # the client may still be sending, and closing now would lose what it has not read
            self._end_output()

    def _end_output(self) -> None:
        if not self._is_deaf:
            self._is_deaf = True
            with suppress(OSError):  # the client has left
                self._transport.write_eof()

    def pause_writing(self) -> None:
        self._writable.clear()
        self._flow.pause_reading()  # otherwise the answers to pings would add up
        self._patience = Patience(self._transport, self._bounds.write_timeout_s)

    def resume_writing(self) -> None:
        self._writable.set()
        self._stop_watching()
        if not self._transport.is_closing():
            self._flow.resume_reading()

    def _stop_watching(self) -> None:
        if self._patience is not None:
            self._patience.end()
            self._patience = None

    def is_answering(self) -> bool:
        return self._is_answering

    def give_way(self) -> None:
        """Leave the place to another connection."""
        self.close(CloseCode.TRY_AGAIN_LATER)
        self._transport.close()

    def shutdown(self) -> None:
        self.close(CloseCode.SERVICE_RESTART)
        self._transport.close()


def _event(error: ApiError) -> bytes:
    """Return an error of the connection as an event."""
    return msgspec.json.encode({"type": "error", "status": error.status, **error_body(error)})


def _too_old(age_s: float) -> ApiError:
    message = f"A WebSocket serves messages for {age_s:g} s: open a new one."
    return ApiError(message, "websocket_connection_limit_reached")


def _idle(idle_s: float) -> ApiError:
    return ApiError(f"No message was received for {idle_s:g} s.", "request_timeout")
