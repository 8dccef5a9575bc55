"""How many wrong requests an API key may send: what is refused before any budget counts it costs work as well."""

import time
from collections import OrderedDict
from collections.abc import Callable

from fairlane.gateway.errors import LimitBlock, limit_denied

NAME = "refused_requests_per_minute"
MINUTE_S = 60.0
REMEMBERED = 10_000
_BYTES_PER_REQUEST = 64 * 1024
"""A body that was read for nothing costs as many requests as it has of these."""
_WORK_S_PER_REQUEST = 0.001
"""As do so many seconds of a processor that were spent to find out what is wrong."""
_TELLING = frozenset({401, 403})
"""Statuses of refusals that hardly cost anything, and are for an operator to put right."""


class RefusedRequests:
    """A bucket for each key of this process, which is full again after a minute. For one event loop."""

    def __init__(self, per_minute: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._most = per_minute
        self._clock = clock
        self._used: OrderedDict[str, tuple[float, float]] = OrderedDict()
        """By key: how much, and when that was so."""

    def check(self, key_id: str) -> None:
        """Let a request of a key through. Raises ApiError `rate_limit_exceeded` where too many before it were wrong."""
        if key_id not in self._used:
            return
        used = self._used_of(key_id)
        if used > self._most - 1:
            block = LimitBlock(NAME, "key", self._most, round(used), 0, 1, None)
            raise limit_denied("rate", block, (used - self._most + 1) * MINUTE_S / self._most)

    def count(self, key_id: str, status: int, body_bytes: int, work_s: float = 0.0) -> None:
        """A request of a key was refused with a status. Of refusals for a limit only a large body that was read for it
        counts; of our own faults nothing does."""
        if not 400 <= status < 500 or status in _TELLING:
            return
        cost = max(body_bytes // _BYTES_PER_REQUEST, int(work_s / _WORK_S_PER_REQUEST)) + (status != 429)
        if not cost:
            return
        self._used[key_id] = self._used_of(key_id) + cost, self._clock()
        self._used.move_to_end(key_id)
        if len(self._used) > REMEMBERED:
            self._used.popitem(last=False)

    def _used_of(self, key_id: str) -> float:
        used, when_s = self._used.get(key_id, (0.0, 0.0))
        return max(0.0, used - (self._clock() - when_s) * self._most / MINUTE_S)
