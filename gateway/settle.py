"""The end of every flight: exactly one settlement, whatever becomes of the client, the worker or the store.

Settlements run in tasks of their own, so that no cancelled request takes its settlement along. While the store is
away they wait for it; what this process leaves undone at its end is found by a reaper when its lease has run out.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from gateway.dispatch import Dispatcher
from gateway.flight import Flight
from gateway.store import STORE_TROUBLE, Availability
from gateway.telemetry import Telemetry
from quotas.store import Charge, QuotaStore
from scheduler.outcomes import Outcome
from scheduler.queue_types import JobState

log = logging.getLogger(__name__)

INLINE_S = 0.5
"""How long an answer waits for its settlement, so that who reads it and then asks for the quota finds it booked."""
FIRST_DELAY_S, LONGEST_DELAY_S = 0.05, 2.0

T = TypeVar("T")


class Settlements:
    """Ends flights. Each flight is ended once: later calls for it do nothing."""

    def __init__(
        self,
        quotas: QuotaStore,
        dispatcher: Dispatcher,
        telemetry: Telemetry,
        availability: Availability,
        *,
        confirm_s: float,
    ) -> None:
        """`confirm_s`: how long a holder has to confirm a cancellation before the job's record decides."""
        self._quotas = quotas
        self._dispatcher = dispatcher
        self._telemetry = telemetry
        self._availability = availability
        self._confirm_s = confirm_s
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def in_hand(self) -> int:
        """Settlements that have not come through yet."""
        return len(self._tasks)

    async def settle(self, flight: Flight, outcome: Outcome) -> None:
        """A flight that ended by itself: charge what was counted. Waits for the store at most INLINE_S."""
        if flight.finished is None:  # all was told before the worker was done: a stop string
            self._spawn(self._cancel(flight))
        await self._wait(self._begin(flight, lambda: self._known(flight, outcome)))

    async def end(self, flight: Flight, outcome: Outcome) -> None:
        """A flight that has to end: cancel it, charge what was published. Waits for that at most INLINE_S."""
        await self._wait(self._begin(flight, lambda: self._learn(flight, outcome)))

    def hand_over(self, flight: Flight, outcome: Outcome) -> None:
        """As `end`, and nobody waits for it."""
        self._begin(flight, lambda: self._learn(flight, outcome))

    async def aclose(self, timeout_s: float) -> None:
        """Let what is in hand come through for so long; the rest is left to a reaper."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=timeout_s)
        if self._tasks:
            log.warning("%d settlements are left to a reaper", len(self._tasks))
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _begin(self, flight: Flight, charge: Callable[[], Awaitable[Charge]]) -> asyncio.Task[None] | None:
        if flight.settled:
            return None
        flight.settled = True
        return self._spawn(self._carry_out(flight, charge))

    async def _carry_out(self, flight: Flight, learn: Callable[[], Awaitable[Charge]]) -> None:
        try:
            with self._telemetry.span("settle"):
                charge = await learn()
                await self._persist("settle", lambda: self._quotas.settle(flight.ask.root, flight.id, charge))
        except BaseException:
            self._dispatcher.abandon(flight)
            raise
        self._dispatcher.release(flight)
        if not charge.is_refund:
            self._telemetry.charged(flight.ask.tenant, flight.ask.lane, charge)

    async def _known(self, flight: Flight, outcome: Outcome) -> Charge:
        return flight.charge(outcome)

    async def _learn(self, flight: Flight, outcome: Outcome) -> Charge:
        """Cancel the job and find out what it came to."""
        if flight.job is None:
            return Charge.refund()
        if flight.finished is None:
            queue = self._dispatcher.queue(flight.queue)
            record = await self._persist("cancel", lambda: queue.cancel(flight.id))
            if record is None and not flight.begun:
                return Charge.refund()  # it never got into the queue
            if record is not None and record.state is not JobState.ENDED:
                await self._confirmed(flight)
                record = await self._persist("record", lambda: queue.record(flight.id))
            flight.over = record is not None and record.state is JobState.ENDED
            recorded = record.generated if record is not None else ()
            taken = record is None or record.epoch > 0
            return flight.charge(outcome, recorded=recorded, taken=taken)
        ended_well = flight.finished.outcome is Outcome.FINISHED and outcome is not Outcome.REJECTED
        return flight.charge(Outcome.FINISHED if ended_well else outcome, taken=flight.finished.epoch > 0)

    async def _confirmed(self, flight: Flight) -> None:
        try:
            async with asyncio.timeout(self._confirm_s):
                await flight.ended.wait()
        except TimeoutError:
            log.warning("no worker confirmed the cancellation of flight %s; its record decides", flight.id)

    async def _cancel(self, flight: Flight) -> None:
        queue = self._dispatcher.queue(flight.queue)
        await self._persist("cancel", lambda: queue.cancel(flight.id))

    async def _persist(self, what: str, call: Callable[[], Awaitable[T]]) -> T:
        """Repeat an idempotent call until the store answers."""
        delay_s = FIRST_DELAY_S
        while True:
            try:
                answer = await call()
            except STORE_TROUBLE as error:
                self._availability.failed(what, error)
                await asyncio.sleep(delay_s)
                delay_s = min(2 * delay_s, LONGEST_DELAY_S)
            else:
                self._availability.answered()
                return answer

    def _spawn(self, work: Awaitable[None]) -> asyncio.Task[None]:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("a settlement failed; a reaper will do it", exc_info=task.exception())

    async def _wait(self, task: asyncio.Task[None] | None) -> None:
        if task is not None:
            await asyncio.wait({task}, timeout=INLINE_S)
