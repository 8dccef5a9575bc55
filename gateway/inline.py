"""Waits that are all bounded alike and hardly ever end so: one timer for all of them, where `asyncio.timeout` takes one
for each, and half a dozen calls."""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

T = TypeVar("T")


class Inline:
    """Lets tasks wait for something at most `limit_s` each."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._waiting: dict[asyncio.Task[object], float] = {}
        """Until when, on the loop's clock; the oldest first."""
        self._timer: asyncio.TimerHandle | None = None

    async def wait(self, work: Awaitable[T]) -> T:
        """Await it. Raises TimeoutError where that takes too long; then the work is cancelled."""
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - a coroutine always runs in one
        cancelled_before, loop = task.cancelling(), task.get_loop()
        self._waiting[task] = ends_s = loop.time() + self._limit_s
        if self._timer is None:
            self._timer = loop.call_at(ends_s, self._look)
        try:
            return await work
        except asyncio.CancelledError:
            is_late = task not in self._waiting
            if is_late and task.uncancel() <= cancelled_before:
                raise TimeoutError from None
            raise
        finally:
            self._waiting.pop(task, None)

    def _look(self) -> None:
        """Cancel what is late, and look again when the next may be."""
        self._timer = None
        for task, ends_s in list(self._waiting.items()):
            loop = task.get_loop()
            if ends_s > loop.time():
                self._timer = loop.call_at(ends_s, self._look)
                return
            del self._waiting[task]
            task.cancel()
