"""Retries while the store is away: calls repeated with back-off, and work repeated at intervals."""

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TypeVar

from fairlane.store.errors import STORE_ERRORS

log = logging.getLogger(__name__)

FIRST_DELAY_S = 0.02
LONGEST_DELAY_S = 1.0
T = TypeVar("T")


class StoreLink:
    """One process's view of the store's availability: the store counts as away from the first failed call until every
    kind of call that failed has succeeded again."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._failing: set[str] = set()
        self._away_since = 0.0
        self._jitter = random.Random()
        # Set whenever the store returns; the consumer clears it.
        self.returned = asyncio.Event()

    async def persist(self, what: str, call: Callable[[], Awaitable[T]]) -> T:
        """Repeat an idempotent call until the store answers or the caller is cancelled. `what` names it in the log."""
        delay_s = FIRST_DELAY_S
        while True:
            try:
                async with asyncio.timeout(self._timeout_s):
                    answer = await call()
            except STORE_ERRORS as error:
                self.failed(what, error)
                await asyncio.sleep(delay_s * self._jitter.uniform(0.5, 1.0))
                delay_s = min(2 * delay_s, LONGEST_DELAY_S)
            else:
                self.answered(what)
                return answer

    def failed(self, what: str, error: BaseException) -> None:
        if not self._failing:
            self._away_since = time.monotonic()
            log.warning("the store fails at %s (%s): calls are retried until it answers", what, type(error).__name__)
        self._failing.add(what)

    def answered(self, what: str) -> None:
        if what not in self._failing:
            return
        self._failing.discard(what)
        if not self._failing:
            log.warning("the store answers again after %.1f s", time.monotonic() - self._away_since)
            self.returned.set()


async def until_answered(call: Callable[[], Awaitable[T]]) -> T:
    """Repeat an idempotent call until the store answers or the caller is cancelled."""
    delay_s = FIRST_DELAY_S
    while True:
        try:
            return await call()
        except STORE_ERRORS:
            await asyncio.sleep(delay_s)
            delay_s = min(2 * delay_s, LONGEST_DELAY_S)


async def every(
    period_s: float, what: str, work: Callable[[], Awaitable[object]], *, woken: asyncio.Event | None = None
) -> None:
    """Run `work` every `period_s` until cancelled, and at once when `woken` is set.

    A failed round is logged under the name `what` and does not end the loop."""
    woken = woken or asyncio.Event()
    while True:
        try:
            await work()
        except STORE_ERRORS as error:
            log.debug("%s waits for the store (%s)", what, type(error).__name__)  # a Breaker logs it once, as a warning
        except Exception:  # a defect in one round must not end work that every request relies on
            log.exception("%s failed", what)
        with suppress(TimeoutError):
            async with asyncio.timeout(period_s):
                await woken.wait()
        woken.clear()
