"""Timeouts by which a late event loop blames nobody else: the time by which the loop itself was late does not count.

A loop that was held up finds timers due and answers unread, and looks at the timers first. So a limit is watched by
several ticks. One that comes late tells by how much the loop was held up, and the limit is put off by that.
"""

import asyncio
import math
from collections.abc import Callable
from types import TracebackType

TICKS = 8
"""Of one limit."""
LATE_SHARE = 0.5
"""Of a tick's length: a tick that is later than this tells of a loop that is held up."""
MOST_DEFERRED = 4.0
"""Limits by which one is put off at most, however late the loop is."""
READ_FIRST_S = 0.001
"""From when a limit has passed to when it is said so: what has arrived meanwhile is read before."""


def _never() -> bool:
    return False


class Watch:
    """Counts how late the loop is, as long as somebody waits."""

    __slots__ = ("_due_s", "_loop", "_tick_s", "_ticked", "_timer", "late_s")

    def __init__(self, loop: asyncio.AbstractEventLoop, limit_s: float, ticked: Callable[[], bool]) -> None:
        """`ticked`: called at each tick; whether there shall be another."""
        self._loop = loop
        self._tick_s = limit_s / TICKS
        self._ticked = ticked
        self._due_s = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self.late_s = 0.0
        """Altogether, while it ran."""

    def start(self) -> None:
        """Begin to tick, unless it ticks already."""
        if self._timer is None:
            self._due_s = self._loop.time() + self._tick_s
            self._timer = self._loop.call_at(self._due_s, self._tick)

    def stop(self) -> None:
        self._ticked = _never  # who is told may hold this
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _tick(self) -> None:
        self._timer = None
        late_s = self._loop.time() - self._due_s
        if late_s > LATE_SHARE * self._tick_s:
            self.late_s += late_s
        if self._ticked():
            self.start()


def has_passed(limit_s: float, waited_s: float, late_s: float) -> bool:
    """Whether a limit has, of which the loop was late for a part."""
    return waited_s - min(late_s, MOST_DEFERRED * limit_s) >= limit_s


class Timeout:
    """As `asyncio.timeout`: a context that ends with a TimeoutError `limit_s` after it began, the loop's own lateness
    not counted."""

    __slots__ = ("_began_s", "_limit_s", "_loop", "_timeout", "_watch")

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._timeout = asyncio.timeout(None)
        self._loop = asyncio.get_running_loop()
        self._watch = Watch(self._loop, limit_s, self._ticked)
        self._began_s = self._loop.time()

    async def __aenter__(self) -> None:
        await self._timeout.__aenter__()
        if self._limit_s < math.inf:
            self._watch.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._watch.stop()
        await self._timeout.__aexit__(kind, error, trace)

    def _ticked(self) -> bool:
        now_s = self._loop.time()
        passed = has_passed(self._limit_s, now_s - self._began_s, self._watch.late_s)
        if passed:
            self._timeout.reschedule(now_s + READ_FIRST_S)
        return not passed
