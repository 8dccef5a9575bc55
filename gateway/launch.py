"""From an admitted request to jobs in the queue: reserve each flight's tokens, then put each, all or nothing.

The reservation's lease covers the gap between the two. Whatever ends a launch half-way, every flight of it is given
back as if it had never been: nothing charged, nothing counted.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import msgspec

from gateway import errors
from gateway.admit import Size, queue_refused, queued_limit
from gateway.auth import Caller
from gateway.dispatch import Dispatcher
from gateway.errors import ApiError, LimitBlock
from gateway.flight import Flight, Mailbox
from gateway.settle import Settlements
from gateway.store import STORE_TROUBLE, Availability
from gateway.telemetry import Telemetry
from quotas.store import AccessDenied, Ask, Denied, QuotaStore, Reservation
from scheduler.messages import Job
from scheduler.outcomes import Outcome
from scheduler.queue_types import LaneFull, TenantQueueFull

_OUTCOMES = {"deadline_exceeded": Outcome.EXPIRED, "internal_error": Outcome.FAILED}
"""How a flight ends by the error that ended it, once it was in the queue; by any other it is cancelled."""
_OUTPUT_LIMITS = frozenset(
    {"tokens_per_minute", "output_tokens_per_minute", "tokens_per_day", "tokens_per_month", "max_output_tokens"}
)
_EXCEEDED_PARAMS = {"max_output_tokens": "max_tokens", "max_prompt_tokens": "prompt"}


@dataclass(frozen=True, slots=True)
class Draft:
    """One flight before its launch: the job with all but its budget."""

    job: Job
    """Its durations count from the request's arrival here; `put` makes them count from its own."""
    size: Size
    model: str
    queue: str
    first_choice: int = 0
    """Index of its choice 0 within the request's answer."""


class Launcher:
    """Sends flights off. Use `launch` as a context: what is still open at its end is cancelled and settled."""

    def __init__(
        self,
        quotas: QuotaStore,
        dispatcher: Dispatcher,
        settlements: Settlements,
        telemetry: Telemetry,
        availability: Availability,
    ) -> None:
        self._quotas = quotas
        self._dispatcher = dispatcher
        self._settlements = settlements
        self._telemetry = telemetry
        self._availability = availability

    @asynccontextmanager
    async def launch(
        self, caller: Caller, drafts: Sequence[Draft], mailbox: Mailbox, arrived_s: float
    ) -> AsyncIterator[list[Flight]]:
        """The drafts' flights, all of them reserved and in the queue. `arrived_s`: on the event loop's clock.

        Raises ApiError where one is refused.
        """
        flights = [_flight(caller, draft, mailbox) for draft in drafts]
        launched = False
        try:
            await self._start(caller, flights, drafts, arrived_s)
            launched = True
            yield flights
        except ApiError as error:
            await self._refuse(caller, flights, error, launched=launched)
            raise
        finally:  # for a launch or a client that was cancelled: nobody waits for this
            for flight in flights:
                self._settlements.hand_over(flight, Outcome.CANCELLED if launched else Outcome.REJECTED)

    async def _refuse(self, caller: Caller, flights: Sequence[Flight], error: ApiError, *, launched: bool) -> None:
        outcome = _OUTCOMES.get(error.code, Outcome.CANCELLED) if launched else Outcome.REJECTED
        caller.statuses = None  # whoever wants to tell them asks again
        for flight in flights:
            if error.code == "quota_store_unavailable":
                self._settlements.hand_over(flight, outcome)
            else:
                await self._settlements.end(flight, outcome)

    async def _start(
        self, caller: Caller, flights: Sequence[Flight], drafts: Sequence[Draft], arrived_s: float
    ) -> None:
        with self._telemetry.span("reserve"):
            for flight, draft in zip(flights, drafts, strict=True):
                flight.reservation = await self._reserve(caller, flight.ask)
                flight.limited_by = _limited_by(draft.size, flight.reservation)
                caller.statuses = list(flight.reservation.statuses)
        for flight, draft in zip(flights, drafts, strict=True):
            elapsed_ms = (asyncio.get_running_loop().time() - arrived_s) * 1e3
            await self._put(flight, _granted(draft.job, flight.reservation, elapsed_ms))

    async def _reserve(self, caller: Caller, ask: Ask) -> Reservation:
        try:
            reservation = await self._quotas.reserve(ask)
        except Denied as denied:
            raise _limit_denied(denied) from denied
        except AccessDenied as denied:
            raise _access_denied(denied) from denied
        except STORE_TROUBLE as error:
            self._availability.failed("reserve", error)
            raise store_unavailable() from error
        self._availability.answered()
        return reservation

    async def _put(self, flight: Flight, job: Job) -> None:
        flight.job = job
        self._dispatcher.register(flight)
        limit = None if flight.reservation is None else queued_limit(flight.reservation.statuses)
        try:
            await self._dispatcher.queue(flight.queue).put(job, tenant_limit=limit)
        except (LaneFull, TenantQueueFull) as full:
            flight.job = None  # nothing was written
            raise queue_refused(full) from full
        except STORE_TROUBLE as error:
            self._availability.failed("put", error)
            raise store_unavailable() from error


def store_unavailable() -> ApiError:
    """The store does not answer in time."""
    return ApiError("The quota store does not answer.", "quota_store_unavailable", retry_after_s=1.0)


def _flight(caller: Caller, draft: Draft, mailbox: Mailbox) -> Flight:
    job = draft.job
    ask = Ask(
        flight_id=job.flight_id,
        root=caller.root,
        tenant=job.tenant,
        key_id=caller.key_id,
        model=draft.model,
        lane=job.lane.value,
        prompt_tokens=draft.size.prompt_tokens,
        max_output_tokens=draft.size.max_tokens,
        n=job.n,
        explicit_max=draft.size.stated,
    )
    return Flight(ask, draft.queue, mailbox, draft.first_choice)


def _granted(job: Job, reservation: Reservation | None, elapsed_ms: float) -> Job:
    """The job with the output that its budget holds, its durations counted from now."""
    granted = job.max_tokens if reservation is None else min(job.max_tokens, reservation.granted_tokens)
    return msgspec.structs.replace(
        job,
        max_tokens=granted,
        granted_until=granted,
        ttft_ms=max(1.0, job.ttft_ms - elapsed_ms),
        deadline_ms=None if job.deadline_ms is None else max(1.0, job.deadline_ms - elapsed_ms),
        hard_ttft_ms=None if job.hard_ttft_ms is None else max(1.0, job.hard_ttft_ms - elapsed_ms),
    )


def _limited_by(size: Size, reservation: Reservation) -> str | None:
    """The name of what cut the output below what the context would leave, where `max_tokens` was not stated."""
    if size.stated or reservation.granted_tokens >= size.max_tokens:
        return size.limited_by
    limits = [status for status in reservation.statuses if not status.shadow and status.name in _OUTPUT_LIMITS]
    per_choice = [s.name for s in limits if s.name == "max_output_tokens" and s.limit == reservation.granted_tokens]
    spent = sorted((status for status in limits if status.name != "max_output_tokens"), key=lambda s: s.remaining)
    return next(iter([*per_choice, *(status.name for status in spent)]), None)


def _limit_denied(denied: Denied) -> ApiError:
    status = denied.status
    block = LimitBlock(
        name=status.name,
        scope=status.scope,
        limit=status.limit,
        used=status.used,
        reserved=status.reserved,
        requested=denied.requested,
        resets_at=status.resets_at,
    )
    param = _EXCEEDED_PARAMS.get(status.name) if denied.kind == "exceeds" else None
    return errors.limit_denied(denied.kind, block, denied.retry_after_s, param)


def _access_denied(denied: AccessDenied) -> ApiError:
    if denied.reason == "suspended":
        return ApiError("This tenant is suspended.", "tenant_suspended")
    return errors.invalid_api_key()
