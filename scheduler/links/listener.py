"""The gateway's end of its links: accepts workers that know the fleet's secret.

Unauthenticated peers learn nothing. At most MOST_UNPROVEN of them are connected, for HANDSHAKE_S each."""

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path

from fairlane.scheduler.links import handshake, unix_sockets
from fairlane.scheduler.links.connection import HANDSHAKE_S, Link, Peer
from fairlane.scheduler.links.frames import FrameError, ToGateway
from fairlane.store.errors import STORE_ERRORS

log = logging.getLogger(__name__)

MOST_UNPROVEN = 64
# Refused dials are logged at most this often.
LOG_EVERY_S = 10.0


class LinkListener:
    """Accepts the links of one gateway process; `peer` handles their messages."""

    def __init__(self, gateway_id: str, secret: Callable[[], Awaitable[bytes]], peer: Peer) -> None:
        self.gateway_id = gateway_id
        self._secret = secret
        self._peer = peer
        # connection.Peer, for the accepted links; frames go to the peer without a call between.
        self.received = peer.received
        self.links: set[Link] = set()
        self._unproven: dict[Link, asyncio.Task[None]] = {}
        self._server: asyncio.Server | None = None
        self._socket: Path | None = None
        self._logged_s = -LOG_EVERY_S
        # Dials without a proof, or for another gateway. Connections on which nothing was said are no dials.
        self.refused = 0

    async def listen(self, host: str, port: int, tls: ssl.SSLContext | None = None) -> int:
        """Listen on TCP; return the port. Raises OSError."""
        self._server = await asyncio.get_running_loop().create_server(
            self._accepted(), host, port, ssl=tls, ssl_handshake_timeout=HANDSHAKE_S if tls else None
        )
        return int(self._server.sockets[0].getsockname()[1])

    async def listen_unix(self, path: Path) -> None:
        """Listen on a Unix socket, which only this user may open. Raises OSError."""
        listening = unix_sockets.listening(path)
        self._socket = path
        self._server = await asyncio.get_running_loop().create_unix_server(self._accepted(), sock=listening)

    async def aclose(self) -> None:
        if self._server is not None:
            self._server.close()
        if self._socket is not None:
            self._socket.unlink(missing_ok=True)
        for link in [*self.links, *self._unproven]:
            link.close()
        await asyncio.gather(*self._unproven.values(), return_exceptions=True)

    def _accepted(self) -> Callable[[], "_Accepted"]:
        return lambda: _Accepted(self)

    def made(self, link: "_Accepted") -> None:
        if len(self._unproven) >= MOST_UNPROVEN:
            oldest = next(iter(self._unproven))
            del self._unproven[oldest]  # at once: many connections are accepted in one turn of the loop
            oldest.close()
        self._unproven[link] = asyncio.get_running_loop().create_task(self._shake(link))

    async def _shake(self, link: "_Accepted") -> None:
        try:
            async with asyncio.timeout(HANDSHAKE_S):
                asked = handshake.challenge()
                link.send([asked])
                said: handshake.Hello = await link.shake()
                answer = handshake.answer(await self._secret(), asked, said, self.gateway_id)
                link.send([answer])
                if isinstance(answer, handshake.Unwelcome):
                    self._refuse(f"{said.worker_id}: {answer.reason}")
                    await link.closed()
                    return
                link.open(said.worker_id, ToGateway, said.queue)
                self.links.add(link)
        except (FrameError, handshake.LinkRefused, TimeoutError, *STORE_ERRORS) as error:
            if link.has_heard:
                self._refuse(str(error) or "no answer in time")
        finally:
            self._unproven.pop(link, None)
            if not link.is_open:
                link.close()

    def lost(self, link: Link) -> None:
        self.links.discard(link)
        self._peer.lost(link)

    def _refuse(self, why: str) -> None:
        self.refused += 1
        now_s = asyncio.get_running_loop().time()
        if now_s - self._logged_s >= LOG_EVERY_S:
            self._logged_s = now_s
            log.warning("link refused (%d so far): %s", self.refused, why)


class _Accepted(Link):
    def __init__(self, listener: LinkListener) -> None:
        super().__init__(listener, handshake.Hello)
        self._listener = listener

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._listener.made(self)
