"""How long a client may take nothing of what waits for it."""

import asyncio


class Patience:
    """With one client, from now on: once it has taken nothing for `timeout_s`, its connection is cut."""

    __slots__ = ("_timeout_s", "_timer", "_transport", "_untaken_bytes")

    def __init__(self, transport: asyncio.Transport, timeout_s: float) -> None:
        self._transport, self._timeout_s = transport, timeout_s
        self._untaken_bytes = -1
        self._look()

    def end(self) -> None:
        """It has taken enough, or is gone."""
        self._timer.cancel()

    def _look(self) -> None:
        untaken_bytes = self._transport.get_write_buffer_size()
        if untaken_bytes == self._untaken_bytes:
            self._transport.abort()
            return
        self._untaken_bytes = untaken_bytes
        self._timer = asyncio.get_running_loop().call_later(self._timeout_s, self._look)
