"""Garbage collection thresholds. Reference counting frees what a step or a request creates, but Python's defaults
would still start a collection every few requests, in the middle of a step or a stream. A full one takes 50 ms with
10,000 waiting requests."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

# `gc.set_threshold`: net allocations per young collection, young per middle, and middle per full collection.
OF_A_WORKER, OF_A_GATEWAY = (20_000, 20, 20), (10_000, 20, 100)


def collect_seldom(thresholds: tuple[int, int, int]) -> None:
    """Freeze all existing objects and raise the thresholds. Call it once startup has created the long-lived objects."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*thresholds)


@contextmanager
def no_collection() -> Iterator[None]:
    """Disable collection during imports, then freeze the imported objects.

    Importing torch and transformers creates hundreds of thousands of long-lived objects. Fruitless collections take a
    fifth of that time, and each later one would scan these objects for 0.25 s."""
    gc.disable()
    try:
        yield
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()
