"""One integer for engines that order by `priority`, lower first: lane, then promise, then deadline.

    bits 44 to 51   rank of the lane, 0 the most urgent
    bit  43         0 where the deadline was guaranteed
    bits 0 to 42    when its first token is due, in Unix milliseconds: until the year 2248

Whoever compares the integers alone, as vLLM's own priority policy does, serves lane by lane and the earliest deadline
first. 52 bits pass through JSON's doubles unharmed. Anything below `EARLIEST_MS` is a plain number that somebody chose,
and no deadline of ours: `decode` tells them apart.
"""

from typing import NamedTuple

DUE_BITS = 43
RANK_BITS = 8
_BEST_EFFORT = 1 << DUE_BITS
_RANK_SHIFT = DUE_BITS + 1
BITS = _RANK_SHIFT + RANK_BITS

EARLIEST_MS = 1 << 36
"""March 1972: what is due sooner counts as due then."""
LATEST_MS = (1 << DUE_BITS) - 1
"""What is due later, or never, counts as due then."""
MOST_RANK = (1 << RANK_BITS) - 1


class EnginePriority(NamedTuple):
    """What one integer says."""

    lane_rank: int
    guaranteed: bool
    due_ms: int
    """Unix milliseconds, `EARLIEST_MS` to `LATEST_MS`."""


def encode(lane_rank: int, due_ms: float, *, guaranteed: bool = False) -> int:
    """The integer of a request whose first token is due at `due_ms`, Unix milliseconds; infinity: never.

    Raises ValueError for a rank that is not within 0 to `MOST_RANK`, and for a deadline that is no number.
    """
    if not 0 <= lane_rank <= MOST_RANK:
        raise ValueError(f"lane rank must be between 0 and {MOST_RANK}, not {lane_rank}")
    if due_ms != due_ms:
        raise ValueError("a deadline must be a number of milliseconds")
    due = int(min(max(due_ms, EARLIEST_MS), LATEST_MS))
    return lane_rank << _RANK_SHIFT | (0 if guaranteed else _BEST_EFFORT) | due


def decode(priority: int) -> EnginePriority | None:
    """What `encode` was given, the deadline in whole milliseconds; None for a number that it never returns."""
    due_ms = priority & LATEST_MS
    if not 0 <= priority < 1 << BITS or due_ms < EARLIEST_MS:
        return None
    return EnginePriority(priority >> _RANK_SHIFT, not priority & _BEST_EFFORT, due_ms)
