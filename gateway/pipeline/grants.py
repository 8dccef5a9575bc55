"""How much output a running request may come to: extended before it is used up, so that no token is made uncharged.

A request holds a quantum of its output at a time, and larger ones as it grows. Once a choice has half of the last one
left, the budget is asked for the next, and what it gives goes down to the worker as a Grant. Where a minute is full the
worker pauses at the end of its grant, and the budget is asked again until there is room; where a day or month is spent,
or a pause has lasted too long, the request ends with what it has, by name of the limit.
"""

import asyncio
import logging
import math
from contextlib import suppress

from fairlane.gateway.errors import ApiError
from fairlane.gateway.pipeline.delivery import Dispatcher
from fairlane.gateway.request.live_request import Choice, LiveJob, LiveRequest
from fairlane.quotas.store import AlreadySettled, Extension, Need, QuotaStore
from fairlane.store.errors import STORE_ERRORS

log = logging.getLogger(__name__)

MAX_PAUSE_S = 120.0
"""How long a request waits for a full minute, or for the store, before it ends with what it has."""
LARGEST_QUANTUM = 1_024
"""Output tokens per choice: what is asked for doubles up to this, so that no more is held ahead than has come."""
SOONEST_S, LATEST_S = 0.01, 1.0
"""When to ask again: a paused job that is not heard of for seconds loses its place."""


class OutputGrants:
    """Of one request. `spoken` is called as its client hears tokens; `close` ends all, and may be called twice."""

    def __init__(self, quotas: QuotaStore, dispatcher: Dispatcher, request: LiveRequest, quantum: int) -> None:
        """The request has its reservation. `quantum`: output tokens per choice."""
        reservation = request.reservation
        assert reservation is not None  # noqa: S101 - see above
        self._quotas = quotas
        self._dispatcher = dispatcher
        self._request = request
        self._quantum = quantum
        self._most = reservation.most_tokens
        self._per_choice = reservation.granted_tokens
        self._portion = reservation.granted_tokens - request.ask.start.longest
        """What it got last, per choice: limits may leave less than a quantum."""
        self._granted = request.ask.start.reach(reservation.granted_tokens)
        self._asks_from = self._low()
        """Tokens of a choice from which on the budget is asked for more; infinity: there is no more to ask for."""
        self._asking: asyncio.Task[None] | None = None
        self._used_up = asyncio.Event()
        """A choice has come to the end of its grant since the budget was last asked."""

    def spoken(self, choice: Choice) -> None:
        """A client has heard all of a choice that has arrived."""
        if choice.spoken >= self._per_choice:
            self._used_up.set()
        if choice.spoken >= self._asks_from:
            self._begin()

    def paused(self, job: LiveJob, choice: Choice) -> None:
        """A worker waits at the end of what it knows to be granted. A store that failed over may have lost a grant, and
        the worker that goes on knows no more than the store: it is told again."""
        if choice.published < job.granted:
            job.granted = choice.published
            self._begin()

    def _begin(self) -> None:
        if self._asking is None:
            self._asking = asyncio.get_running_loop().create_task(self._ask())
            self._asking.add_done_callback(self._asked)

    def close(self) -> None:
        """Ask for nothing more."""
        if self._asking is not None:
            self._asking.cancel()

    def _low(self) -> float:
        is_whole = self._per_choice >= self._most
        return math.inf if is_whole else self._per_choice - max(1, self._portion // 2)

    async def _ask(self) -> None:
        """Until what is granted is enough for a while, or nothing more will come."""
        try:
            await self._ask_on()
        finally:  # with the last look at who is low: one that speaks right after it starts anew
            self._asking = None

    async def _ask_on(self) -> None:
        loop = asyncio.get_running_loop()
        waits_since_s, retry_s = loop.time(), 0.0
        while going := self._going():
            self._used_up.clear()
            extension = await self._extend(going) if await self._pass_on() else None
            if extension is not None and self._take(extension):
                waits_since_s = loop.time()
            all_know = await self._pass_on()
            if all_know and all(choice.spoken < self._asks_from for choice in self._going()):
                return
            waited_too_long = loop.time() - waits_since_s >= MAX_PAUSE_S
            if all_know and extension is not None and extension.limited_by and (extension.spent or waited_too_long):
                self._end(extension.limited_by)
                return
            if waited_too_long:
                self._give_up()
                return
            retry_s = 2 * retry_s if extension is None else extension.retry_after_s
            retry_s = min(max(retry_s, SOONEST_S), LATEST_S)
            with suppress(TimeoutError):  # what is used up is charged at once: a minute frees it the sooner
                async with asyncio.timeout(retry_s):
                    await self._used_up.wait()

    async def _extend(self, going: list[Choice]) -> Extension | None:
        """What the budget says; None where the store does not. Asked only once workers know what it said before: it
        would be held for nothing."""
        ended = self._ended()
        need = Need(
            published=sum(choice.spoken for choice in self._choices()),
            prompt_tokens=sum(job.prompt_tokens for job in self._request.jobs if job.begun),
            known=self._granted,
            most=ended + len(going) * self._most,
            unit=len(going),
            ended=ended,
            quantum=self._quantum,
            stuck=any(choice.spoken >= self._per_choice for choice in going),
        )
        try:
            return await self._quotas.extend(self._request.ask.root, self._request.id, need)
        except (*STORE_ERRORS, AlreadySettled):  # settled: it was taken from us, as its renewal says, which ends it
            return None

    def _take(self, extension: Extension) -> bool:
        """Let the worker go on as far as the budget does; whether that is further."""
        self._granted = extension.granted_tokens
        going = len(self._going())
        per_choice = min(self._most, (self._granted - self._ended()) // going) if going else self._per_choice
        if per_choice <= self._per_choice:
            return False
        self._portion, self._per_choice = per_choice - self._per_choice, per_choice
        self._asks_from = self._low()
        self._quantum = max(self._quantum, min(2 * self._quantum, LARGEST_QUANTUM))
        return True

    async def _pass_on(self) -> bool:
        """Tell the workers; whether all of them know."""
        for job in self._request.jobs:
            if job.granted < self._per_choice and not job.told:
                try:
                    await self._dispatcher.queue(job.queue).grant(job.id, self._per_choice)
                except STORE_ERRORS:
                    return False
                job.granted = self._per_choice
        return True

    def _end(self, limited_by: str) -> None:
        """Every choice ends where its grant does: nothing more is asked for."""
        self._most = self._per_choice
        self._asks_from = self._low()
        for job in self._request.jobs:
            job.cut(self._per_choice, limited_by)

    def _give_up(self) -> None:
        for job in self._request.jobs:
            if not job.settled:
                job.fail(ApiError("The budget gave no more tokens in time.", "quota_store_unavailable"))

    def _choices(self) -> list[Choice]:
        return [choice for job in self._request.jobs for choice in job.choices]

    def _going(self) -> list[Choice]:
        """Choices that may still bring tokens."""
        return [choice for choice in self._choices() if choice.finish_reason is None]

    def _ended(self) -> int:
        """Tokens of the others."""
        return sum(choice.counted for choice in self._choices() if choice.finish_reason is not None)

    def _asked(self, asking: asyncio.Task[None]) -> None:
        if not asking.cancelled() and asking.exception() is not None:
            log.error("asking for more tokens failed", exc_info=asking.exception())
            self._give_up()
