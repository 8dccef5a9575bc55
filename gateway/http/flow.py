"""When a connection is read: uvicorn's flow control, with a second reason not to."""

from uvicorn.protocols.http.flow_control import FlowControl


class Flow(FlowControl):
    """Reads while uvicorn wants more and nothing holds the connection.

    uvicorn resumes reading whenever the application asks for more of a body, which must not undo a hold: what was read
    before would pile up.
    """

    is_held = False

    def pause_reading(self) -> None:
        """As uvicorn's."""
        if not self.read_paused:
            self.read_paused = True
            if not self.is_held:
                self._transport.pause_reading()

    def resume_reading(self) -> None:
        """As uvicorn's, but for a connection that is held."""
        if self.read_paused:
            self.read_paused = False
            if not self.is_held:
                self._transport.resume_reading()

    def hold(self) -> None:
        """Read nothing until `release`."""
        if not self.is_held:
            self.is_held = True
            if not self.read_paused:
                self._transport.pause_reading()

    def release(self) -> None:
        """Read on, if uvicorn wants more."""
        if self.is_held:
            self.is_held = False
            if not self.read_paused and not self._transport.is_closing():
                self._transport.resume_reading()
