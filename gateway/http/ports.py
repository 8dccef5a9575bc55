"""The ports that a gateway listens on: taken before anything is started that would need them."""

import asyncio
import socket
from collections.abc import Mapping, Sequence
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
