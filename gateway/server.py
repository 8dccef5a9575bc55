"""uvicorn as this gateway runs it: uvloop and httptools, limits on every connection, and a shutdown in steps.

1  SIGTERM: `/readyz` says 503, new requests get 503 `shutting_down`; the port stays open, so that they are told
2  streams and answers in the air finish, for at most `grace_s`
3  the rest end with an error that says so, and are settled
4  uvicorn closes connections and the port; the lifespan closes the store's connections
"""

import asyncio
import contextlib
import logging
import signal
import socket
from collections.abc import Iterator

import uvicorn

from gateway.accept import Acceptor
from gateway.app import create_app, with_express
from gateway.config import GatewaySettings
from gateway.http_limits import limited_protocol
from gateway.port import BACKLOG
from gateway.resources import Resources

log = logging.getLogger(__name__)

CLOSE_TIMEOUT_S = 3
"""For what is left on connections when every request has ended."""


class Server(uvicorn.Server):
    """uvicorn's server, draining the gateway before it closes anything."""

    def __init__(self, config: uvicorn.Config, resources: Resources, *, shares: bool = False) -> None:
        """`shares`: other processes listen on the same sockets."""
        super().__init__(config)
        self._resources = resources
        self._shares = shares
        self._acceptors: list[Acceptor] = []

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """uvicorn's own says where it listens only of sockets that it has made itself."""
        shared = sockets if self._shares and sockets else []
        await super().startup([] if shared else sockets)
        self._acceptors = [Acceptor(found, self._protocol) for found in shared]
        for found in sockets or ():
            log.info("listening on %s, port %d", *found.getsockname()[:2])

    def _protocol(self) -> asyncio.Protocol:
        made: asyncio.Protocol = self.config.http_protocol_class(  # type: ignore[call-arg] # as uvicorn calls it
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )
        return made

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Steps 1 to 4."""
        grace_s = self._resources.settings.gateway.grace_s
        log.info("shutting down: %d flights in the air", len(self._resources.dispatcher.flights))
        await self._resources.drain(grace_s)
        for acceptor in self._acceptors:
            acceptor.close()
        await super().shutdown(sockets)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """uvicorn's own way ends the process by the signal once more; ours is to end well."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self.handle_exit, number, None)
        try:
            yield
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)


def configure(settings: GatewaySettings, resources: Resources) -> uvicorn.Config:
    """How uvicorn serves the application."""
    return uvicorn.Config(
        with_express(create_app(resources)),
        host=settings.host,
        port=settings.port,
        interface="asgi3",
        loop="uvloop",
        http=limited_protocol(settings.http_limits, resources.bodies),
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        reset_contextvars=True,  # a pipelined request begins amid the one before it, and is to know nothing of that
        limit_concurrency=settings.gateway.max_connections,
        backlog=BACKLOG,
        timeout_keep_alive=round(settings.gateway.keep_alive_s),
        timeout_graceful_shutdown=CLOSE_TIMEOUT_S,
    )
