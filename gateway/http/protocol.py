"""Bounds on what a client may send and how slowly: uvicorn alone has none on headers, bodies or silence.

The life of a connection, request by request:

    headers ──> body ──> answer ──> idle ──> headers …
       │          │         │         └ uvicorn's timeout_keep_alive
       │          │         ├ nothing of it is taken: `write_timeout_s`, then the connection is cut
       │          │         └ body still coming after it: `linger_s`, then the connection is cut
       │          └ `body.read_body` in the application: bytes and time
       └ here: bytes, number, time

A refusal is answered with our error JSON, then the client may go on sending for `linger_s` without being listened to:
closing at once would reset the connection and destroy the answer on its way. A request that asks to upgrade is served
in HTTP/1.1 (`upgrade.py`).
"""

import asyncio
import sys
from http import HTTPStatus
from typing import Any, cast

import httptools
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from fairlane.gateway.errors import ApiError, headers_too_large, invalid, request_timeout
from fairlane.gateway.http import body_budget, connections, response
from fairlane.gateway.http.body_budget import BodyBudget, BodyHold
from fairlane.gateway.http.connections import Crowd, Heads, Place, forwarded_for
from fairlane.gateway.http.disconnect import STATE, Disconnect
from fairlane.gateway.http.limits import HttpLimits
from fairlane.gateway.http.patience import Patience
from fairlane.gateway.http.refusals import Malformed, answer_bytes, refusal_of
from fairlane.gateway.http.response import Answer
from fairlane.gateway.http.upgrade import plain_head
from fairlane.scheduler.protocol.settings import Networks

PROBES = frozenset({b"/healthz", b"/health", b"/readyz"})
"""Paths that are served however full it is."""
FREED_BYTES = 1_024
"""What a connection that is gone leaves free, by which to tell whether it is worth giving back: it takes ten times that
for a moment, and mostly for others again."""
DEAF_REST_S = 0.02
"""Between pieces, of up to 256 KiB each, of what a client sends that was refused already."""
_BYTES_PER_CHUNKED_BYTE = 8
"""Bytes on the wire for each byte of a body that comes in chunks of one."""


def limited_protocol(
    limits: HttpLimits,
    bodies: BodyBudget,
    crowd: Crowd | None = None,
    proxies: Networks | None = None,
    malformed: Malformed | None = None,
    heads: Heads | None = None,
) -> type[HttpToolsProtocol]:
    """The protocol class to give to `uvicorn.Config(http=…)`. Idle keep-alive is uvicorn's `timeout_keep_alive`.

    `bodies`: what all connections together may hold of bodies. `crowd`: of all connections of one port. `proxies`:
    whose word on where a request comes from is believed. `malformed`: counts what is no request. `heads`: those that
    are still coming.
    """
    known = {"limits": limits, "bodies": bodies, "crowd": crowd or Crowd(), "proxies": proxies or Networks()}
    known |= {"malformed": malformed or Malformed(), "heads": heads or Heads()}
    return type("LimitedHttpProtocol", (LimitedHttpProtocol,), known)


class LimitedHttpProtocol(HttpToolsProtocol):
    """uvicorn's protocol within `limits`."""

    limits = HttpLimits()
    bodies: BodyBudget
    crowd: Crowd
    heads: Heads
    proxies: Networks
    malformed: Malformed

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._most_tasks, self.limit_concurrency = config.limit_concurrency, None  # uvicorn would answer in plain text
        self.url = b""  # uvicorn has none before the first request
        self._place: Place | None = None
        self._is_proxied = False
        """By one whose word is believed."""
        self._is_silent = True
        """Nothing has come yet."""
        self._hears_slowly = False
        """It rests between two pieces of what nobody listens to."""
        self._awaits_headers = True
        self._received_bytes = 0
        """Since the last request was whole."""
        self._ahead_bytes = 0
        """Of the next head, that came with the last request's end: as many at most."""
        self._body_bytes = 0
        self._hold = BodyHold(self.bodies)
        """Of the body that is coming."""
        self._refusal: ApiError | None = None
        """Why the parser was told to stop."""
        self._is_deaf = False
        """Nothing that still comes is looked at."""
        self._is_last = False
        """Nor is it here, but what came before is answered."""
        self._data = b""
        """The last that came."""
        self._asks_upgrade = False
        self._deadline: asyncio.TimerHandle | None = None
        self._patience: Patience | None = None
        """With a client that takes nothing."""
        self._cycles: list[RequestResponseCycle] = []
        """Those that are not answered: several where requests are pipelined."""
        self._disconnect = Disconnect(lambda: self.flow.resume_reading())

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn has it
        """A client has connected and owes a request."""
        super().connection_made(transport)
        peer = self.client[0] if self.client else ""
        self._is_proxied = peer in self.proxies
        self._place = self.crowd.enter(self, None if self._is_proxied else peer)
        if self._place is None:
            self._is_deaf = True
            transport.abort()
        else:
            self._expect_within(self.limits.first_byte_timeout_s)

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone, and with it its deadline."""
        self._expect_nothing()
        self._trust()
        if self._place is not None:
            self._place.leave()
        self.heads.release(self)
        self.bodies.freed(FREED_BYTES + self._received_bytes)
        for cycle in self._cycles:
            cycle.disconnected = not cycle.response_complete  # uvicorn tells the latest alone
        super().connection_lost(exc)
        self._unset_keepalive_if_required()
        self._disconnect.left()
        self._let_go()

    def _let_go(self) -> None:
        """All of these hold this connection: it is to go with its last reference, not with the next collection."""
        for cycle in self._cycles:
            cycle.scope["state"][response.STATE].abandon()
        self.pipeline.clear()
        self._place = None
        self._forget()

    def _has_begun(self) -> bool:
        """A part of the next head is there."""
        return self.scope is not None and (self.cycle is None or self.cycle.scope is not self.scope)

    def _forget(self) -> None:
        """What was answered is not kept while nothing comes: heads may be large, and idle connections many."""
        self._cycles = []
        self.cycle = self.scope = self.headers = None  # type: ignore[assignment] # as before the first request
        self.url = b""

    def pause_writing(self) -> None:
        """Much waits for the client, and nothing more is written before it has taken most of that."""
        super().pause_writing()
        self._watch()

    def resume_writing(self) -> None:
        """It has taken most of it."""
        super().resume_writing()
        if not self.transport.is_closing():
            self._trust()

    def timeout_keep_alive_handler(self) -> None:
        """It was idle for too long."""
        self._close()

    def data_received(self, data: bytes) -> None:
        """Bytes of headers or body."""
        if self._is_deaf or self._is_last:
            self._hear_slowly()
            return
        if self._is_silent:
            self._is_silent = False
            self._expect_within(self.limits.header_timeout_s)
        self._received_bytes += len(data)
        self._read(data)
        if self._awaits_headers and not self._received_bytes and self._has_begun():
            self._ahead_bytes = min(len(data), self.limits.max_header_bytes)
        self._data = b""  # it may be large, and the connection silent for long
        self._weigh_up()

    def _hear_slowly(self) -> None:
        """What nobody listens to comes off the wire a piece at a time: megabytes of it at once would hold up others."""
        self.flow.pause_reading()
        if not self._hears_slowly:  # a piece may be thousands of chunks
            self._hears_slowly = True
            self.loop.call_later(DEAF_REST_S, self._hear_on)

    def _hear_on(self) -> None:
        self._hears_slowly = False
        if not self.transport.is_closing():
            self.flow.resume_reading()

    def _read(self, data: bytes) -> None:
        """As uvicorn reads it, but for a line in the log of each that is malformed."""
        self._data = data
        self._unset_keepalive_if_required()
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserError:
            self.send_400_response("")
        except httptools.HttpParserUpgrade:
            self._unsupported_upgrade_warning()

    def on_headers_complete(self) -> None:
        """All headers of a request are there: the last moment to refuse it before the application sees it."""
        self._awaits_headers = False
        self._ahead_bytes = 0
        self._expect_nothing()
        self.heads.release(self)
        request = self.parser.get_method(), self.url, self.parser.get_http_version(), self.headers
        most_bytes, most = self.limits.max_header_bytes, self.limits.max_headers
        self._refusal = refusal_of(*request, max_bytes=most_bytes, max_headers=most) or self._crowded()
        if self._is_proxied and self._refusal is None:
            self._refusal = self._forwarded()
        if self._refusal is not None:
            raise ValueError("refused")  # stops the parser, which leads to send_400_response
        if self.parser.should_upgrade():
            self._asks_upgrade = True
            return
        self.scope["state"][STATE], self.scope["state"][connections.STATE] = self._disconnect, self._place
        super().on_headers_complete()
        self.headers = [*self.headers]  # uvicorn adds trailers to them, which are no headers
        if self.pipeline:
            self.flow.resume_reading()  # uvicorn stops it, and would not hear that the client leaves
        self._cycles = [*[cycle for cycle in self._cycles if not cycle.response_complete], self.cycle]
        self.cycle.transport = _AnsweringTransport(self)  # type: ignore[assignment] # all of it that a cycle uses
        self._hold = self.scope["state"][body_budget.STATE] = BodyHold(self.bodies)
        answer = Answer(self.cycle, self._hold)
        self.cycle.send = answer.send  # type: ignore[method-assign] # what the application is given
        self.scope["state"][response.STATE] = answer

    def on_body(self, body: bytes) -> None:
        """A part of the body: kept where there is room for it. Where there is none, its reader finds out why."""
        self._body_bytes += len(body)
        if self._hold.takes(len(body)):
            super().on_body(body)
        elif not self.cycle.response_complete:
            self.flow.pause_reading()
            self.cycle.message_event.set()
        else:
            self._hear_slowly()

    def on_message_complete(self) -> None:
        """The request is whole; what comes next is another."""
        if self._asks_upgrade:
            return
        self._awaits_headers = True
        self._received_bytes = self._body_bytes = 0
        super().on_message_complete()
        if self.cycle is not None and self.cycle.response_complete:  # its answer did not wait for it
            self._expect_within(self.limits.header_timeout_s)
            self._forget()

    def on_response_complete(self) -> None:
        """The request is answered. A body that the answer did not wait for may end now, but not go on for ever."""
        if self._is_deaf:
            return  # nor is what waits behind it served
        super().on_response_complete()
        if self.transport.is_closing() or self.is_answering():
            return
        if not self._awaits_headers:
            self._expect_within(self.limits.linger_s)
        elif self._received_bytes or self._ahead_bytes:
            self._expect_within(self.limits.header_timeout_s)
        else:
            self._forget()

    def _should_upgrade(self) -> bool:
        return False  # not by uvicorn's means

    def _unsupported_upgrade_warning(self) -> None:
        """The parser has stopped at a request that asks to upgrade: read it again as plain HTTP/1.1."""
        stopped = cast(httptools.HttpParserUpgrade, sys.exception())  # uvicorn calls this while handling it
        end_of_head: int = stopped.args[0]
        head = plain_head(self.parser.get_method(), self.url, self.parser.get_http_version(), self.headers)
        self._asks_upgrade, self._awaits_headers = False, True
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn's own
        self._read(head + self._data[end_of_head:])

    def send_400_response(self, msg: str) -> None:
        """The parser gave up: on our refusal, or on bytes that are no HTTP."""
        if self._is_last:
            return
        error = self._refusal or invalid(None, "This is not a valid HTTP/1.1 request.")
        if error.status < HTTPStatus.TOO_MANY_REQUESTS or error.code == "headers_too_large":
            self.malformed.note(self.client[0] if self.client else "", error)
        self._refuse(error)

    def hang_up(self) -> None:
        """Close once the answer is written; but listen on, without looking, to a client that still sends."""
        if self.transport.is_closing():
            return
        if self._awaits_headers and not self._is_deaf:
            self._close()
            return
        self._is_deaf = True
        self.flow.resume_reading()
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self._expect_within(self.limits.linger_s)

    def _weigh_up(self) -> None:
        """After each read: too much, or the beginning of a request that has to end in time?"""
        if self._is_deaf or self._is_last:
            return
        if self._received_bytes > self._most_bytes():
            self._refuse(headers_too_large(self.limits.max_header_bytes))
        elif self._awaits_headers and (self._received_bytes or self._ahead_bytes):
            self.heads.hold(self, self._received_bytes + self._ahead_bytes)
            if self._deadline is None and not self.is_answering() and not self.transport.is_closing():
                self._expect_within(self.limits.header_timeout_s)

    def _refuse(self, error: ApiError) -> None:
        self._is_deaf = True
        is_own = not self._awaits_headers and self.cycle is not None and self.cycle.scope is self.scope
        if self.pipeline or (self.is_answering() and (self.cycle.response_started or not is_own)):
            self._close()  # nothing can be said in the middle of another answer, nor in its place
            return
        if self.is_answering():
            self.cycle.disconnected = True  # the application need not go on
            self.cycle.message_event.set()
            self._disconnect.left()
        self.transport.write(answer_bytes(error, self.headers or (), self.url))
        self.hang_up()

    def _crowded(self) -> ApiError | None:
        """Requests that pile up here, or connections and requests everywhere; but probes are always answered."""
        if len(self.pipeline) >= self.limits.max_pipelined:
            self._is_last = True
            self.pipeline[0][0].keep_alive = False  # the answer to the newest that waits is the connection's last
            return ApiError("Too many requests wait on this connection.", "overloaded", retry_after_s=1.0)
        is_full = self._place is None or self._place.is_too_much
        if not is_full and (self._most_tasks is None or len(self.tasks) < self._most_tasks):
            return None
        if self.url.partition(b"?")[0] in PROBES:
            return None
        return ApiError("Too many connections are open here.", "overloaded", retry_after_s=1.0)

    def _forwarded(self) -> ApiError | None:
        """A trusted proxy says whose request this is; why it is not served, if so."""
        address = forwarded_for(self.headers, self.proxies)
        if address is None:
            return None
        self.scope["state"][connections.PEER] = self.client[0] if self.client else ""
        self.scope["client"] = (address, 0)
        if [value for name, value in self.headers if name == b"x-forwarded-proto"] == [b"https"]:
            self.scope["scheme"] = "https"
        if self._place is None or self._place.carries(address):
            return None
        return ApiError("Too many connections of this address are open here.", "overloaded", retry_after_s=1.0)

    def is_answering(self) -> bool:
        """A request is being answered."""
        return self.cycle is not None and not self.cycle.response_complete

    def give_way(self) -> None:
        """Others need its place."""
        self._close()

    def _most_bytes(self) -> int:
        """What may have come so far: headers; then the body too, in chunks of a byte each at worst, and trailers."""
        if self._awaits_headers:
            return self.limits.max_header_bytes
        return 2 * self.limits.max_header_bytes + _BYTES_PER_CHUNKED_BYTE * self._body_bytes

    def _expect_within(self, timeout_s: float) -> None:
        self._expect_nothing()
        self._deadline = self.loop.call_later(timeout_s, self._expire)

    def _expect_nothing(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _watch(self) -> None:
        """Whether it takes any of what waits for it."""
        self._patience = Patience(self.transport, self.limits.write_timeout_s)

    def _trust(self) -> None:
        if self._patience is not None:
            self._patience.end()
            self._patience = None

    def _close(self) -> None:
        """As soon as all is written, which a client that takes nothing would put off for ever."""
        if not self.transport.is_closing():
            self.transport.close()
            self._expect_nothing()
            if self._patience is None:
                self._watch()

    def _expire(self) -> None:
        self._deadline = None
        if self._awaits_headers and (self._received_bytes or self._ahead_bytes) and not self._is_deaf:
            self._refuse(request_timeout(self.limits.header_timeout_s))
        else:  # it said nothing, or goes on with what nobody will read
            self._close()


class _AnsweringTransport:
    """The transport as one request's answer sees it: closing it leaves the client time to read the answer."""

    def __init__(self, protocol: LimitedHttpProtocol) -> None:
        self._protocol = protocol
        self.write = protocol.transport.write
        self.is_closing = protocol.transport.is_closing

    def close(self) -> None:
        """The answer was the last on its connection."""
        self._protocol.hang_up()
