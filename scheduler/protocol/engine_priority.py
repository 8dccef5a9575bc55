"""One integer for engines that order by `priority`, lower first: lane, then guarantee, then deadline.

    bits 44 to 51   rank of the lane, 0 the most urgent
    bit  43         0 if the deadline is guaranteed
    bits 0 to 42    due time of the first token, in Unix milliseconds: until the year 2248

An engine that only compares the integers, as vLLM's priority policy does, serves lane by lane and the earliest deadline
first. 52 bits fit JSON's doubles exactly. Values below `EARLIEST_MS` are priorities that a caller chose; `decode`
recognises them."""

from typing import NamedTuple

DUE_BITS = 43
RANK_BITS = 8
_BEST_EFFORT = 1 << DUE_BITS
_RANK_SHIFT = DUE_BITS + 1
BITS = _RANK_SHIFT + RANK_BITS

# March 1972. Earlier due times are clamped to it.
EARLIEST_MS = 1 << 36
# Later due times, and infinity, are clamped to it.
LATEST_MS = (1 << DUE_BITS) - 1
MAX_RANK = (1 << RANK_BITS) - 1


class EnginePriority(NamedTuple):
    """The three parts of an encoded priority."""

    lane_rank: int
    guaranteed: bool
    # Unix milliseconds, `EARLIEST_MS` to `LATEST_MS`.
    due_ms: int


def encode(lane_rank: int, due_ms: float, *, guaranteed: bool = False) -> int:
    """Encode a request whose first token is due at `due_ms`, Unix milliseconds; infinity means no deadline.

    Raises ValueError for a rank outside 0 to `MAX_RANK` and for a NaN deadline."""
    if not 0 <= lane_rank <= MAX_RANK:
        raise ValueError(f"lane rank must be between 0 and {MAX_RANK}, not {lane_rank}")
    if due_ms != due_ms:
        raise ValueError("a deadline must be a number of milliseconds")
    due = int(min(max(due_ms, EARLIEST_MS), LATEST_MS))
    return lane_rank << _RANK_SHIFT | (0 if guaranteed else _BEST_EFFORT) | due


def decode(priority: int) -> EnginePriority | None:
    """Return the arguments of `encode`, with the deadline in whole milliseconds; None for a number that `encode` never
    returns."""
    due_ms = priority & LATEST_MS
    if not 0 <= priority < 1 << BITS or due_ms < EARLIEST_MS:
        return None
    return EnginePriority(priority >> _RANK_SHIFT, not priority & _BEST_EFFORT, due_ms)
