"""A directory that nobody else may look into: 0700, and all files in it 0600, whatever the umask was.

The embedded store's append-only file holds prompts that wait, answers that are kept, and what keys are checked against.
"""

import logging
import os
import stat
from pathlib import Path

log = logging.getLogger(__name__)

UMASK = 0o077
"""What processes that write into such a directory are started with."""
_OF_OTHERS = stat.S_IRWXG | stat.S_IRWXO


class NotPrivate(RuntimeError):
    """Others could look into a directory, and that cannot be changed: why, in one line."""


def make_private(directory: Path) -> None:
    """Make the directory where there is none, and close it to others where it is open. Raises NotPrivate."""
    try:
        if not directory.exists():
            directory.mkdir(mode=stat.S_IRWXU, parents=True, exist_ok=True)
        if directory.stat().st_mode & stat.S_ISVTX:
            raise NotPrivate(f"{directory} is everybody's: name a directory of Fairlane's own")
    except OSError as error:
        raise NotPrivate(f"{directory}: cannot be made or read ({error.strerror})") from None
    _close(directory)


def close_all(directory: Path) -> None:
    """The same for all that is in it already, but for what links lead to. Raises NotPrivate."""
    make_private(directory)
    for place, directories, files in os.walk(directory):
        for name in (*directories, *files):
            _close(Path(place, name))


def _close(path: Path) -> None:
    try:
        mode = path.lstat().st_mode
        if stat.S_ISLNK(mode) or not mode & _OF_OTHERS:
            return
        path.chmod(stat.S_IMODE(mode) & ~_OF_OTHERS)
        if path.lstat().st_mode & _OF_OTHERS:
            raise NotPrivate(f"{path} is open to others, and its file system keeps it so")
    except FileNotFoundError:  # a store that runs has just removed it
        return
    except OSError as error:
        raise NotPrivate(f"{path} is open to others, and cannot be closed ({error.strerror})") from None
    log.warning("%s was open to others: closed", path)
