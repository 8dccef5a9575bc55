"""Takes in one part of a large body per iteration of the event loop, over all connections.

An iteration serves all connections with bytes to read. With eight parts of 256 KiB it takes some milliseconds, and the
request of another caller needs about 20 iterations."""

import asyncio
from collections import deque

# After a part of this size, the body waits for a turn before its next part is read.
PART_BYTES = 64 * 1024


class Intake:
    """The turns of one event loop, first come, first served."""

    def __init__(self) -> None:
        # Whether a turn was given in this iteration.
        self._is_taken = False
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def turn(self) -> None:
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
