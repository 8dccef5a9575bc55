"""Connections from a socket on which several processes listen: each takes one, and then rests.

Left to the event loop, whichever process happens to be awake takes nearly all of a burst, and clients that keep their
connections stay with it. The rest leaves the next connection to the others; one that is busy returns later from it.
"""

import asyncio
import logging
import socket
from collections.abc import Callable

log = logging.getLogger(__name__)

REST_S = 0.001
"""Longer than an idle process takes to wake, and less than a gateway takes to answer."""
LONG_REST_S = 1.0
"""Where no connection can be taken: the process has as many files open as it may."""


class Acceptor:
    """Takes connections from the moment it is made until it is closed; the socket is its owner's to close."""

    def __init__(self, listener: socket.socket, protocol: Callable[[], asyncio.Protocol]) -> None:
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
        rest_s = REST_S
        try:
            connection, _ = self._listener.accept()
        except (BlockingIOError, ConnectionAbortedError):  # another process was quicker; its client has left
            return
        except OSError as error:
            log.error("cannot take a connection: %s", error.strerror)
            rest_s = LONG_REST_S
        else:
            beginning = self._loop.create_task(self._begin(connection))
            self._beginning.add(beginning)
            beginning.add_done_callback(self._beginning.discard)
        self._loop.remove_reader(self._listener)
        self._resting = self._loop.call_later(rest_s, self._watch)

    async def _begin(self, connection: socket.socket) -> None:
        try:
            connection.setblocking(False)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await self._loop.connect_accepted_socket(self._protocol, connection)
        except OSError:  # its client has left already
            connection.close()
