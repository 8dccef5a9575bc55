"""Bounds on the work of one call to the store: a script blocks the server, and gateways give up after 250 ms."""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TypeVar

# Maximum number of jobs, records, tenants or ids that one call to the store reads or writes.
PER_CALL = 64

Item = TypeVar("Item")


def chunks(items: Iterable[Item]) -> Iterator[list[Item]]:
    """Split items into lists of at most PER_CALL, in order."""
    left = iter(items)
    while chunk := list(islice(left, PER_CALL)):
        yield chunk
