"""Whether the port is free to listen on: asked before anything is started that would need it."""

import asyncio


class PortRefused(RuntimeError):
    """Why nobody can listen there, in one line."""


async def check_port(host: str, port: int) -> None:
    """Bind as the server will, and let go again. Raises PortRefused."""
    loop = asyncio.get_running_loop()
    try:
        probe = await loop.create_server(asyncio.Protocol, host, port, start_serving=False)
    except OSError as error:
        raise PortRefused(f"setting host or port: {error.strerror}") from None
    probe.close()
