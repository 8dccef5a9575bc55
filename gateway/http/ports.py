"""The listening ports of a gateway, and the loop that accepts connections: a few at a time, because the event loop
would accept a whole flood before it serves a stream. Processes that share a socket take one connection each in turn,
because otherwise the running one would accept nearly all of a burst and keep those connections alive."""

import asyncio
import errno
import logging
import socket
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from fairlane.scheduler.protocol.settings import SharedSettings

# Connections that may wait to be accepted; the system may lower it (`net.core.somaxconn`).
BACKLOG = 16_384
PortName = Literal["tenants", "metrics", "admin"]
# Listening sockets by port name. Ports other than the tenants' are optional.
Sockets = Mapping[PortName, Sequence[socket.socket]]


class PortRefused(RuntimeError):
    """A port that cannot be opened, with the reason in one line."""


async def listen(settings: SharedSettings) -> dict[PortName, list[socket.socket]]:
    """Open the sockets of all ports. Connections wait until an `Acceptor` takes them. Raises PortRefused."""
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
    """Close all sockets of all ports."""
    for each in sockets.values():
        for found in each:
            found.close()


async def check_ports(settings: SharedSettings) -> None:
    """Check that the ports can be opened. Raises PortRefused."""
    close(await listen(settings))


async def _listen(host: str, port: int, prefix: str = "") -> list[socket.socket]:
    loop = asyncio.get_running_loop()
    try:
        bound = await loop.create_server(asyncio.Protocol, host, port, start_serving=False)
        sockets = [found.dup() for found in bound.sockets]
        bound.close()
        for found in sockets:
            found.listen(BACKLOG)
    except OSError as error:
        flag = "" if prefix else " or --port"
        remedy = f": choose another with FAIRLANE_{prefix.upper()}PORT{flag}" if error.errno == errno.EADDRINUSE else ""
        raise PortRefused(f"setting {prefix}host or {prefix}port: {error.strerror}{remedy}") from None
    return sockets


log = logging.getLogger(__name__)

# Longer than an idle process takes to wake up, shorter than a gateway takes to respond.
REST_S = 0.001
# For a single process: a flood of about 4,000 connections a second takes half of its time.
MOST_AT_ONCE, REST_AFTER_THEM_S = 16, 0.002
# Connections per wake-up, rejected ones included.
MOST_LOOKED_AT = 256
# Pause when no connection can be accepted, because the process is out of file descriptors.
LONG_REST_S = 1.0


class Acceptor:
    """Accepts connections from its creation until it is closed. The socket stays its owner's to close."""

    def __init__(
        self,
        listener: socket.socket,
        protocol: Callable[[], asyncio.Protocol],
        *,
        shares: bool = True,
        admits: Callable[[str], bool] = lambda _: True,
    ) -> None:
        """`shares`: other processes accept from the same socket. `admits`: by a connection's address."""
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
            except (BlockingIOError, ConnectionAbortedError):  # another process was faster, or the client is gone
                return
            except OSError as error:
                log.error("cannot accept a connection: %s", error.strerror)
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
        except OSError:  # the client has already disconnected
            connection.close()


class Member(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One of the processes behind a port, as passed to it with `--member`."""

    index: int
    count: int
    # Listening file descriptors of each port, the same for all processes.
    sockets: dict[PortName, tuple[int, ...]]
    # The folder of the processes' Unix sockets.
    fleet_cache: str

    @property
    def name(self) -> str:
        return f"gateway-{self.index}"

    def path(self, index: int) -> Path:
        """Return the Unix socket on which a process serves its metrics to the others."""
        return Path(self.fleet_cache) / f"{index}.sock"
