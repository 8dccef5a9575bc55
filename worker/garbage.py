"""How a worker collects garbage: seldom, since a collection stops the engine amid a step.

A step makes and frees some thousand tuples, which reference counts alone take care of; by Python's defaults they would
set off a collection in every step, and now and then one of all that waits, 50 ms long with 10,000 requests.
"""

import gc

THRESHOLDS = 20_000, 20, 20
"""More objects made than freed, collections of the youngest, and of the middle, before the next collection."""


def collect_seldom() -> None:
    """To call when all that stays has been made: that is never looked at again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)
