"""The lifetime of one connection, apart from its requests. After a refusal the client may continue to send for
`linger_s` and `discard_bytes`: closing immediately would reset the connection and lose the response in transit."""

import asyncio
from typing import Any

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from fairlane.gateway.http.body_budget import BodyBudget
from fairlane.gateway.http.connections import ConnectionLimiter, Heads, Place
from fairlane.gateway.http.disconnect import Disconnect
from fairlane.gateway.http.flow import Flow, Patience
from fairlane.gateway.http.limits import HttpLimits
from fairlane.gateway.http.phases import AWAITS_HEAD, CLOSED, DISCARDED, Input
from fairlane.gateway.http.response import Answer
from fairlane.gateway.http.turns import Turns
from fairlane.scheduler.protocol.settings import Networks

# Memory counted as freed when a connection ends. A connection uses ten times that, most of which the next one reuses.
FREED_BYTES = 1_024
# Pause between two reads, of up to 256 KiB each, of what a client sends after a refusal.
DISCARD_REST_S = 0.02


class BoundedConnection(HttpToolsProtocol):
    """A connection's place on its port, its deadlines, and its end."""

    limits = HttpLimits()
    bodies: BodyBudget
    limiter: ConnectionLimiter
    heads: Heads
    proxies: Networks
    turns: Turns

    def __init__(self, config: Config, *others: Any, **named: Any) -> None:  # noqa: ANN401 - as uvicorn passes them
        super().__init__(config, *others, **named)
        self.url = b""  # uvicorn has none before the first request
        self.flow: Flow
        self._place: Place | None = None
        # The peer is a trusted proxy.
        self._is_proxied = False
        self._input = Input()
        self._deadline: asyncio.TimerHandle | None = None
        # Runs while the client does not read its response.
        self._patience: Patience | None = None
        # Of unanswered requests: several if they are pipelined.
        self._answers: list[Answer] = []
        self._disconnect: Disconnect

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as in uvicorn
        super().connection_made(transport)
        self.flow = Flow(transport)
        self._disconnect = Disconnect(self.flow.resume_reading)
        peer = self.client[0] if self.client else ""
        self._is_proxied = peer in self.proxies
        self._place = self.limiter.enter(self, None if self._is_proxied else peer)
        if self._place is None:
            self._input.move(DISCARDED)
            transport.abort()
        else:
            self._expect_within(self.limits.first_byte_timeout_s)

    def connection_lost(self, exc: Exception | None) -> None:
        self._input.move(CLOSED)
        self._expect_nothing()
        self.turns.leave(self)
        self._stop_watching()
        if self._place is not None:
            self._place.leave()
            self._place = None
        self.heads.release(self)
        self.bodies.freed(FREED_BYTES + self._input.received_bytes)
        for answer in self._answers:
            answer.abandon()
        super().connection_lost(exc)
        self._unset_keepalive_if_required()
        self._disconnect.left()
        self.pipeline.clear()
        self._forget()

    def _forget(self) -> None:
        """Drop the completed request: heads may be large, and there may be many idle connections."""
        self._answers = []
        self.cycle = self.scope = self.headers = None  # type: ignore[assignment] # as before the first request
        self.url = b""

    def pause_writing(self) -> None:
        super().pause_writing()
        self._patience = Patience(self.transport, self.limits.write_timeout_s)

    def resume_writing(self) -> None:
        super().resume_writing()
        if not self.transport.is_closing():
            self._stop_watching()

    def _stop_watching(self) -> None:
        if self._patience is not None:
            self._patience.end()
            self._patience = None

    def timeout_keep_alive_handler(self) -> None:
        self.give_way()

    def is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def hang_up(self) -> None:
        """Close once the response is written. While the client still sends, discard that for a while."""
        if self.transport.is_closing():
            return
        if self._input.phase in AWAITS_HEAD:
            self.give_way()
            return
        if self._input.phase is not DISCARDED:
            self._input.move(DISCARDED)
        self._drop_waiting()
        self.flow.resume_reading()
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self._expect_within(self.limits.linger_s)

    def give_way(self) -> None:
        """Close the connection once what was written is sent, or its client stops reading."""
        self.turns.leave(self)
        if not self.transport.is_closing():
            self.transport.close()
            self._expect_nothing()
            self._patience = self._patience or Patience(self.transport, self.limits.write_timeout_s)

    def _discard(self, count: int) -> None:
        self._input.discarded_bytes += count
        if self._input.discarded_bytes > self.limits.discard_bytes:
            self.give_way()
        else:
            self._rest()

    def _rest(self) -> None:
        if not self.flow.is_held:
            self.flow.hold()
            self.turns.discard_later(DISCARD_REST_S, self.flow.release)

    def _drop_waiting(self) -> None:
        if self.turns.is_waiting(self):
            self.turns.leave(self)
            self.turns.discard_later(DISCARD_REST_S, self.flow.release)

    def parse(self, piece: bytes) -> int:
        """Parse the next bytes. Return the number of parser callbacks."""
        raise NotImplementedError

    def parsed(self) -> None:
        self.flow.release()

    def _expect_within(self, timeout_s: float) -> None:
        self._expect_nothing()
        self._deadline = self.loop.call_later(timeout_s, self._expire)

    def _expect_nothing(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _expire(self) -> None:
        self._deadline = None
        self.give_way()
