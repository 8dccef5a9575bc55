"""A write timeout for clients that do not read their response."""

import asyncio


class Patience:
    """Aborts a connection once its client has read nothing for `timeout_s`. Starts at once."""

    __slots__ = ("_timeout_s", "_timer", "_transport", "_untaken_bytes")

    def __init__(self, transport: asyncio.Transport, timeout_s: float) -> None:
        self._transport, self._timeout_s = transport, timeout_s
        self._untaken_bytes = -1
        self._look()

    def end(self) -> None:
        self._timer.cancel()

    def _look(self) -> None:
        untaken_bytes = self._transport.get_write_buffer_size()
        if untaken_bytes == self._untaken_bytes:
            self._transport.abort()
            return
        self._untaken_bytes = untaken_bytes
        self._timer = asyncio.get_running_loop().call_later(self._timeout_s, self._look)
