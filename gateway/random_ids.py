"""Random names, drawn many at a time: each draw is a system call."""

import os

BYTES = 12
"""Of one: 96 bits."""
_DRAWN_AT_ONCE = 128
_drawn: list[str] = []


def random_id() -> str:
    """24 hexadecimal digits from the system's randomness."""
    try:
        return _drawn.pop()
    except IndexError:
        digits = os.urandom(BYTES * _DRAWN_AT_ONCE).hex()
        fresh = [digits[start : start + 2 * BYTES] for start in range(0, len(digits), 2 * BYTES)]
        _drawn.extend(fresh[1:])
        return fresh[0]
