"""Bounds on the work of one call to the store.

A script blocks the server until it ends, and gateways give up after 250 ms. Work whose size depends on a caller or on
an outage is therefore split into calls of PER_CALL items, so that other callers' commands run between them.
"""

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
