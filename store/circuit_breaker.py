"""Whether a store answers, kept in one place: after three failures in a row nobody waits for it until it does again.

    closed ──FAILURES in a row──> open: every call fails at once ──a trial call comes through──> closed

The clients of `connections.py` make every call within it. While it is open, a task of the breaker's own makes the trial
calls, so that no request pays for one. One log line per change of state, however many calls fail.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

import redis

from fairlane.store.errors import StoreUnavailable, is_rewriting, lacks_function

log = logging.getLogger(__name__)

FAILURES = 3
TRIAL_EVERY_S = 0.25
LONGEST_WAIT_S = 4.0
STEADY_S = 10.0
"""A store that fails again sooner than this after it came back is tried half as often each time, down to every
LONGEST_WAIT_S: what flaps is left alone, and fills no log."""
COMPLAIN_EVERY_S = 10.0

_TROUBLE = (
    OSError,  # a TimeoutError is one
    redis.ConnectionError,  # also: no connection free in time, LOADING, MASTERDOWN, wrong credentials
    redis.TimeoutError,
    redis.ReadOnlyError,
    redis.OutOfMemoryError,
    redis.exceptions.ClusterDownError,
    redis.exceptions.TryAgainError,
)
_TROUBLE_CODES = frozenset({"BUSY", "MISCONF", "NOREPLICAS", "OOM", "TRYAGAIN", "UNBLOCKED"})
"""First words of error replies that tell of the store as a whole. Any other reply is of one call: the store answers."""


class Availability(Protocol):
    """Whether a store answers."""

    @property
    def is_away(self) -> bool:
        """It does not answer."""


class StoreStanding(Availability, Protocol):
    """What metrics and health checks say of a store."""

    @property
    def is_whole(self) -> bool:
        """It answers, in all its parts."""

    @property
    def openings(self) -> int:
        """How often it was found to be away."""


class StoreAway(StoreUnavailable):
    """The breaker is open: the store was not even asked, so nothing was done."""


class Breaker:
    """The breaker of one store: a context around each call; any number of calls may be within it."""

    def __init__(
        self,
        name: str,
        trial: Callable[[], Awaitable[object]],
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        """`name`: in log lines. `trial`: one bounded call that shows, by not raising, that the store can be written."""
        self._name = name
        self._trial = trial
        self._clock = clock
        self._sleep = sleep
        self._failures = 0
        self._inside = 0
        """Calls that have not ended."""
        self._late = 0
        """Of these at most, those from before it closed: their time may run out although the store answers."""
        self._since_s = 0.0
        """When it last opened."""
        self._closed_s: float | None = None
        self._wait_s = TRIAL_EVERY_S
        self._complained_s: float | None = None
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
        """The call has ended. What still comes in while it is open says nothing: a trial decides. Nor does what was
        asked before it closed."""
        self._inside -= 1
        if error is None:
            self._failures = 0
        elif isinstance(error, redis.RedisError | OSError):
            self._failed(error)
        if self._late > self._inside:
            self._late = self._inside

    async def aclose(self) -> None:
        if self._trying is not None:
            self._trying.cancel()
            await asyncio.gather(self._trying, return_exceptions=True)

    def _failed(self, error: Exception) -> None:
        if not _is_trouble(error):
            self._failures = 0
            self._complain(error)
            return
        if self._late and self._closed_s is not None and self._clock() - self._closed_s < STEADY_S:
            self._late -= 1
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
            except Exception as error:  # noqa: BLE001 - whatever it was, the store has not answered
                log.debug("the %s is still away (%s)", self._name, type(error).__name__)
            else:
                self._close()

    def _close(self) -> None:
        self.is_away, self._failures, self._closed_s = False, 0, self._clock()
        self._late = self._inside
        log.warning("the %s answers again after %.1f s", self._name, self._closed_s - self._since_s)

    def _complain(self, error: Exception) -> None:
        """The store answers and refuses: a defect, or rights that lack. Only the reply's first word is told."""
        if isinstance(error, redis.exceptions.NoScriptError | redis.exceptions.AskError):  # also MOVED: go on there
            return
        if lacks_function(error) or is_rewriting(error):  # the callers expect these
            return
        now_s = self._clock()
        if self._complained_s is None or now_s - self._complained_s >= COMPLAIN_EVERY_S:
            self._complained_s = now_s
            log.error("the %s refuses a call (%s)", self._name, f"{type(error).__name__} {_code(error)}".rstrip())


@dataclass(frozen=True, slots=True)
class Needed:
    """Stores without any of which requests are refused."""

    breakers: tuple[Availability, ...]

    @property
    def is_away(self) -> bool:
        return any(breaker.is_away for breaker in self.breakers)


def _is_trouble(error: Exception) -> bool:
    return isinstance(error, _TROUBLE) or _code(error) in _TROUBLE_CODES


def _code(error: Exception) -> str:
    """The word in capitals that an error reply begins with; empty where there is none."""
    word = str(error).partition(" ")[0]
    return word if word.isupper() else ""
