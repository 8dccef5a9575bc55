"""From an admitted request to jobs in the queue: reserve the tokens of all, then put each, all or nothing.

The reservation's lease covers the gap between the two. Whatever ends a launch half-way, all of it is given back as if
it had never been: nothing charged, nothing counted.
"""

import asyncio
from collections.abc import Callable, Sequence

import msgspec

from fairlane.gateway import errors
from fairlane.gateway.auth import Caller
from fairlane.gateway.errors import ApiError, LimitBlock, store_unavailable
from fairlane.gateway.observability.metrics import Telemetry
from fairlane.gateway.requests.admission import Size, queue_refused, queued_limit
from fairlane.gateway.requests.delivery import Dispatcher
from fairlane.gateway.requests.grants import OutputGrants
from fairlane.gateway.requests.request import Booking, Flight, Mailbox
from fairlane.gateway.requests.resume import Earlier, Heads, Wanted, begin, resumption
from fairlane.gateway.requests.settlement import Settlements, outcome_of
from fairlane.gateway.text.tokenizer import TokenStream
from fairlane.quotas.limits import RULES
from fairlane.quotas.store import AccessDenied, Ask, Denied, LimitStatus, QuotaStore, Reservation
from fairlane.scheduler.protocol.messages import Job, Outcome
from fairlane.scheduler.queue.types import LaneFull, TenantQueueFull, Unattainable
from fairlane.store.circuit_breaker import StoreAway
from fairlane.store.connections import STORE_TROUBLE

_PROMPT_LIMITS = frozenset(rule.name for rule in RULES if {"input", "prompt"} & set(rule.counts))
_OUTPUT_LIMITS = frozenset(rule.name for rule in RULES if {"output", "ceiling"} & set(rule.counts))


class JobSpec(msgspec.Struct, frozen=True):
    """One flight before its launch: the job with all but its budget."""

    job: Job
    """Its durations count from the request's arrival here; `put` makes them count from its own."""
    size: Size
    model: str
    queue: str
    prompt_param: str
    """The field that a caller shortens where the prompt is too long."""
    output_param: str
    """The same where it asks for too much output: the field that says how much, else the prompt's."""
    reader: Callable[[], TokenStream]
    """Reads a choice from its first token."""


class Submitter:
    """Sends flights off. Use `launch` as a context: what is still open at its end is cancelled and settled."""

    def __init__(
        self,
        quotas: QuotaStore,
        dispatcher: Dispatcher,
        settlements: Settlements,
        telemetry: Telemetry,
        *,
        quantum: int,
        earlier: Earlier,
    ) -> None:
        """`quantum`: output tokens per choice that a progressive request holds at a time."""
        self._earlier = earlier
        self._quantum = quantum
        self._quotas = quotas
        self._dispatcher = dispatcher
        self._settlements = settlements
        self._telemetry = telemetry

    def launch(self, caller: Caller, drafts: Sequence[JobSpec], mailbox: Mailbox, arrived_s: float) -> "Launch":
        """The drafts' flights on their way. `arrived_s`: on the event loop's clock."""
        return Launch(self, caller, self._book(caller, drafts, mailbox), drafts, arrived_s)

    def _book(self, caller: Caller, drafts: Sequence[JobSpec], mailbox: Mailbox) -> Booking:
        """The request's booking; nothing is held by it yet."""
        first = drafts[0]
        ask = Ask(
            flight_id=first.job.flight_id,
            root=caller.root,
            tenant=first.job.tenant,
            key_id=caller.key_id,
            model=first.model,
            lane=first.job.lane,
            prompts=tuple([draft.size.prompt_tokens for draft in drafts]),
            max_output_tokens=max([draft.size.max_tokens for draft in drafts]),
            n=first.job.n,
            explicit_max=first.size.stated,
            once=caller.once,
            quantum=self._quantum if caller.identity.tenant.reserve == "progressive" else None,
        )
        booking = Booking(ask, caller.identity.tenant.created_at)
        booking.flights = [
            Flight(
                draft.job.flight_id,
                booking,
                draft.size.prompt_tokens,
                draft.queue,
                mailbox,
                first_choice=number * first.job.n,
            )
            for number, draft in enumerate(drafts)
        ]
        return booking

    async def end(self, caller: Caller, booking: Booking, error: BaseException | None, *, launched: bool) -> None:
        """What is still open of a booking ends, by the error that ended it; settled first where that can be told."""
        if booking.allowance is not None:
            booking.allowance.close()
        try:
            if isinstance(error, ApiError):
                await self._refuse(caller, booking, error, launched=launched)
        finally:  # for a launch or a client that was cancelled: nobody waits for this
            self._settlements.hand_over(booking, Outcome.CANCELLED if launched else Outcome.REJECTED)
        if error is None and booking.settled:
            caller.statuses = booking.statuses  # what was reserved and not used is free again

    async def _refuse(self, caller: Caller, booking: Booking, error: ApiError, *, launched: bool) -> None:
        outcome = outcome_of(error) if launched else Outcome.REJECTED
        if error.code == "quota_store_unavailable":
            self._settlements.hand_over(booking, outcome)
        else:
            await self._settlements.end(booking, outcome)
        caller.statuses = booking.statuses  # where the store has not said, whoever wants to tell them asks

    async def start(self, caller: Caller, booking: Booking, drafts: Sequence[JobSpec], arrived_s: float) -> None:
        """Reserve the tokens of all drafts, then put each. Raises ApiError."""
        heads = await self._heads(caller, drafts)
        if heads:
            start = resumption((draft.job, own) for draft, own in zip(drafts, heads, strict=True))
            booking.ask = msgspec.structs.replace(booking.ask, resumption=start)
        with self._telemetry.span("reserve"):
            booking.reservation = reservation = await self._reserve(booking, drafts[0])
            caller.statuses = reservation.statuses
        if reservation.shadowed:
            self._telemetry.shadowed(caller.tenant_id, reservation.shadowed)
        if reservation.granted_tokens < reservation.most_tokens and booking.ask.start.going:
            booking.allowance = OutputGrants(self._quotas, self._dispatcher, booking, self._quantum)
        for flight, draft, own in zip(booking.flights, drafts, heads or [()] * len(drafts), strict=True):
            flight.limited_by = _limited_by(draft.size, reservation)
            flight.granted = reservation.granted_tokens
            elapsed_ms = (asyncio.get_running_loop().time() - arrived_s) * 1e3
            job = _granted(draft.job, reservation, elapsed_ms)
            if not begin(flight, job, own):
                await self._put(flight, job, reservation, own)

    async def _heads(self, caller: Caller, drafts: Sequence[JobSpec]) -> Sequence[Heads]:
        """What the choices of each begin with; empty: with nothing."""
        if caller.once is None or not caller.runs:
            return ()
        wanted = [Wanted(job=draft.job, queue=draft.queue, reader=draft.reader) for draft in drafts]
        try:
            return await self._earlier.heads(caller.root, caller.once, caller.runs, wanted)
        except STORE_TROUBLE as error:
            raise store_unavailable() from error

    async def _reserve(self, booking: Booking, draft: JobSpec) -> Reservation:
        ask = booking.ask
        try:
            return await self._quotas.reserve(ask)
        except (Denied, AccessDenied) as denied:
            if not denied.may_be_stored:
                booking.flights = []  # nothing was written, so nothing has to be given back
            if isinstance(denied, AccessDenied):
                raise _access_denied(denied) from denied
            raise _limit_denied(denied, _exceeded_param(denied.status, ask, draft)) from denied
        except StoreAway as error:
            booking.flights = []  # as above: nothing was asked
            raise store_unavailable() from error
        except STORE_TROUBLE as error:
            raise store_unavailable() from error

    async def _put(self, flight: Flight, job: Job, reservation: Reservation, heads: Heads) -> None:
        flight.job, flight.queued_s = job, asyncio.get_running_loop().time()
        self._dispatcher.register(flight)
        limit = None if job.follows else queued_limit(reservation.statuses)
        try:
            queue = self._dispatcher.queue(flight.queue)
            generated = [head.token_ids for head in heads]
            put = await queue.put(job, tenant_limit=None if limit is None else limit.limit, generated=generated)
        except (LaneFull, TenantQueueFull, Unattainable) as full:
            flight.job = None  # nothing was written
            raise queue_refused(full, "tenant" if limit is None else limit.scope) from full
        except StoreAway as error:
            flight.job = None  # as above
            raise store_unavailable() from error
        except STORE_TROUBLE as error:
            raise store_unavailable() from error
        if job.guaranteed and not put.guaranteed:
            flight.job = msgspec.structs.replace(job, guaranteed=False)
            self._dispatcher.demote(flight)
        self._dispatcher.placed(flight, put.position)


class Launch:
    """Flights of one request as a context: at its beginning all are reserved and in the queue, at its end none is open.

    A class of its own, not a generator: it is entered once for each request.
    """

    __slots__ = ("_arrived_s", "_booking", "_caller", "_drafts", "_launcher")

    def __init__(
        self, launcher: Submitter, caller: Caller, booking: Booking, drafts: Sequence[JobSpec], arrived_s: float
    ) -> None:
        self._launcher = launcher
        self._caller = caller
        self._drafts = drafts
        self._booking = booking
        self._arrived_s = arrived_s

    async def __aenter__(self) -> list[Flight]:
        """Raises ApiError where one is refused."""
        try:
            await self._launcher.start(self._caller, self._booking, self._drafts, self._arrived_s)
        except BaseException as error:
            await self._launcher.end(self._caller, self._booking, error, launched=False)
            raise
        return self._booking.flights

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        await self._launcher.end(self._caller, self._booking, error, launched=True)


def _granted(job: Job, reservation: Reservation, elapsed_ms: float) -> Job:
    """The job with the output that its budget holds, its durations counted from now."""
    most = min(job.max_tokens, reservation.most_tokens)
    return msgspec.structs.replace(
        job,
        max_tokens=most,
        granted_until=min(most, reservation.granted_tokens),
        ttft_ms=max(1.0, job.ttft_ms - elapsed_ms),
        deadline_ms=None if job.deadline_ms is None else max(1.0, job.deadline_ms - elapsed_ms),
        hard_ttft_ms=None if job.hard_ttft_ms is None else max(1.0, job.hard_ttft_ms - elapsed_ms),
    )


def _limited_by(size: Size, reservation: Reservation) -> str | None:
    """The name of what cut the output below what the context would leave, where `max_tokens` was not stated."""
    if size.stated or reservation.most_tokens >= size.max_tokens:
        return size.limited_by
    limits = [status for status in reservation.statuses if not status.shadow and status.name in _OUTPUT_LIMITS]
    per_choice = [s.name for s in limits if s.name == "max_output_tokens" and s.limit == reservation.most_tokens]
    spent = sorted((status for status in limits if status.name != "max_output_tokens"), key=lambda s: s.remaining)
    return next(iter([*per_choice, *(status.name for status in spent)]), None)


def _exceeded_param(status: LimitStatus, ask: Ask, draft: JobSpec) -> str | None:
    """What to shorten where the limit can never be kept; None where the request as such is too much."""
    is_of_prompt = status.name in _PROMPT_LIMITS
    if status.name in _OUTPUT_LIMITS and not (is_of_prompt and ask.prompt_tokens >= status.limit):
        return draft.output_param
    return draft.prompt_param if is_of_prompt else None


def _limit_denied(denied: Denied, exceeded_param: str | None) -> ApiError:
    block = LimitBlock.of(denied.status, denied.requested)
    param = exceeded_param if denied.kind == "exceeds" else None
    return errors.limit_denied(denied.kind, block, denied.retry_after_s, param)


def _access_denied(denied: AccessDenied) -> ApiError:
    if denied.reason == "suspended":
        return ApiError("This tenant is suspended.", "tenant_suspended")
    return errors.invalid_api_key()
