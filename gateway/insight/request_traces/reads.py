"""Recent readers of recorded traces: the audit log records a read once an hour, not for each part of a trace."""

import math
import time
from collections import OrderedDict
from collections.abc import Callable

NOTE_EVERY_S = 3_600.0
MOST_REMEMBERED = 10_000


class TraceReads:
    """Reads of this gateway. Repeated calls that follow a recording count as one read."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._noted_s: OrderedDict[tuple[str, str], float] = OrderedDict()

    def is_first(self, operator: str, trace: str) -> bool:
        read, now_s = (operator, trace), self._clock()
        if now_s - self._noted_s.get(read, -math.inf) < NOTE_EVERY_S:
            return False
        self._noted_s[read] = now_s
        self._noted_s.move_to_end(read)
        if len(self._noted_s) > MOST_REMEMBERED:
            self._noted_s.popitem(last=False)
        return True
