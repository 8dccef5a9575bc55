"""Progressive reservation: extends the output granted to a running request before it is used up.

When a choice has half of its last quantum left, the next one is reserved and sent to the worker as a grant. If a limit
per minute is full, the worker pauses at the end of its grant until there is room."""

import asyncio
import logging
import math
from contextlib import suppress

from fairlane.gateway.errors import ApiError
from fairlane.gateway.request.live_request import Choice, LiveRequest
from fairlane.quotas.store import AlreadySettled, Extension, Need, QuotaStore, Reservation
from fairlane.store.errors import STORE_ERRORS

log = logging.getLogger(__name__)

# Maximum wait for a spent minute limit or the store, before the request ends with the output so far.
MAX_PAUSE_S = 120.0
# Output tokens per choice. Quanta double up to this: a request never reserves more in advance than it has received.
LARGEST_QUANTUM = 1_024
# Bounds of the retry time. A paused request that does not retry for seconds loses its place.
SOONEST_S, LATEST_S = 0.01, 1.0


class OutputGrants:
    """Extends one request. `sent` is called when its client receives tokens; `close` may be called twice."""

    def __init__(self, quotas: QuotaStore, request: LiveRequest, reservation: Reservation, quantum: int) -> None:
        self._quotas = quotas
        self._request = request
        self._quantum = quantum
        self._most = reservation.most_tokens
        self._per_choice = reservation.granted_tokens
        # Size of the last extension per choice; limits may allow less than a quantum.
        self._portion = reservation.granted_tokens - request.ask.start.longest
        self._granted = request.ask.start.reach(reservation.granted_tokens)
        # Tokens of a choice at which the next part is reserved; infinity if no more can be.
        self._asks_from = self._low()
        self._asking: asyncio.Task[None] | None = None
        self._used_up = asyncio.Event()

    def sent(self, choice: Choice) -> None:
        if choice.sent >= self._per_choice:
            self._used_up.set()
        if choice.sent >= self._asks_from:
            self._begin()

    def _begin(self) -> None:
        if self._asking is None:
            self._asking = asyncio.get_running_loop().create_task(self._ask())
            self._asking.add_done_callback(self._asked)

    def close(self) -> None:
        if self._asking is not None:
            self._asking.cancel()

    def _low(self) -> float:
        is_whole = self._per_choice >= self._most
        return math.inf if is_whole else self._per_choice - max(1, self._portion // 2)

    async def _ask(self) -> None:
        try:
            await self._ask_on()
        finally:  # in the same step as the last check, so that later tokens start a new task
            self._asking = None

    async def _ask_on(self) -> None:
        loop = asyncio.get_running_loop()
        waits_since_s, retry_s = loop.time(), 0.0
        while going := self._going():
            self._used_up.clear()
            extension = await self._extend(going)
            if extension is not None and self._take(extension):
                waits_since_s = loop.time()
                self._pass_on()
            if all(choice.sent < self._asks_from for choice in self._going()):
                return
            waited_too_long = loop.time() - waits_since_s >= MAX_PAUSE_S
            if extension is not None and extension.limited_by and (extension.spent or waited_too_long):
                self._end(extension.limited_by)
                return
            if waited_too_long:
                self._give_up()
                return
            retry_s = 2 * retry_s if extension is None else extension.retry_after_s
            retry_s = min(max(retry_s, SOONEST_S), LATEST_S)
            with suppress(TimeoutError):  # charge used output at once, so that it leaves the minute's window sooner
                async with asyncio.timeout(retry_s):
                    await self._used_up.wait()

    async def _extend(self, going: list[Choice]) -> Extension | None:
        ended = self._ended()
        need = Need(
            published=sum(choice.sent for choice in self._choices()),
            prompt_tokens=sum(job.prompt_tokens for job in self._request.jobs if job.begun),
            known=self._granted,
            most=ended + len(going) * self._most,
            unit=len(going),
            ended=ended,
            quantum=self._quantum,
            stuck=any(choice.sent >= self._per_choice for choice in going),
        )
        try:
            return await self._quotas.extend(self._request.ask.root, self._request.id, need)
        except (*STORE_ERRORS, AlreadySettled):  # settled by another gateway: the next renewal ends the request
            return None

    def _take(self, extension: Extension) -> bool:
        self._granted = extension.granted_tokens
        going = len(self._going())
        per_choice = min(self._most, (self._granted - self._ended()) // going) if going else self._per_choice
        if per_choice <= self._per_choice:
            return False
        self._portion, self._per_choice = per_choice - self._per_choice, per_choice
        self._asks_from = self._low()
        self._quantum = max(self._quantum, min(2 * self._quantum, LARGEST_QUANTUM))
        return True

    def _pass_on(self) -> None:
        for job in self._request.jobs:
            if job.granted < self._per_choice and not job.is_complete:
                job.granted = self._per_choice
                if job.stream is not None:  # else its next holder is told when it opens the job
                    job.stream.grant(job.granted_until)

    def _end(self, limited_by: str) -> None:
        self._most = self._per_choice
        self._asks_from = self._low()
        for job in self._request.jobs:
            job.cut(self._per_choice, limited_by)

    def _give_up(self) -> None:
        for job in self._request.jobs:
            if not job.settled:
                job.fail(ApiError("No more tokens could be reserved in time.", "quota_store_unavailable"))

    def _choices(self) -> list[Choice]:
        return [choice for job in self._request.jobs for choice in job.choices]

    def _going(self) -> list[Choice]:
        return [choice for choice in self._choices() if choice.finish_reason is None]

    def _ended(self) -> int:
        return sum(choice.counted for choice in self._choices() if choice.finish_reason is not None)

    def _asked(self, asking: asyncio.Task[None]) -> None:
        if not asking.cancelled() and asking.exception() is not None:
            log.error("extending a reservation failed", exc_info=asking.exception())
            self._give_up()
