"""How the engine's thread wakes the event loop without letting go of Python.

`call_soon_threadsafe` writes to the loop's socket, and for as long as that takes Python is anybody's: the loop takes it
and publishes, and the forward pass that was to begin waits for it, up to 5 ms. This write keeps hold of it.
"""

import asyncio
import ctypes
import os
from collections.abc import Callable

_write = ctypes.PyDLL(None).write
_write.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t)
_RINGS = 4096
"""Read at once."""


class Doorbell:
    """Rung from any thread; `on_ring` is called on the loop, once for any number of rings."""

    def __init__(self, loop: asyncio.AbstractEventLoop, on_ring: Callable[[], None]) -> None:
        self._loop = loop
        self._on_ring = on_ring
        self._inside, self._outside = os.pipe()
        for end in (self._inside, self._outside):
            os.set_blocking(end, False)
        loop.add_reader(self._inside, self._heard)

    def ring(self) -> None:
        """Wake the loop. One that has not heard thousands of rings yet will hear those."""
        _write(self._outside, b"\0", 1)

    def close(self) -> None:
        """To call on the loop, when nobody rings any more."""
        self._loop.remove_reader(self._inside)
        os.close(self._inside)
        os.close(self._outside)

    def _heard(self) -> None:
        os.read(self._inside, _RINGS)
        self._on_ring()
