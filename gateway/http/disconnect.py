"""Notifies a request when its client disconnects: directly from the connection, without a task that waits for it."""

from collections.abc import Callable


class Disconnect:
    """One connection's end, observed by the request that it is serving."""

    __slots__ = ("_callback", "_is_over", "_listen")

    def __init__(self, listen: Callable[[], None]) -> None:
        """`listen` resumes reading, in case the connection paused during a body that the application does not read."""
        self._listen = listen
        self._callback: Callable[[], None] | None = None
        self._is_over = False

    def notify(self, callback: Callable[[], None]) -> None:
        """Set or replace the callback for the disconnection. It is called at once if the client has already
        disconnected."""
        self._callback = callback
        if self._is_over:
            callback()
        else:
            self._listen()

    def forget(self, callback: Callable[[], None]) -> None:
        if self._callback == callback:
            self._callback = None

    def left(self) -> None:
        self._is_over, self._listen = True, lambda: None
        if self._callback is not None:
            self._callback()
