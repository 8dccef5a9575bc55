"""Unix sockets of gateways in their shared folder. A killed gateway leaves its socket there; the next removes it."""

import errno
import socket
from contextlib import closing
from pathlib import Path


def listening(path: Path) -> socket.socket:
    """Return a listening socket at `path`, which only this user may open. Raises OSError.

    It gets its name once it accepts connections: a named socket that refuses one belongs to a dead gateway."""
    unnamed = path.with_suffix(".new")
    unnamed.unlink(missing_ok=True)
    made = socket.socket(socket.AF_UNIX)
    try:
        made.bind(str(unnamed))
        unnamed.chmod(0o600)
        made.listen()
        unnamed.replace(path)
    except BaseException:
        made.close()
        raise
    return made


def remove_dead(folder: Path, pattern: str) -> None:
    """Remove the sockets with such names that refuse connections. Raises OSError."""
    for path in folder.glob(pattern):
        if path.is_socket() and _refuses(path):
            path.unlink(missing_ok=True)


def _refuses(path: Path) -> bool:
    with closing(socket.socket(socket.AF_UNIX)) as probe:
        probe.setblocking(False)
        return probe.connect_ex(str(path)) == errno.ECONNREFUSED
