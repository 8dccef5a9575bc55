"""Time limits that exclude the event loop's own lateness, which is not the store's fault.

A loop that was blocked runs due timers before it reads replies. A limit is therefore watched by several ticks: a late
tick measures how long the loop was blocked, and the limit is extended by that."""

import asyncio
import math
from collections.abc import Callable
from types import TracebackType

# Ticks per time limit.
TICKS = 8
# Fraction of a tick: a tick that is later than this means that the loop was blocked.
LATE_SHARE = 0.5
# Maximum extension of a limit, as a multiple of it.
MOST_DEFERRED = 4.0
# Pause between the end of a limit and the TimeoutError, in which replies that have already arrived are read.
READ_FIRST_S = 0.001


def _never() -> bool:
    return False


class LatenessWatch:
    """Measures the loop's lateness while it ticks."""

    __slots__ = ("_due_s", "_loop", "_tick_s", "_ticked", "_timer", "late_s")

    def __init__(self, loop: asyncio.AbstractEventLoop, limit_s: float, ticked: Callable[[], bool]) -> None:
        """`ticked` is called at each tick and returns whether to continue."""
        self._loop = loop
        self._tick_s = limit_s / TICKS
        self._ticked = ticked
        self._due_s = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self.late_s = 0.0

    def start(self) -> None:
        if self._timer is None:
            self._due_s = self._loop.time() + self._tick_s
            self._timer = self._loop.call_at(self._due_s, self._tick)

    def stop(self) -> None:
        self._ticked = _never  # breaks the reference cycle with the callback's owner
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
    """Return whether a limit has passed, excluding the loop's lateness."""
    return waited_s - min(late_s, MOST_DEFERRED * limit_s) >= limit_s


class Timeout:
    """Raises TimeoutError after `limit_s`, as `asyncio.timeout` does, but excludes the loop's own lateness."""

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
