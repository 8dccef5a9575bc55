"""Ports for what tests start: below those that the system gives to connections, so that none is taken in between."""

import random
import socket
from contextlib import suppress

FIRST, LAST = 20_000, 32_000
"""Linux gives connections and listeners without a wish of their own 32768 and above."""

_chooser = random.SystemRandom()  # test processes run side by side, and some seed `random` alike
_given: set[int] = set()


def free_port() -> int:
    """A loopback port that nothing listens on, and that this process was not given before."""
    while True:
        port = _chooser.randrange(FIRST, LAST)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            if port not in _given:
                _given.add(port)
                return port
