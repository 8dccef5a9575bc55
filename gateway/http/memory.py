"""Memory that large bodies took goes back to the system: glibc's allocator keeps what it was given, unless it is told.

Large blocks are mapped each for itself, whatever was freed before, and go back when they are freed. What small blocks
leave is given back now and then, in a thread: that takes some milliseconds, in which no other thread needs to wait.
"""

import asyncio
import ctypes
from collections.abc import Callable

MAPPED_BYTES = 128 * 1024
"""A block of this size is mapped for itself. glibc begins with the same and raises it to whatever is freed."""
ARENAS = 2
"""Heaps that threads share; glibc takes eight for each core."""
TRIM_AFTER_BYTES = 2**20
"""Of bodies that were given back: so many may be worth a trim."""
REST_S = 1.0
"""From when there were so many to the trim, so that floods are followed by one each second at most."""
_M_MMAP_THRESHOLD, _M_ARENA_MAX = -3, -8


def keep_little() -> None:
    """Tell the allocator, before anything large was allocated. Does nothing where it is not glibc's."""
    tell = _of_glibc("mallopt")
    if tell is not None:
        tell(_M_MMAP_THRESHOLD, MAPPED_BYTES)
        tell(_M_ARENA_MAX, ARENAS)


class Trimmer:
    """Gives back what is free, some time after bodies were. For one event loop."""

    def __init__(self) -> None:
        self._trim = _of_glibc("malloc_trim")
        self._bytes = 0
        self._pending: asyncio.TimerHandle | None = None
        self._trimming: asyncio.Future[int] | None = None

    def freed(self, count: int) -> None:
        """Bytes of a body are no longer held."""
        self._bytes += count
        if self._bytes >= TRIM_AFTER_BYTES and self._pending is None and self._trim is not None:
            self._pending = asyncio.get_running_loop().call_later(REST_S, self._start)

    def _start(self) -> None:
        self._pending = None
        if self._trim is None or (self._trimming is not None and not self._trimming.done()):
            return
        self._bytes = 0
        self._trimming = asyncio.get_running_loop().run_in_executor(None, self._trim, 0)


def _of_glibc(name: str) -> Callable[..., int] | None:
    """One of the allocator's own functions. Other threads go on while it runs."""
    try:
        function: Callable[..., int] = getattr(ctypes.CDLL(None), name)
    except (AttributeError, OSError, TypeError):
        return None
    return function
