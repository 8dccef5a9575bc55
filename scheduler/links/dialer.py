"""The worker's end of its links: one per gateway process, redialled while the worker has jobs of it."""

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

import msgspec

from fairlane.scheduler.links import handshake
from fairlane.scheduler.links.connection import HANDSHAKE_S, Link
from fairlane.scheduler.links.frames import FrameError, ToWorker
from fairlane.store.errors import STORE_ERRORS

log = logging.getLogger(__name__)

FIRST_BACKOFF_S, LONGEST_BACKOFF_S = 0.02, 0.5
# A link that was open for less counts as a failed dial: its gateway may accept links and drop them.
STEADY_S = 1.0


class GatewayPeer(Protocol):
    """What a worker does with its link to a gateway. The calls come from the event loop and must not raise."""

    @property
    def has_jobs(self) -> bool:
        """Whether the worker has jobs of the gateway. Failed dials are logged only then: an idle gateway may stop."""

    def linked(self) -> None:
        """Called when the link is open, again after each redial."""

    def received(self, messages: Sequence[Any]) -> None: ...

    def unlinked(self) -> None: ...


class Dialer:
    """Keeps one link to a gateway open while `run` runs, redialling with a growing delay."""

    def __init__(
        self,
        address: str,
        *,
        worker_id: str,
        queue: str,
        gateway_id: str,
        secret: Callable[[], Awaitable[bytes]],
        peer: GatewayPeer,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """`address` is `tcp://host:port` or `unix:///path`. `secret` returns the fleet's, or raises STORE_ERRORS."""
        self.address = address
        self._worker_id, self._queue, self._gateway_id = worker_id, queue, gateway_id
        self._secret = secret
        self._peer = peer
        self._tls = tls
        self._link: Link | None = None

    @property
    def is_open(self) -> bool:
        return self._link is not None

    def send(self, messages: Sequence[msgspec.Struct]) -> None:
        """Send messages in one write; dropped while the link is down, since `linked` starts anew."""
        if self._link is not None:
            self._link.send(messages)

    async def run(self) -> None:
        loop, backoff_s, fault = asyncio.get_running_loop(), FIRST_BACKOFF_S, ""
        while True:
            link = None
            try:
                async with asyncio.timeout(HANDSHAKE_S):
                    link = await self._dial()
                opened_s, self._link = loop.time(), link
                self._peer.linked()
                await link.closed()
                if loop.time() - opened_s >= STEADY_S:
                    backoff_s, fault = FIRST_BACKOFF_S, ""
            except (
                OSError,
                ValueError,
                FrameError,
                handshake.LinkRefused,
                *STORE_ERRORS,
            ) as error:  # a timeout is an OSError
                said = str(error) or type(error).__name__
                if said != fault and self._peer.has_jobs:  # once for each reason
                    log.warning("gateway %s cannot be reached: %s", self._gateway_id, said)
                    fault = said
            finally:
                self._link = None
                if link is not None:
                    link.close()
            await asyncio.sleep(backoff_s)
            backoff_s = min(2 * backoff_s, LONGEST_BACKOFF_S)

    async def _dial(self) -> Link:
        loop = asyncio.get_running_loop()
        kind, _, where = self.address.partition("://")

        def new() -> Link:
            return Link(self, handshake.Challenge | handshake.Welcome | handshake.Unwelcome)

        if kind == "unix":
            _, link = await loop.create_unix_connection(new, where)
        else:
            host, _, port = where.rpartition(":")
            _, link = await loop.create_connection(new, host.strip("[]"), int(port), ssl=self._tls)
        try:
            asked, secret = await link.shake(), await self._secret()
            said = handshake.hello(secret, asked, self._worker_id, self._queue, self._gateway_id)
            link.send([said])
            handshake.check(secret, asked, said, await link.shake())
        except BaseException:
            link.close()
            raise
        link.open(self._gateway_id, ToWorker)
        return link

    # connection.Peer, for the open link.

    def received(self, _link: Link, messages: Sequence[Any]) -> None:
        self._peer.received(messages)

    def lost(self, link: Link) -> None:
        if link is self._link:
            self._link = None
            self._peer.unlinked()
