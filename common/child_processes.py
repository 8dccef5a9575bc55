"""Child processes that end with their parent."""

import ctypes
import os
import signal
import sys
from collections.abc import Callable

_PR_SET_PDEATHSIG = 1


def die_with_parent(signal_number: int = signal.SIGTERM) -> Callable[[], None]:
    """A `preexec_fn` that ends the child with the thread that spawned it, even if that one is killed."""
    parent = os.getpid()
    prctl = ctypes.CDLL(None).prctl if sys.platform == "linux" else None

    def arm() -> None:
        if prctl is not None:
            prctl(_PR_SET_PDEATHSIG, signal_number)
        if os.getppid() != parent:  # it died before the call above
            os.kill(os.getpid(), signal_number)

    return arm
