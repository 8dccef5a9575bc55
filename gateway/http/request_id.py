"""Request ids: the caller's `x-request-id` if it is well-formed, else a random one."""

import os
import re
from collections.abc import Iterable

HEADER = b"x-request-id"
ANTHROPIC_HEADER = b"request-id"
_WELL_FORMED = re.compile(rb"[A-Za-z0-9._:/+=@-]{1,128}")
_ID_BYTES = 12
# Ids are generated in batches, because each read of random bytes is a system call.
_DRAWN_AT_ONCE = 128
_drawn: list[str] = []


def random_id() -> str:
    """Return 24 random hexadecimal digits, independent of the caller. A reservation and its jobs are named after it."""
    try:
        return _drawn.pop()
    except IndexError:
        digits = os.urandom(_ID_BYTES * _DRAWN_AT_ONCE).hex()
        ids = [digits[start : start + 2 * _ID_BYTES] for start in range(0, len(digits), 2 * _ID_BYTES)]
        _drawn.extend(ids[1:])
        return ids[0]


def request_id_of(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """Return the caller's id if it sent exactly one, well-formed; else a new one."""
    given = None
    for name, value in headers:
        if name == HEADER:
            given = value if given is None else b""
    if given and _WELL_FORMED.fullmatch(given):
        return given.decode("ascii")
    return f"req_{random_id()}"
