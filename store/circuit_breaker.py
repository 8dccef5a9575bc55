"""A circuit breaker for a store: after FAILURES consecutive failures, calls fail at once until a trial call succeeds.

While it is open, the breaker's own task makes the trial calls, so that no request waits for one."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

import redis

from fairlane.store.errors import StoreUnavailable, has_library, is_rewriting, lacks_function

log = logging.getLogger(__name__)

FAILURES = 3
TRIAL_EVERY_S = 0.25
LONGEST_WAIT_S = 4.0
# A store that fails again within this time after its return is flapping: the interval between trials then doubles each
# time, up to LONGEST_WAIT_S, which also limits log lines.
STEADY_S = 10.0
LOG_REFUSALS_EVERY_S = 10.0

_TROUBLE = (
    OSError,  # a TimeoutError is one
    redis.ConnectionError,  # also: no connection free in time, LOADING, MASTERDOWN, wrong credentials
    redis.TimeoutError,
    redis.ReadOnlyError,
    redis.OutOfMemoryError,
    redis.exceptions.ClusterDownError,
    redis.exceptions.TryAgainError,
)
# First words of error replies that concern the whole store. Any other error reply concerns one call: the store answers.
_TROUBLE_CODES = frozenset({"BUSY", "MISCONF", "NOREPLICAS", "OOM", "TRYAGAIN", "UNBLOCKED"})
# Errors that callers handle; AskError includes MOVED.
_EXPECTED = (redis.exceptions.NoScriptError, redis.exceptions.AskError)


class Availability(Protocol):
    """Reports whether a store answers."""

    @property
    def is_away(self) -> bool: ...


class StoreAway(StoreUnavailable):
    """The breaker is open: the call was not sent, so it had no effect."""


class Breaker:
    """One store's breaker: a context manager around each call. Any number of calls may be inside it."""

    def __init__(
        self,
        name: str,
        trial: Callable[[], Awaitable[object]],
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        """`name` appears in log lines. `trial` is one bounded call that succeeds only if the store accepts writes."""
        self._name = name
        self._trial = trial
        self._clock = clock
        self._sleep = sleep
        self._failures = 0
        self._inside = 0
        # Upper bound on the calls that began before the breaker closed: these may still time out although the store
        # answers.
        self._overlapping = 0
        self._since_s = 0.0
        self._closed_s: float | None = None
        self._wait_s = TRIAL_EVERY_S
        self._refusal_logged_s: float | None = None
        self._trying: asyncio.Task[None] | None = None
        self.is_away = False
        self.openings = 0

    @property
    def is_whole(self) -> bool:
        return not self.is_away

    def __enter__(self) -> None:
        if self.is_away:
            raise StoreAway(f"the {self._name} does not answer")
        self._inside += 1

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        """Count the call's outcome; ignore failures while open, and of calls made before the breaker closed."""
        self._inside -= 1
        if error is None:
            self._failures = 0
        elif isinstance(error, redis.RedisError | OSError):
            self._failed(error)
        if self._overlapping > self._inside:
            self._overlapping = self._inside

    async def aclose(self) -> None:
        if self._trying is not None:
            self._trying.cancel()
            await asyncio.gather(self._trying, return_exceptions=True)

    def _failed(self, error: Exception) -> None:
        if not _is_trouble(error):
            self._failures = 0
            self._log_refusal(error)
            return
        if self._overlapping and self._closed_s is not None and self._clock() - self._closed_s < STEADY_S:
            self._overlapping -= 1
            return
        self._failures += 1
        if self._failures >= FAILURES and not self.is_away:
            self._open(error)

    def _open(self, error: Exception) -> None:
        now_s = self._clock()
        is_flapping = self._closed_s is not None and now_s - self._closed_s < STEADY_S
        self._wait_s = min(2 * self._wait_s, LONGEST_WAIT_S) if is_flapping else TRIAL_EVERY_S
        self.is_away, self._since_s = True, now_s
        self.openings += 1
        log.warning("the %s fails (%s): until it answers, calls fail at once", self._name, type(error).__name__)
        self._trying = asyncio.get_running_loop().create_task(self._try(), name=f"trials of the {self._name}")

    async def _try(self) -> None:
        while self.is_away:
            await self._sleep(self._wait_s)
            try:
                await self._trial()
            except Exception as error:  # noqa: BLE001 - whatever the error, the store has not answered
                log.debug("the %s is still unavailable (%s)", self._name, type(error).__name__)
            else:
                self._close()

    def _close(self) -> None:
        self.is_away, self._failures, self._closed_s = False, 0, self._clock()
        self._overlapping = self._inside
        log.warning("the %s answers again after %.1f s", self._name, self._closed_s - self._since_s)

    def _log_refusal(self, error: Exception) -> None:
        # Log a refused call: a defect, or a missing right. Only the reply's first word is logged.
        if isinstance(error, _EXPECTED) or lacks_function(error) or has_library(error) or is_rewriting(error):
            return
        now_s = self._clock()
        if self._refusal_logged_s is None or now_s - self._refusal_logged_s >= LOG_REFUSALS_EVERY_S:
            self._refusal_logged_s = now_s
            log.error("the %s refuses a call (%s)", self._name, f"{type(error).__name__} {_code(error)}".rstrip())


@dataclass(frozen=True, slots=True)
class RequiredStores:
    """Several stores, all of which requests need."""

    breakers: tuple[Availability, ...]

    @property
    def is_away(self) -> bool:
        return any(breaker.is_away for breaker in self.breakers)


def _is_trouble(error: Exception) -> bool:
    return isinstance(error, _TROUBLE) or _code(error) in _TROUBLE_CODES


def _code(error: Exception) -> str:
    word = str(error).partition(" ")[0]
    return word if word.isupper() else ""
