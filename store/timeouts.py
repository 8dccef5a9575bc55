"""Time limits that do not count the event loop's own lateness, which is no fault of the store.

A loop that was held up finds timers due and answers unread, and looks at the timers first. So a limit is watched by
several ticks. One that comes late tells by how much the loop was held up, and the limit is put off by that.
"""

import asyncio
import math
from collections.abc import Callable
from types import TracebackType

TICKS = 8
"""Ticks in one time limit."""
LATE_SHARE = 0.5
"""Share of a tick's length: a tick that is later than this means that the loop was held up."""
MOST_DEFERRED = 4.0
"""A limit is put off by at most so many times itself, however late the loop is."""
READ_FIRST_S = 0.001
"""Pause between the end of a limit and the TimeoutError, in which replies that have arrived are read."""


def _never() -> bool:
    return False


class LatenessWatch:
    """Measures how late the loop is, while it ticks."""

    __slots__ = ("_due_s", "_loop", "_tick_s", "_ticked", "_timer", "late_s")

    def __init__(self, loop: asyncio.AbstractEventLoop, limit_s: float, ticked: Callable[[], bool]) -> None:
        """`ticked`: called at each tick; whether there shall be another."""
        self._loop = loop
        self._tick_s = limit_s / TICKS
        self._ticked = ticked
        self._due_s = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self.late_s = 0.0
        """The loop's lateness in total, while it ticked."""

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
    """Whether a limit has passed, the loop's lateness not counted."""
    return waited_s - min(late_s, MOST_DEFERRED * limit_s) >= limit_s


class Timeout:
    """As `asyncio.timeout`: a context that ends with a TimeoutError `limit_s` after it began, the loop's own lateness
    not counted."""

    __slots__ = ("_began_s", "_limit_s", "_loop", "_timeout", "_watch")

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._timeout = asyncio.timeout(None)
        self._loop = asyncio.get_running_loop()
        self._watch = LatenessWatch(self._loop, limit_s, self._ticked)
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
