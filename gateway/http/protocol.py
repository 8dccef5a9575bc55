"""Requests on one connection, with bounds on what a client may send and how slowly; uvicorn itself has none for
headers, bodies and idle time. `phases.py` has the phases of the input, `connection.py` the place on the port, deadlines
and the end.

A read with many lines is parsed in turns with other connections. The application receives one piece of a body per
read."""

import sys
from collections.abc import Callable, Sequence
from http import HTTPStatus
from typing import Any, cast

import httptools
from starlette.types import Scope
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from fairlane.gateway.errors import ApiError, headers_too_large, invalid, request_timeout
from fairlane.gateway.http.body_budget import BodyBudget, BodyHold
from fairlane.gateway.http.connection import BoundedConnection
from fairlane.gateway.http.connections import ConnectionLimiter, Heads
from fairlane.gateway.http.exchange import KEY, Carried, Exchange, Upgrade
from fairlane.gateway.http.limits import HttpLimits
from fairlane.gateway.http.phases import (
    AWAITS_HEAD,
    BODY,
    CLOSED,
    DISCARDED,
    HEAD,
    IDLE,
    LAST,
    LATE_BODY,
    SILENT,
    UNPARSED,
    UPGRADE,
)
from fairlane.gateway.http.refusals import Malformed, answer_bytes, refusal_of
from fairlane.gateway.http.request_id import request_id_of
from fairlane.gateway.http.response import Answer, AnsweringTransport
from fairlane.gateway.http.turns import Turns, has_many_lines
from fairlane.scheduler.protocol.settings import Networks

# Paths that are served even when the port is full.
PROBES = frozenset({b"/healthz", b"/health", b"/readyz"})
# Cost of a whole request, in units of a parser callback that does nothing.
_EVENTS_OF_A_REQUEST = 16
_NO_MORE_REQUESTS = frozenset({DISCARDED, CLOSED})


def limited_protocol(
    limits: HttpLimits,
    bodies: BodyBudget,
    limiter: ConnectionLimiter | None = None,
    proxies: Networks | None = None,
    malformed: Malformed | None = None,
    heads: Heads | None = None,
) -> type[HttpToolsProtocol]:
    """Return the protocol class for `uvicorn.Config(http=…)`. Idle keep-alive is uvicorn's `timeout_keep_alive`.

    `limiter` and `heads` are of one port. `proxies`: peers whose `x-forwarded-for` is trusted."""
    known = {"limits": limits, "bodies": bodies, "limiter": limiter or ConnectionLimiter(), "turns": Turns()}
    known |= {"proxies": proxies or Networks(), "malformed": malformed or Malformed(), "heads": heads or Heads()}
    return type("LimitedHttpProtocol", (LimitedHttpProtocol,), known)


class LimitedHttpProtocol(BoundedConnection):
    """uvicorn's protocol within `limits`."""

    malformed: Malformed

    def __init__(self, config: Config, *others: Any, **named: Any) -> None:  # noqa: ANN401 - as uvicorn passes them
        super().__init__(config, *others, **named)
        self._most_tasks = config.limit_concurrency
        self.limit_concurrency = None  # uvicorn's own rejection is plain text
        self._events = 0
        # Chunks of the body in the current piece.
        self._chunks: list[bytes] = []
        self._hold = BodyHold(self.bodies)
        # Why the parser was stopped.
        self._refusal: ApiError | None = None
        self._data = b""
        # The handshake that is being parsed again, or answered.
        self._upgrade: Upgrade | None = None

    def data_received(self, data: bytes) -> None:
        if self._input.phase in UNPARSED:
            self._discard(len(data))
            return
        if self._input.phase is SILENT:
            self._input.move(HEAD)
            self._expect_within(self.limits.header_timeout_s)
        if not self.turns.is_waiting(self) and not has_many_lines(data):
            self.parse(data)
            return
        self.flow.hold()
        if not self.turns.wait(self, self._place.holder if self._place else "", data):
            self._refuse(ApiError("Too many requests are arriving in small pieces.", "overloaded"))

    def parse(self, piece: bytes) -> int:
        received = self._input
        if received.phase is IDLE:
            received.move(HEAD)
        self._events = 0
        received.received_bytes += len(piece)
        self._read(piece)
        self._pass_on_body()
        has_begun = self.scope is not None and (self.cycle is None or self.cycle.scope is not self.scope)
        if received.phase is IDLE and has_begun:
            received.move(HEAD)
            received.ahead_bytes = min(len(piece), self.limits.max_header_bytes)
        self._data = b""  # it may be large, and the connection may stay idle for long
        if received.phase not in UNPARSED:
            self._check_bounds()
        if received.phase in UNPARSED:
            self._drop_waiting()
        return self._events

    def _read(self, data: bytes) -> None:
        self._data = data
        self._unset_keepalive_if_required()
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserError:
            self.send_400_response("")
        except httptools.HttpParserUpgrade:
            self._unsupported_upgrade_warning()

    def on_header(self, name: bytes, value: bytes) -> None:
        self._events += 1
        if self._input.phase in AWAITS_HEAD:
            name = name.lower()
            if name == b"expect" and value.lower() == b"100-continue":
                self.expect_100_continue = True
            self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        received = self._input
        self._events += _EVENTS_OF_A_REQUEST
        if received.phase is IDLE:  # the whole head came with the end of the request before it
            received.move(HEAD)
            received.ahead_bytes = len(self._data)
        self._expect_nothing()
        self.heads.release(self)
        request = self.parser.get_method(), self.url, self.parser.get_http_version(), self.headers
        self._refusal = refusal_of(*request, self.limits, received.head_bytes) or self._overloaded()
        if self._is_proxied and self._refusal is None and self._place is not None:
            proxy = self.client[0] if self.client else ""
            self._refusal = self._place.forwarded(cast(Scope, self.scope), proxy, self.proxies)
        if self._refusal is not None:
            raise ValueError("refused")  # stops the parser, which leads to send_400_response
        if self.parser.should_upgrade():
            received.move(UPGRADE)
            return
        received.move(BODY)
        received.ahead_bytes = 0
        super().on_headers_complete()
        if self.pipeline:
            self.flow.resume_reading()  # uvicorn pauses reading, and would not notice a disconnect
        self.cycle.transport = AnsweringTransport(self.transport, self.hang_up)  # type: ignore[assignment] # the methods that it uses
        self._hold = BodyHold(self.bodies)
        answer = Answer(self.cycle, self._hold)
        self._answers = [*[each for each in self._answers if not each.is_over], answer] if self._answers else [answer]
        self.cycle.send = answer.send  # type: ignore[method-assign] # passed to the application
        place, request_id = self._place, request_id_of(self.headers)
        peer = None if place is None else place.peer
        upgrade = None if self.pipeline else self._upgrade
        exchange = Exchange(self._disconnect, answer, request_id, self._hold, place, peer, upgrade)
        self.scope["state"][KEY] = exchange

    def on_body(self, body: bytes) -> None:
        received = self._input
        self._events += 1
        received.body_bytes += len(body)
        if received.phase is LATE_BODY:
            received.late_bytes += len(body)
            received.late_chunks += 1
        else:
            self._chunks.append(body)

    def _pass_on_body(self) -> None:
        """Pass the piece's part of the body on if the budget has room; otherwise its reader gets the refusal."""
        if not self._chunks:
            return
        body, self._chunks = b"".join(self._chunks), []
        if self._hold.takes(len(body)):
            super().on_body(body)
        else:
            self.flow.pause_reading()
            self.cycle.message_event.set()

    def on_message_complete(self) -> None:
        received = self._input
        if received.phase is UPGRADE:
            return
        self._pass_on_body()
        was_late = received.phase is LATE_BODY
        received.move(IDLE)
        received.begin_next()
        super().on_message_complete()
        if was_late:
            self._expect_within(self.limits.header_timeout_s)
            self._forget()

    def on_response_complete(self) -> None:
        """Wait for the next request, or for the end of a body whose response came early."""
        if self._input.phase in _NO_MORE_REQUESTS:
            return  # pipelined requests are not served either
        upgrade, self._upgrade = self._upgrade, None
        if upgrade is not None and upgrade.takes is not None:
            takes, upgrade.takes = upgrade.takes, None
            self._pass_on(takes)
            return
        super().on_response_complete()
        if self.transport.is_closing() or self.is_answering():
            return
        if self._input.phase is IDLE:
            self._forget()
        elif self._input.phase is HEAD:
            self._expect_within(self.limits.header_timeout_s)
        else:
            self._input.move(LATE_BODY)
            self._expect_within(self.limits.linger_s)

    def _should_upgrade(self) -> bool:
        return False  # never by uvicorn

    def _unsupported_upgrade_warning(self) -> None:
        """Parse a request that asks for an upgrade again, as plain HTTP/1.1. The parser has stopped there."""
        stopped = cast(httptools.HttpParserUpgrade, sys.exception())  # uvicorn calls this while handling it
        end_of_head: int = stopped.args[0]
        rest, method, version = self._data[end_of_head:], self.parser.get_method(), self.parser.get_http_version()
        head = plain_head(method, self.url, version, self.headers)
        is_alone = not rest and not self.is_answering()
        if is_alone and version == "1.1" and method == b"GET" and is_websocket(self.headers):
            self._upgrade = Upgrade(self.headers)
        self._input.move(HEAD)
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn's own
        self._read(head + rest)

    def _pass_on(self, takes: Callable[[Carried], None]) -> None:
        """Give up the connection after a 101. A client that did not wait for it has sent no WebSocket's frames."""
        if self._input.phase is not IDLE or self.pipeline or self.transport.is_closing():
            self.give_way()
            return
        self._input.move(CLOSED)
        self._expect_nothing()
        self._stop_watching()
        self.connections.discard(self)
        place, self._place = self._place, None
        self._forget()
        self.parser = None  # type: ignore[assignment] # as uvicorn does when a connection is lost, to break the cycle
        self.flow.resume_reading()
        takes(Carried(self.transport, self.flow, self.turns, place, self.connections, self.tasks, self.bodies))

    def send_400_response(self, msg: str) -> None:
        """Refuse the request, because the parser stopped at our refusal or at bytes that are not HTTP."""
        if self._input.phase is LAST:
            return
        error = self._refusal or invalid(None, "This is not a valid HTTP/1.1 request.")
        if error.status < HTTPStatus.TOO_MANY_REQUESTS or error.code == "headers_too_large":
            self.malformed.note(self.client[0] if self.client else "", error)
        self._refuse(error)

    def _check_bounds(self) -> None:
        received, limits = self._input, self.limits
        if received.late_chunks > limits.linger_chunks or received.late_bytes > limits.linger_bytes:
            self.hang_up()
        elif received.late_chunks:
            self._rest()
        elif received.received_bytes > received.most_bytes(limits.max_header_bytes):
            self._refuse(headers_too_large(limits.max_header_bytes))
        elif received.phase is HEAD:
            self.heads.hold(self, received.head_bytes)
            if not (self._deadline is not None or self.is_answering() or self.transport.is_closing()):
                self._expect_within(limits.header_timeout_s)

    def _refuse(self, error: ApiError) -> None:
        in_body = self._input.phase in (BODY, LATE_BODY)
        self._input.move(DISCARDED)
        self._drop_waiting()
        is_own = in_body and self.cycle is not None and self.cycle.scope is self.scope
        if self.pipeline or (self.is_answering() and (self.cycle.response_started or not is_own)):
            self.give_way()  # an error can neither interrupt nor replace another response
            return
        if self.is_answering():
            self.cycle.disconnected = True  # the application may stop
            self.cycle.message_event.set()
            self._disconnect.left()
        self.transport.write(answer_bytes(error, self.headers or (), self.url))
        self.hang_up()

    def _overloaded(self) -> ApiError | None:
        if len(self.pipeline) >= self.limits.max_pipelined:
            self._input.move(LAST)
            self.pipeline[0][0].keep_alive = False  # the response to the newest waiting request is the last one
            return ApiError("Too many pipelined requests wait on this connection.", "overloaded", retry_after_s=1.0)
        is_full = self._place is None or self._place.is_too_much
        if not is_full and (self._most_tasks is None or len(self.tasks) < self._most_tasks):
            return None
        if self.url.partition(b"?")[0] in PROBES:
            return None
        return ApiError("Too many connections are open.", "overloaded", retry_after_s=1.0)

    def _expire(self) -> None:
        if self._input.phase is not HEAD:
            super()._expire()
            return
        self._deadline = None
        self._refuse(request_timeout(self.limits.header_timeout_s))


_UPGRADES = frozenset({b"upgrade", b"http2-settings"})


def is_websocket(headers: Sequence[tuple[bytes, bytes]]) -> bool:
    """Return whether a request asks for a WebSocket on a connection that may become one. Names are in lower case."""
    fields = dict(headers)
    has_body = b"content-length" in fields or b"transfer-encoding" in fields
    options = [option.strip() for option in fields.get(b"connection", b"").lower().split(b",")]
    return fields.get(b"upgrade", b"").strip().lower() == b"websocket" and b"close" not in options and not has_body


def plain_head(method: bytes, url: bytes, version: str, headers: Sequence[tuple[bytes, bytes]]) -> bytes:
    """Return the head of an upgrade request without the upgrade. Header names are in lower case.

    The request is served in HTTP/1.1, as RFC 9110 allows: Java's client sends `Upgrade: h2c` with every call. The
    parser stops at it and would read its body as the next request, so a new parser reads this head."""
    kept = [(name, value) for name, value in headers if name not in _UPGRADES]
    lines = [
        b"%s: %s\r\n" % (name, _without_upgrades(value) if name == b"connection" else value) for name, value in kept
    ]
    return b"%s %s HTTP/%s\r\n%s\r\n" % (method, url, version.encode("ascii"), b"".join(lines))


def _without_upgrades(connection: bytes) -> bytes:
    tokens = (token.strip() for token in connection.split(b","))
    return b", ".join(token for token in tokens if token.lower() not in _UPGRADES)
