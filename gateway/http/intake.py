"""Takes in one part of a large body in each round of the event loop, whichever connection it comes from.

A round serves all connections that have something to read. Where eight of them have 256 KiB of a body each, it takes
some milliseconds, and a request of another caller needs some 20 rounds.
"""

import asyncio
from collections import deque

PART_BYTES = 64 * 1024
"""A part of so many bytes waits for a turn before the next is read."""


class Intake:
    """The turns of one event loop, first come, first served."""

    def __init__(self) -> None:
        self._is_taken = False
        """A turn was given in this round."""
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def turn(self) -> None:
        """Return when the next part may be taken in."""
        loop = asyncio.get_running_loop()
        if not self._is_taken:
            self._is_taken = True
            loop.call_soon(self._next_round)
            return
        waiting = loop.create_future()
        self._waiting.append(waiting)
        await waiting

    def _next_round(self) -> None:
        while self._waiting:
            waiting = self._waiting.popleft()
            if not waiting.done():  # its caller may have left
                waiting.set_result(None)
                waiting.get_loop().call_soon(self._next_round)
                return
        self._is_taken = False
