"""uvicorn without its pauses: its loops look for their end ten times a second, and each stop takes 0.1 s at least."""

import asyncio
import socket
from typing import Any
from unittest.mock import patch

import uvicorn.server


class _QuickAsyncio:
    """asyncio with short sleeps."""

    def __getattr__(self, name: str) -> Any:
        return getattr(asyncio, name)

    async def sleep(self, delay_s: float) -> None:
        await asyncio.sleep(min(delay_s, 0.005))


class QuickStop(uvicorn.Server):
    """A server whose stop takes as long as its requests do."""

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        with patch.object(uvicorn.server, "asyncio", _QuickAsyncio()):
            await super().shutdown(sockets)

    async def main_loop(self) -> None:
        while not self.should_exit:  # noqa: ASYNC110 - uvicorn's own way
            await asyncio.sleep(0.005)
