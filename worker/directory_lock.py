"""One process at a time makes what a directory keeps: the others wait, and find it made."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Hold the directory's lock. The system lets it go when a process ends, however it ends, so none is left behind.

    Where the file system knows no locks nobody waits: the same work is then done more than once. Raises OSError where
    the directory cannot be read.
    """
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
