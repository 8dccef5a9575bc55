"""Bounds on the work of one call to the store: a script blocks the server, and gateways give up after 250 ms."""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TypeVar

# Maximum number of jobs, records, tenants or ids that one call to the store reads or writes.
PER_CALL = 64
# Maximum number of jobs that one call leases, ends or returns to the queue, each of which takes 60 to 150 µs.
JOBS_PER_CALL = 8

Item = TypeVar("Item")


def chunks(items: Iterable[Item], most: int | None = None) -> Iterator[list[Item]]:
    """Split items into lists of at most `most` (PER_CALL by default), in order."""
    left = iter(items)
    while chunk := list(islice(left, most or PER_CALL)):
        yield chunk
