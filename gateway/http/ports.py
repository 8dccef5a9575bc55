"""The ports that a gateway listens on: taken before anything is started that would need them.

Connections from a listening socket, a few at a time, with a rest between.

Left to the event loop, a process takes all that come before it does anything else: a flood of connections stops every
stream. And where several processes listen on one socket, whichever happens to be awake takes nearly all of a burst, and
clients that keep their connections stay with it: there each takes one, and leaves the next to the others; one that is
busy returns later from its rest.

Whose address holds too many already is turned away here, which costs a tenth of what a connection does.
"""

import asyncio
import logging
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from fairlane.scheduler.protocol.settings import SharedSettings

BACKLOG = 16_384
"""Connections that may wait to be taken, as far as the system lets them (`net.core.somaxconn`)."""
PortName = Literal["tenants", "metrics", "admin"]
Sockets = Mapping[PortName, Sequence[socket.socket]]
"""That listen, by what they are for; all but the tenants' only where the settings name a port."""


class PortRefused(RuntimeError):
    """Why nobody can listen there, in one line."""


async def listen(settings: SharedSettings) -> dict[PortName, list[socket.socket]]:
    """Sockets that listen on each address of each port: whoever connects waits until somebody takes the connection.

    Raises PortRefused.
    """
    taken: dict[PortName, list[socket.socket]] = {}
    try:
        taken["tenants"] = await _listen(settings.host, settings.port)
        if settings.metrics_port:
            taken["metrics"] = await _listen(settings.metrics_host, settings.metrics_port, "metrics_")
        if settings.admin_port:
            taken["admin"] = await _listen(settings.admin_host, settings.admin_port, "admin_")
    except PortRefused:
        close(taken)
        raise
    return taken


def close(sockets: Sockets) -> None:
    """Let go of them."""
    for each in sockets.values():
        for found in each:
            found.close()


async def check_ports(settings: SharedSettings) -> None:
    """Listen, and let go again. Raises PortRefused."""
    close(await listen(settings))


async def _listen(host: str, port: int, prefix: str = "") -> list[socket.socket]:
    """`prefix`: of the settings' names."""
    loop = asyncio.get_running_loop()
    try:
        bound = await loop.create_server(asyncio.Protocol, host, port, start_serving=False)
        sockets = [found.dup() for found in bound.sockets]
        bound.close()
        for found in sockets:
            found.listen(BACKLOG)
    except OSError as error:
        raise PortRefused(f"setting {prefix}host or {prefix}port: {error.strerror}") from None
    return sockets


log = logging.getLogger(__name__)

REST_S = 0.001
"""Longer than an idle process takes to wake, and less than a gateway takes to answer."""
MOST_AT_ONCE, REST_AFTER_THEM_S = 16, 0.002
"""Of a process that listens alone: a flood takes half of its time, while some 4,000 a second come in."""
MOST_LOOKED_AT = 256
"""At once, those among them that are turned away."""
LONG_REST_S = 1.0
"""Where no connection can be taken: the process has as many files open as it may."""


class Acceptor:
    """Takes connections from the moment it is made until it is closed; the socket is its owner's to close."""

    def __init__(
        self,
        listener: socket.socket,
        protocol: Callable[[], asyncio.Protocol],
        *,
        shares: bool = True,
        admits: Callable[[str], bool] = lambda _: True,
    ) -> None:
        """`shares`: other processes take from the same socket. `admits`: a connection of this address."""
        self._most = 1 if shares else MOST_AT_ONCE
        self._rest_s = REST_S if shares else REST_AFTER_THEM_S
        self._admits = admits
        self._loop = asyncio.get_running_loop()
        self._listener = listener
        self._protocol = protocol
        self._resting: asyncio.TimerHandle | None = None
        self._beginning: set[asyncio.Task[None]] = set()
        listener.setblocking(False)
        self._watch()

    def close(self) -> None:
        """Take no more."""
        self._loop.remove_reader(self._listener)
        if self._resting is not None:
            self._resting.cancel()

    def _watch(self) -> None:
        self._loop.add_reader(self._listener, self._take)

    def _take(self) -> None:
        taken = 0
        for _ in range(MOST_LOOKED_AT):
            try:
                connection, peer = self._listener.accept()
            except (BlockingIOError, ConnectionAbortedError):  # another process was quicker; its client has left
                return
            except OSError as error:
                log.error("cannot take a connection: %s", error.strerror)
                self._rest(LONG_REST_S)
                return
            if not self._admits(peer[0] if peer else ""):
                connection.close()
                continue
            beginning = self._loop.create_task(self._begin(connection))
            self._beginning.add(beginning)
            beginning.add_done_callback(self._beginning.discard)
            taken += 1
            if taken >= self._most:
                self._rest(self._rest_s)
                return

    def _rest(self, rest_s: float) -> None:
        self._loop.remove_reader(self._listener)
        self._resting = self._loop.call_later(rest_s, self._watch)

    async def _begin(self, connection: socket.socket) -> None:
        try:
            connection.setblocking(False)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await self._loop.connect_accepted_socket(self._protocol, connection)
        except OSError:  # its client has left already
            connection.close()
