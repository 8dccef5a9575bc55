"""A lock on a directory, so that one process at a time creates its contents; the others wait and find them there."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Hold the directory's lock, which the system releases when the process ends. Raises OSError if it cannot be read.

    On a file system without locks no process waits, and the same work may be done more than once."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
