"""uvicorn's server for this gateway: limits on every connection, and a shutdown in steps.

One event loop serves up to three ports. The tenants' port is uvicorn's own; those of metrics and operators are
additional."""

import asyncio
import contextlib
import logging
import signal
import socket
from collections.abc import Iterator
from functools import partial
from typing import Literal

import uvicorn
from starlette.types import ASGIApp

from fairlane.gateway.app import admin_app, create_app, metrics_app, with_cors, with_fast_path, with_plain_paths
from fairlane.gateway.config import GatewaySettings
from fairlane.gateway.http.connections import ConnectionLimiter
from fairlane.gateway.http.ports import BACKLOG, Acceptor, PortName, Sockets
from fairlane.gateway.http.protocol import limited_protocol
from fairlane.gateway.runtime.resources import Resources

log = logging.getLogger(__name__)

# Time for open connections to close after every request has ended.
CLOSE_TIMEOUT_S = 3


class Server(uvicorn.Server):
    """uvicorn's server, which drains the gateway before it closes anything."""

    def __init__(
        self, config: uvicorn.Config, resources: Resources, *, shares: bool = False, beside: Sockets | None = None
    ) -> None:
        """`shares`: other processes listen on the same sockets. `beside`: sockets of the additional ports."""
        super().__init__(config)
        self._resources = resources
        self._shares = shares
        self._beside = beside or {}
        self._acceptors: list[Acceptor] = []

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Open the acceptors. uvicorn gets no sockets to listen on, because it would accept without our limits."""
        await super().startup(None if sockets is None else [])
        if not self.started:
            return
        for found in sockets or ():
            self._open(found, self.config, "tenants", self._resources.ports.limiter)
        for name, others in self._beside.items():
            limiter = self._resources.ports.new_limiter()
            config = beside(self._resources, name, limiter)
            config.load()
            for found in others:
                self._open(found, config, name, limiter)

    def _open(self, found: socket.socket, config: uvicorn.Config, name: PortName, limiter: ConnectionLimiter) -> None:
        proxies = self._resources.settings.trusted_proxies

        def admits(address: str) -> bool:
            return address in proxies or limiter.admits(address)

        protocol = partial(  # type: ignore[call-arg] # as uvicorn calls it
            config.http_protocol_class, config=config, server_state=self.server_state, app_state=self.lifespan.state
        )
        self._acceptors.append(Acceptor(found, protocol, shares=self._shares, admits=admits))
        log.info("listening on %s, port %d, for %s", *found.getsockname()[:2], name)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        grace_s = self._resources.settings.gateway.grace_s
        log.info("shutting down: %d jobs running", len(self._resources.fleet.dispatcher.jobs))
        await self._resources.drain(grace_s)
        for acceptor in self._acceptors:
            acceptor.close()
        await super().shutdown([*(sockets or ()), *(found for each in self._beside.values() for found in each)])

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle signals without raising them again at the end, as uvicorn does: the process should exit cleanly."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self.handle_exit, number, None)
        try:
            yield
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)


def configure(settings: GatewaySettings, resources: Resources) -> uvicorn.Config:
    """Return uvicorn's configuration for the tenants' port."""
    app = create_app(resources)
    plain = with_plain_paths(with_fast_path(app), app.routes, settings.root_path)
    return _config(with_cors(plain, settings.gateway.cors_origins), settings, resources, "on", resources.ports.limiter)


def beside(resources: Resources, name: PortName, limiter: ConnectionLimiter) -> uvicorn.Config:
    """Return uvicorn's configuration for an additional port. The lifespan belongs to the tenants' application."""
    app: ASGIApp = metrics_app(resources)
    if name != "metrics":
        operators = admin_app(resources)
        app = with_plain_paths(operators, operators.routes, resources.settings.root_path)
    return _config(app, resources.settings, resources, "off", limiter)


def _config(
    app: ASGIApp,
    settings: GatewaySettings,
    resources: Resources,
    lifespan: Literal["on", "off"],
    limiter: ConnectionLimiter,
) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        interface="asgi3",
        loop="uvloop",
        http=limited_protocol(
            settings.http_limits, resources.ports.bodies, limiter, settings.trusted_proxies, resources.ports.malformed
        ),
        ws="none",
        lifespan=lifespan,
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        reset_contextvars=True,  # a pipelined request must not inherit the context of the previous one
        limit_concurrency=settings.gateway.max_connections,
        backlog=BACKLOG,
        timeout_keep_alive=round(settings.gateway.keep_alive_s),
        timeout_graceful_shutdown=CLOSE_TIMEOUT_S,
    )
