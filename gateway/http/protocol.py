"""Bounds on what a client may send and how slowly. uvicorn alone bounds neither headers nor bodies nor silence.

The life of a connection, request by request:

    headers ──> body ──> response ──> idle ──> headers …
       │          │         │           └ uvicorn's timeout_keep_alive
       │          │         ├ the client does not read it: `write_timeout_s`, then the connection is closed
       │          │         └ the body still arrives: parsed for `linger_bytes`, `linger_chunks` and `linger_s`
       │          └ `body.read_body` in the application: bytes and time
       └ here: bytes, number, time

States of the input (`_Input`):

    PARSED ──> DISCARDED   after a refusal, or above the bounds on a body that was answered already
       └─────> ENDED       too many pipelined requests: those waiting are answered, then the connection is closed

A read with many lines is parsed in turns with other connections (`turns.py`). Chunks of a body are joined, so that the
application receives one piece per read.

After a refusal the client may continue to send for `linger_s` and `discard_bytes`: closing at once would reset the
connection and destroy the response in transit. A request that asks for an upgrade is served in HTTP/1.1 (`upgrade.py`).
"""

import asyncio
import sys
from enum import Enum
from http import HTTPStatus
from typing import Any, cast

import httptools
from starlette.types import Scope
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from fairlane.gateway.errors import ApiError, headers_too_large, invalid, request_timeout
from fairlane.gateway.http.body_budget import BodyBudget, BodyHold
from fairlane.gateway.http.connections import ConnectionLimiter, Heads, Place, forwarded_for
from fairlane.gateway.http.disconnect import Disconnect
from fairlane.gateway.http.exchange import Exchange, exchange_of
from fairlane.gateway.http.flow import Flow, Patience
from fairlane.gateway.http.limits import HttpLimits
from fairlane.gateway.http.refusals import Malformed, answer_bytes, refusal_of
from fairlane.gateway.http.request_id import request_id_of
from fairlane.gateway.http.response import Answer, AnsweringTransport
from fairlane.gateway.http.turns import Turns, has_many_lines
from fairlane.gateway.http.upgrade import plain_head
from fairlane.scheduler.protocol.settings import Networks

# Paths that are served even when the port is full.
PROBES = frozenset({b"/healthz", b"/health", b"/readyz"})
# Memory counted as freed when a connection ends. It holds ten times that, most of which the next connection reuses.
FREED_BYTES = 1_024
# Pause between two reads, of up to 256 KiB each, of what a client sends after a refusal.
DISCARD_REST_S = 0.02
# Bytes on the wire per byte of a body that is sent in chunks of one byte.
_BYTES_PER_CHUNKED_BYTE = 8
# Cost of a whole request, in units of a parser callback that does nothing.
_EVENTS_OF_A_REQUEST = 16


class _Input(Enum):
    PARSED = "parsed"
    ENDED = "ended"
    DISCARDED = "discarded"


def limited_protocol(
    limits: HttpLimits,
    bodies: BodyBudget,
    limiter: ConnectionLimiter | None = None,
    proxies: Networks | None = None,
    malformed: Malformed | None = None,
    heads: Heads | None = None,
) -> type[HttpToolsProtocol]:
    """Return the protocol class for `uvicorn.Config(http=…)`. Idle keep-alive is uvicorn's `timeout_keep_alive`.

    `bodies`: the budget of all bodies. `limiter`: the connections of one port. `proxies`: peers whose `x-forwarded-for`
    is trusted. `malformed`: counts requests that are not HTTP. `heads`: incomplete heads."""
    known = {
        "limits": limits,
        "bodies": bodies,
        "limiter": limiter or ConnectionLimiter(),
        "proxies": proxies or Networks(),
    }
    known |= {"malformed": malformed or Malformed(), "heads": heads or Heads(), "turns": Turns()}
    return type("LimitedHttpProtocol", (LimitedHttpProtocol,), known)


class LimitedHttpProtocol(HttpToolsProtocol):
    """uvicorn's protocol within `limits`."""

    limits = HttpLimits()
    bodies: BodyBudget
    limiter: ConnectionLimiter
    heads: Heads
    proxies: Networks
    malformed: Malformed
    turns: Turns

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._most_tasks, self.limit_concurrency = (
            config.limit_concurrency,
            None,
        )  # uvicorn's own rejection is plain text
        self.url = b""  # uvicorn has none before the first request
        self.flow: Flow
        self._place: Place | None = None
        self._peer: str | None = None
        # The peer is a trusted proxy.
        self._is_proxied = False
        self._input = _Input.PARSED
        # No byte was received yet.
        self._is_silent = True
        self._awaits_headers = True
        # Since the last complete request.
        self._received_bytes = 0
        # Bytes of the next head that arrived with the end of the last request: an upper bound.
        self._ahead_bytes = 0
        # Parser callbacks for the current piece.
        self._events = 0
        # Chunks of the body in the current piece.
        self._chunks: list[bytes] = []
        self._body_bytes = 0
        # Body received after its response was complete.
        self._late_bytes = self._late_chunks = 0
        self._discarded_bytes = 0
        # The current body's place in the budget of bodies.
        self._hold = BodyHold(self.bodies)
        # Why the parser was stopped.
        self._refusal: ApiError | None = None
        # The current piece.
        self._data = b""
        self._asks_upgrade = False
        self._deadline: asyncio.TimerHandle | None = None
        # Runs while the client does not read its response.
        self._patience: Patience | None = None
        # Unanswered requests: several if they are pipelined.
        self._cycles: list[RequestResponseCycle] = []
        self._disconnect = Disconnect(lambda: self.flow.resume_reading())

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as in uvicorn
        super().connection_made(transport)
        self.flow = Flow(transport)
        peer = self.client[0] if self.client else ""
        self._is_proxied = peer in self.proxies
        self._place = self.limiter.enter(self, None if self._is_proxied else peer)
        if self._place is None:
            self._input = _Input.DISCARDED
            transport.abort()
        else:
            self._expect_within(self.limits.first_byte_timeout_s)

    def connection_lost(self, exc: Exception | None) -> None:
        self._expect_nothing()
        self.turns.leave(self)
        self._trust()
        if self._place is not None:
            self._place.leave()
        self.heads.release(self)
        self.bodies.freed(FREED_BYTES + self._received_bytes)
        for cycle in self._cycles:
            cycle.disconnected = not cycle.response_complete  # uvicorn marks only the latest
        super().connection_lost(exc)
        self._unset_keepalive_if_required()
        self._disconnect.left()
        self._let_go()

    def _let_go(self) -> None:
        """Break reference cycles, so that the connection is freed at once and not by the next garbage collection."""
        for cycle in self._cycles:
            channel = exchange_of(cast(Scope, cycle.scope)).channel
            if isinstance(channel, Answer):
                channel.abandon()
        self.pipeline.clear()
        self._place = None
        self._forget()

    def _has_begun(self) -> bool:
        return self.scope is not None and (self.cycle is None or self.cycle.scope is not self.scope)

    def _forget(self) -> None:
        """Drop the answered request: heads may be large, and idle connections many."""
        self._cycles = []
        self.cycle = self.scope = self.headers = None  # type: ignore[assignment] # as before the first request
        self.url = b""

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch()

    def resume_writing(self) -> None:
        super().resume_writing()
        if not self.transport.is_closing():
            self._trust()

    def timeout_keep_alive_handler(self) -> None:
        self._close()

    def data_received(self, data: bytes) -> None:
        if self._input is not _Input.PARSED:
            self._discard(len(data))
            return
        if self._is_silent:
            self._is_silent = False
            self._expect_within(self.limits.header_timeout_s)
        if not self.turns.is_waiting(self) and not has_many_lines(data):
            self.parse(data)
            return
        self.flow.hold()
        if not self.turns.wait(self, self._place.holder if self._place else "", data):
            self._refuse(ApiError("Too many requests are arriving in small pieces.", "overloaded"))

    def parse(self, piece: bytes) -> int:
        self._events = 0
        self._received_bytes += len(piece)
        self._read(piece)
        self._pass_on_body()
        if self._awaits_headers and not self._received_bytes and self._has_begun():
            self._ahead_bytes = min(len(piece), self.limits.max_header_bytes)
        self._data = b""  # it may be large, and the connection idle for long
        self._weigh_up()
        if self._input is not _Input.PARSED:
            self._drop_waiting()
        return self._events

    def parsed(self) -> None:
        self.flow.release()

    def _drop_waiting(self) -> None:
        if self.turns.is_waiting(self):
            self.turns.leave(self)
            self.turns.discard_later(DISCARD_REST_S, self.flow.release)

    def _discard(self, count: int) -> None:
        self._discarded_bytes += count
        if self._discarded_bytes > self.limits.discard_bytes:
            self._close()
        else:
            self._rest()

    def _rest(self) -> None:
        """Pause reading: megabytes of unwanted bytes would delay others."""
        if not self.flow.is_held:
            self.flow.hold()
            self.turns.discard_later(DISCARD_REST_S, self.flow.release)

    def _read(self, data: bytes) -> None:
        """Feed the parser as uvicorn does, but without a log line for each malformed request."""
        self._data = data
        self._unset_keepalive_if_required()
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserError:
            self.send_400_response("")
        except httptools.HttpParserUpgrade:
            self._unsupported_upgrade_warning()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep one header. Trailers are counted and dropped."""
        self._events += 1
        if self._awaits_headers:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._events += _EVENTS_OF_A_REQUEST
        self._awaits_headers = False
        self._ahead_bytes = 0
        self._expect_nothing()
        self.heads.release(self)
        request = self.parser.get_method(), self.url, self.parser.get_http_version(), self.headers
        most_bytes, most = self.limits.max_header_bytes, self.limits.max_headers
        self._refusal = refusal_of(*request, max_bytes=most_bytes, max_headers=most) or self._overloaded()
        if self._is_proxied and self._refusal is None:
            self._refusal = self._forwarded()
        if self._refusal is not None:
            raise ValueError("refused")  # stops the parser, which leads to send_400_response
        if self.parser.should_upgrade():
            self._asks_upgrade = True
            return
        super().on_headers_complete()
        if self.pipeline:
            self.flow.resume_reading()  # uvicorn pauses it, and would not notice a disconnection
        self._cycles = [*[cycle for cycle in self._cycles if not cycle.response_complete], self.cycle]
        self.cycle.transport = AnsweringTransport(self.transport, self.hang_up)  # type: ignore[assignment] # the methods that it uses
        self._hold = BodyHold(self.bodies)
        answer = Answer(self.cycle, self._hold)
        self.cycle.send = answer.send  # type: ignore[method-assign] # passed to the application
        Exchange(self._disconnect, answer, request_id_of(self.headers), self._hold, self._place, self._peer).put_into(
            cast(Scope, self.scope)
        )

    def on_body(self, body: bytes) -> None:
        self._events += 1
        self._body_bytes += len(body)
        if self.cycle.response_complete:
            self._late_bytes += len(body)
            self._late_chunks += 1
        else:
            self._chunks.append(body)

    def _pass_on_body(self) -> None:
        """Pass the piece's part of the body to the application if the budget has room; otherwise its reader gets the
        refusal."""
        if not self._chunks:
            return
        body, self._chunks = b"".join(self._chunks), []
        if self._hold.takes(len(body)):
            super().on_body(body)
        else:
            self.flow.pause_reading()
            self.cycle.message_event.set()

    def on_message_complete(self) -> None:
        if self._asks_upgrade:
            return
        self._pass_on_body()
        self._awaits_headers = True
        self._received_bytes = self._body_bytes = self._late_bytes = self._late_chunks = 0
        super().on_message_complete()
        if self.cycle is not None and self.cycle.response_complete:  # its response did not wait for its body
            self._expect_within(self.limits.header_timeout_s)
            self._forget()

    def on_response_complete(self) -> None:
        """Wait for the next request, or for the end of a body whose response came early."""
        if self._input is _Input.DISCARDED:
            return  # pipelined requests are not served either
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
        return False  # never by uvicorn

    def _unsupported_upgrade_warning(self) -> None:
        """Parse a request that asks for an upgrade again, as plain HTTP/1.1. The parser has stopped there."""
        stopped = cast(httptools.HttpParserUpgrade, sys.exception())  # uvicorn calls this while handling it
        end_of_head: int = stopped.args[0]
        head = plain_head(self.parser.get_method(), self.url, self.parser.get_http_version(), self.headers)
        self._asks_upgrade, self._awaits_headers = False, True
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn's own
        self._read(head + self._data[end_of_head:])

    def send_400_response(self, msg: str) -> None:
        """Refuse the request: the parser stopped at our refusal, or at bytes that are not HTTP."""
        if self._input is _Input.ENDED:
            return
        error = self._refusal or invalid(None, "This is not a valid HTTP/1.1 request.")
        if error.status < HTTPStatus.TOO_MANY_REQUESTS or error.code == "headers_too_large":
            self.malformed.note(self.client[0] if self.client else "", error)
        self._refuse(error)

    def hang_up(self) -> None:
        """Close once the response is written. While the client still sends, discard that for a while."""
        if self.transport.is_closing():
            return
        if self._awaits_headers and self._input is not _Input.DISCARDED:
            self._close()
            return
        self._input = _Input.DISCARDED
        self._drop_waiting()
        self.flow.resume_reading()
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self._expect_within(self.limits.linger_s)

    def _weigh_up(self) -> None:
        if self._input is not _Input.PARSED:
            return
        if self._late_chunks > self.limits.linger_chunks or self._late_bytes > self.limits.linger_bytes:
            self.hang_up()
        elif self._late_chunks:
            self._rest()
        elif self._received_bytes > self._most_bytes():
            self._refuse(headers_too_large(self.limits.max_header_bytes))
        elif self._awaits_headers and (self._received_bytes or self._ahead_bytes):
            self.heads.hold(self, self._received_bytes + self._ahead_bytes)
            if self._deadline is None and not self.is_answering() and not self.transport.is_closing():
                self._expect_within(self.limits.header_timeout_s)

    def _refuse(self, error: ApiError) -> None:
        self._input = _Input.DISCARDED
        self._drop_waiting()
        is_own = not self._awaits_headers and self.cycle is not None and self.cycle.scope is self.scope
        if self.pipeline or (self.is_answering() and (self.cycle.response_started or not is_own)):
            self._close()  # an error can neither interrupt nor replace another response
            return
        if self.is_answering():
            self.cycle.disconnected = True  # the application may stop
            self.cycle.message_event.set()
            self._disconnect.left()
        self.transport.write(answer_bytes(error, self.headers or (), self.url))
        self.hang_up()

    def _overloaded(self) -> ApiError | None:
        """Return the error if too many requests wait on this connection or on the port. Probes are always served."""
        if len(self.pipeline) >= self.limits.max_pipelined:
            self._input = _Input.ENDED
            self.pipeline[0][0].keep_alive = False  # the response to the newest waiting request is the last one
            return ApiError("Too many pipelined requests wait on this connection.", "overloaded", retry_after_s=1.0)
        is_full = self._place is None or self._place.is_too_much
        if not is_full and (self._most_tasks is None or len(self.tasks) < self._most_tasks):
            return None
        if self.url.partition(b"?")[0] in PROBES:
            return None
        return ApiError("Too many connections are open.", "overloaded", retry_after_s=1.0)

    def _forwarded(self) -> ApiError | None:
        """Take the client's address from a trusted proxy. Return an error if that address has too many connections."""
        address, self._peer = forwarded_for(self.headers, self.proxies), None
        if address is None:
            return None
        self._peer = self.client[0] if self.client else ""
        self.scope["client"] = (address, 0)
        if [value for name, value in self.headers if name == b"x-forwarded-proto"] == [b"https"]:
            self.scope["scheme"] = "https"
        if self._place is None or self._place.carries(address):
            return None
        return ApiError("Too many connections from this address are open.", "overloaded", retry_after_s=1.0)

    def is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def give_way(self) -> None:
        self._close()

    def _most_bytes(self) -> int:
        """Return the most bytes that may have been received so far: the head; then the body, at worst in chunks of one
        byte, and trailers."""
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
        self._patience = Patience(self.transport, self.limits.write_timeout_s)

    def _trust(self) -> None:
        if self._patience is not None:
            self._patience.end()
            self._patience = None

    def _close(self) -> None:
        self.turns.leave(self)
        if not self.transport.is_closing():
            self.transport.close()
            self._expect_nothing()
            if self._patience is None:
                self._watch()

    def _expire(self) -> None:
        self._deadline = None
        if self._awaits_headers and (self._received_bytes or self._ahead_bytes) and self._input is _Input.PARSED:
            self._refuse(request_timeout(self.limits.header_timeout_s))
        else:  # idle, or still sending a body that was answered
            self._close()
