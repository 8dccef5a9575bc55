"""How a process collects garbage: seldom, since a collection stops a worker amid a step, and a gateway amid a stream.

What a step or a request makes goes with its last reference; by Python's defaults it would set off a collection every
few of them, and now and then one of all that waits, 50 ms long with 10,000 requests.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

OF_A_WORKER, OF_A_GATEWAY = (20_000, 20, 20), (10_000, 20, 100)
"""More objects made than freed, collections of the youngest, and of the middle, before the next collection."""


def collect_seldom(thresholds: tuple[int, int, int]) -> None:
    """To call when all that stays has been made: that is never looked at again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*thresholds)


@contextmanager
def no_collection() -> Iterator[None]:
    """While imports make hundreds of thousands of objects that stay: a collection would find nothing, again and again.
    With those of torch and transformers it takes a fifth of their time. One at their end finds what they left, and
    those after it, of a quarter of a second each, never look at what stays."""
    gc.disable()
    try:
        yield
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()
