"""How a request hears that its client has left: from its connection, at once, and without a task that waits for it."""

from collections.abc import Callable

STATE = "disconnect"
"""Where the `state` of a scope has its connection's `Disconnect`."""


def _nothing() -> None:
    """There is no connection to read on."""


class Disconnect:
    """One connection's end, for the request that it is answering."""

    __slots__ = ("_heard", "_is_over", "_listen")

    def __init__(self, listen: Callable[[], None]) -> None:
        """`listen`: makes the connection read on, where it has stopped reading a body that nobody takes."""
        self._listen = listen
        self._heard: Callable[[], None] | None = None
        self._is_over = False

    def tell(self, heard: Callable[[], None]) -> None:
        """Call this once the client has left, which may be now; instead of what was to be called before."""
        self._heard = heard
        if self._is_over:
            heard()
        else:
            self._listen()

    def forget(self, heard: Callable[[], None]) -> None:
        """Do not call this any more. A pipelined request may have registered its own callback since: that one stays."""
        if self._heard == heard:
            self._heard = None

    def left(self) -> None:
        """The client has left, or its connection is not worth an answer."""
        self._is_over, self._listen = True, _nothing
        if self._heard is not None:
            self._heard()
