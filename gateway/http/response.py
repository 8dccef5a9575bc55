"""Writes responses: the head waits for the first part of the body, so that a whole response is one write.

It replaces uvicorn's `send`, which writes the two separately and checks each header twice. The rules are the same."""

import asyncio
from collections.abc import Callable
from functools import lru_cache
from typing import Protocol

from uvicorn._types import ASGISendEvent, HTTPResponseBodyEvent, HTTPResponseStartEvent
from uvicorn.protocols.http.httptools_impl import HEADER_RE, HEADER_VALUE_RE, STATUS_LINE, RequestResponseCycle

from fairlane.gateway.http.body_budget import BodyHold

_BODILESS = (101, 204, 304)


@lru_cache(maxsize=256)  # responses have few sets of header names
def _places(names: tuple[bytes, ...]) -> tuple[int | None, int | None, int | None]:
    if HEADER_RE.search(b"".join(names)):
        raise RuntimeError("invalid HTTP header name")
    places = {name.lower(): place for place, name in enumerate(names)}
    return places.get(b"connection"), places.get(b"content-length"), places.get(b"transfer-encoding")


class Channel(Protocol):
    """Faster access to a request's body and response than ASGI messages; `Answer` implements it."""

    def take_body(self) -> bytes | None:
        """Return the body once, if all of it has arrived; None if it has to be awaited with `receive`."""

    def push(self, body: bytes) -> bool:
        """Write a further part of a streamed body without waiting. Return False if it has to be sent with `send`."""


class Answer:
    """The `send` callable of one request's cycle."""

    __slots__ = ("_cycle", "_head", "_hold", "_is_abandoned", "_is_open_ended")

    def __init__(self, cycle: RequestResponseCycle, hold: BodyHold) -> None:
        """`hold` belongs to the request's body and is released with the end of the response at the latest."""
        # None once the response has ended. The two refer to each other and to all data of the request, which should be
        # freed with the last reference and not by the next garbage collection.
        self._cycle: RequestResponseCycle | None = cycle
        self._head = b""
        self._hold = hold
        self._is_abandoned = False
        # The body ends with the connection: HTTP/1.0 has no chunks.
        self._is_open_ended = False

    async def send(self, message: ASGISendEvent) -> None:
        """Handle one ASGI message. Raises RuntimeError for a message out of order or an invalid header."""
        cycle = self._cycle
        if cycle is None:
            if self._is_abandoned:
                return
            raise RuntimeError("the answer is over")
        if cycle.flow.write_paused and not cycle.disconnected:
            await cycle.flow.drain()
        if cycle.disconnected:
            return
        if message["type"] == "http.response.start" and not cycle.response_started:
            self._begin(cycle, message)
        elif message["type"] == "http.response.body" and cycle.response_started:
            self._go_on(cycle, message)
        else:
            raise RuntimeError(f"the message {message['type']} may not come now")

    @property
    def is_over(self) -> bool:
        return self._cycle is None

    def abandon(self) -> None:
        """Drop the request of a lost connection, so that it is freed at once and not by the next garbage collection."""
        if self._cycle is not None:
            self._cycle.disconnected = True  # uvicorn marks only the latest
        self._cycle, self._is_abandoned = None, True
        self._hold.release()

    def take_body(self) -> bytes | None:
        cycle = self._cycle
        if cycle is None or cycle.more_body:
            return None
        body, cycle.body = bytes(cycle.body), bytearray()
        return body

    def push(self, body: bytes) -> bool:
        cycle = self._cycle
        if cycle is None or cycle.flow.write_paused or self._head:
            return False
        if not (cycle.chunked_encoding or self._is_open_ended):
            return False
        if not cycle.disconnected:
            cycle.transport.write(body if self._is_open_ended else b"%x\r\n%b\r\n" % (len(body), body))
        return True

    def _begin(self, cycle: RequestResponseCycle, message: HTTPResponseStartEvent) -> None:
        status = message["status"]
        headers = [*cycle.default_headers, *message.get("headers", ())]
        names, values = zip(*headers, strict=True) if headers else ((), ())
        connection, length, coding = _places(names)
        if HEADER_VALUE_RE.search(b"".join(values)):
            raise RuntimeError("invalid HTTP header value")
        cycle.response_started, cycle.waiting_for_100_continue = True, False
        head = [STATUS_LINE[status], *[b"%b: %b\r\n" % header for header in headers]]
        closes = False
        if connection is not None:
            closes = b"close" in [token.strip() for token in headers[connection][1].lower().split(b",")]
        if not (cycle.keep_alive or closes):
            head.append(b"connection: close\r\n")
        cycle.keep_alive = cycle.keep_alive and not closes
        if length is not None:
            cycle.chunked_encoding, cycle.expected_content_length = False, int(headers[length][1])
        elif coding is not None and headers[coding][1].lower() == b"chunked":
            cycle.chunked_encoding = True
        elif cycle.scope["method"] != "HEAD" and status not in _BODILESS:
            self._is_open_ended = cycle.scope["http_version"] == "1.0"  # HTTP/1.0: the connection is not kept alive
            cycle.chunked_encoding = not self._is_open_ended
            if cycle.chunked_encoding:
                head.append(b"transfer-encoding: chunked\r\n")
        self._head = b"".join([*head, b"\r\n"])

    def _go_on(self, cycle: RequestResponseCycle, message: HTTPResponseBodyEvent) -> None:
        body, more = message.get("body", b""), message.get("more_body", False)
        head, self._head = self._head, b""
        if cycle.scope["method"] == "HEAD":
            cycle.transport.write(head)
        elif self._is_open_ended:
            cycle.transport.write(head + body)
        elif cycle.chunked_encoding:
            chunk = b"%x\r\n%b\r\n" % (len(body), body) if body else b""
            cycle.transport.write(b"%b%b%b" % (head, chunk, b"" if more else b"0\r\n\r\n"))
        else:
            cycle.expected_content_length -= len(body)
            if cycle.expected_content_length < 0 or (cycle.expected_content_length and not more):
                raise RuntimeError("the body is not as long as its content-length says")
            cycle.transport.write(head + body)
        if not more:
            self._end(cycle)

    def _end(self, cycle: RequestResponseCycle) -> None:
        self._cycle = None
        self._hold.release()
        cycle.body.clear()  # the connection keeps the cycle until its next request
        cycle.response_complete = True
        cycle.message_event.set()
        if not cycle.keep_alive:
            cycle.transport.close()
        cycle.on_response()


class AnsweringTransport:
    """The transport as one response sees it: closing leaves the client time to read the response."""

    def __init__(self, transport: asyncio.Transport, hang_up: Callable[[], None]) -> None:
        self.write = transport.write
        self.is_closing = transport.is_closing
        self.close = hang_up
