"""Flow control of one connection: reading with a second reason to pause, and a timeout for writing."""

import asyncio

from uvicorn.protocols.http.flow_control import FlowControl


class Flow(FlowControl):
    """Reads while uvicorn wants more data and no hold is set.

    uvicorn resumes reading whenever the application asks for more of a body. That must not undo a hold: unparsed bytes
    would accumulate."""

    is_held = False

    def pause_reading(self) -> None:
        if not self.read_paused:
            self.read_paused = True
            if not self.is_held:
                self._transport.pause_reading()

    def resume_reading(self) -> None:
        if self.read_paused:
            self.read_paused = False
            if not self.is_held:
                self._transport.resume_reading()

    def hold(self) -> None:
        if not self.is_held:
            self.is_held = True
            if not self.read_paused:
                self._transport.pause_reading()

    def release(self) -> None:
        if self.is_held:
            self.is_held = False
            if not self.read_paused and not self._transport.is_closing():
                self._transport.resume_reading()


class Patience:
    """A write timeout: aborts a connection whose client has read nothing for `timeout_s`. Starts at once."""

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
