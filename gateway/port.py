"""The port that a gateway listens on: taken before anything is started that would need it."""

import asyncio
import socket

BACKLOG = 2048
"""Connections that may wait to be taken."""


class PortRefused(RuntimeError):
    """Why nobody can listen there, in one line."""


async def listen(host: str, port: int) -> list[socket.socket]:
    """Sockets that listen on each address of the host: whoever connects waits until somebody takes the connection.

    Raises PortRefused.
    """
    loop = asyncio.get_running_loop()
    try:
        bound = await loop.create_server(asyncio.Protocol, host, port, start_serving=False)
        sockets = [found.dup() for found in bound.sockets]
        bound.close()
        for found in sockets:
            found.listen(BACKLOG)
    except OSError as error:
        raise PortRefused(f"setting host or port: {error.strerror}") from None
    return sockets


async def check_port(host: str, port: int) -> None:
    """Listen, and let go again. Raises PortRefused."""
    for found in await listen(host, port):
        found.close()
