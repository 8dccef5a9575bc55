"""The deadlines of one running request: stated ones, and the longest wait in the queue."""

import math
from collections.abc import Callable, Sequence

from fairlane.gateway.errors import ApiError
from fairlane.gateway.request.live_request import LiveJob
from fairlane.gateway.request.service_level import ServiceLevel
from fairlane.scheduler.queue.redis_queue import RedisQueue
from fairlane.scheduler.queue.types import JobState
from fairlane.store.errors import STORE_ERRORS


class Deadlines:
    """The times at which a request has to end, and the errors that end it."""

    __slots__ = ("_all_begun", "_arrived_s", "_jobs", "_level", "_max_wait_over", "_queue")

    def __init__(
        self, level: ServiceLevel, arrived_s: float, jobs: Sequence[LiveJob], queue: Callable[[str], RedisQueue]
    ) -> None:
        """`arrived_s` is on the event loop's clock. `queue` returns a queue by name."""
        self._level, self._arrived_s, self._jobs, self._queue = level, arrived_s, jobs, queue
        self._max_wait_over = self._all_begun = False

    def next_s(self) -> float:
        level = self._level
        due_ms = math.inf if level.deadline_ms is None else level.deadline_ms
        if self._await_first_tokens():
            first_ms = math.inf if level.hard_ttft_ms is None else level.hard_ttft_ms
            due_ms = min(due_ms, first_ms, math.inf if self._max_wait_over else level.max_wait_ms)
        return self._arrived_s + due_ms / 1e3

    async def check(self, now_s: float) -> None:
        """Raise ApiError `deadline_exceeded` if a deadline has passed."""
        level, waited_ms = self._level, (now_s - self._arrived_s) * 1e3
        if level.deadline_ms is not None and waited_ms >= level.deadline_ms:
            raise deadline_exceeded(f"it was not done within {level.deadline_ms:g} ms")
        if not self._await_first_tokens():
            return
        if level.hard_ttft_ms is not None and waited_ms >= level.hard_ttft_ms:
            raise deadline_exceeded(f"there was no token within {level.hard_ttft_ms:g} ms")
        if waited_ms >= level.max_wait_ms and not self._max_wait_over:
            if await self._still_queued():
                raise deadline_exceeded(f"it waited in the queue for {level.max_wait_ms:g} ms")
            self._max_wait_over = True

    def _await_first_tokens(self) -> bool:
        """Return whether a job has no token. The result is kept once it is False, since it is asked for each token."""
        self._all_begun = self._all_begun or not [job for job in self._jobs if not job.begun]
        return not self._all_begun

    async def _still_queued(self) -> bool:
        try:
            records = [await self._queue(job.queue).record(job.id) for job in self._jobs if not job.begun]
        except STORE_ERRORS:
            return False
        return any(record is not None and record.state is JobState.QUEUED for record in records)


def deadline_exceeded(why: str) -> ApiError:
    """Return the error for a request that ended at a deadline."""
    return ApiError(f"The request has ended: {why}.", "deadline_exceeded")
