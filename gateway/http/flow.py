"""Read flow control: uvicorn's, with a second reason to pause."""

from uvicorn.protocols.http.flow_control import FlowControl


class Flow(FlowControl):
    """Reads while uvicorn wants more and the connection is not held.

    uvicorn resumes reading whenever the application asks for more of a body. That must not undo a hold: bytes not
    parsed yet would pile up."""

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
