"""How much work one call to the store may do.

A script runs alone: every other caller waits until it has ended, and gateways give up after 250 ms. Work whose size a
caller or an outage decides is therefore split into calls of PER_CALL items, between which other callers get their turn.
"""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TypeVar

PER_CALL = 64
"""Most jobs, records, tenants or ids that one call to the store reads or writes."""

Item = TypeVar("Item")


def chunks(items: Iterable[Item]) -> Iterator[list[Item]]:
    """Split items into lists of PER_CALL at most, in their order."""
    left = iter(items)
    while chunk := list(islice(left, PER_CALL)):
        yield chunk
