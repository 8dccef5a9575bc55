"""Submits an admitted request: reserves the tokens of all jobs, then enqueues each, all or nothing.

The reservation's lease covers the gap between the two. An incomplete submission is fully rolled back: nothing is
charged or counted."""

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from fairlane.gateway import errors
from fairlane.gateway.errors import ApiError, LimitBlock, store_unavailable
from fairlane.gateway.identity.auth import Caller
from fairlane.gateway.insight.telemetry.metrics import Telemetry
from fairlane.gateway.insight.telemetry.tracing import Value
from fairlane.gateway.pipeline.admission import queue_refused, queued_limit
from fairlane.gateway.pipeline.delivery import Dispatcher
from fairlane.gateway.pipeline.grants import OutputGrants
from fairlane.gateway.pipeline.job_message import job_message
from fairlane.gateway.pipeline.prepare import Plan
from fairlane.gateway.pipeline.prices import KnownPrices
from fairlane.gateway.pipeline.resume import Earlier, Heads, begin, resumption
from fairlane.gateway.pipeline.settlement import Settlements, outcome_of
from fairlane.gateway.request.live_request import LiveJob, LiveRequest
from fairlane.quotas.limits import OUTPUT_LIMITS, RULES, LimitStatus, Prices
from fairlane.quotas.store import AccessDenied, Ask, Denied, Once, QuotaStore, Reservation
from fairlane.scheduler.protocol.messages import Job, Outcome
from fairlane.scheduler.queue.prefix_affinity import prefix_keys
from fairlane.scheduler.queue.shards import shard_for
from fairlane.scheduler.queue.types import LaneFull, TenantQueueFull, Unattainable
from fairlane.store.circuit_breaker import StoreAway
from fairlane.store.errors import STORE_ERRORS

_RULES = {rule.name: rule for rule in RULES}
_PROMPT_LIMITS = frozenset(rule.name for rule in RULES if {"input", "prompt", "spend"} & set(rule.counts))


@dataclass(eq=False)
class Submitter:
    """Submits plans as requests with enqueued jobs, and ends them.

    `quantum`: output tokens per choice that a progressive request reserves at a time."""

    quotas: QuotaStore
    dispatcher: Dispatcher
    settlements: Settlements
    telemetry: Telemetry
    prices: KnownPrices
    quantum: int
    earlier: Earlier

    async def submit(self, caller: Caller, plan: Plan, arrived_s: float) -> LiveRequest:
        """Reserve and enqueue all jobs of a plan. The caller must end the returned request with `end`.

        If a job is rejected, all of them are ended before ApiError is raised."""
        try:
            prices = await self.prices.of(plan.model.name, plan.asked[0].lane)
        except STORE_ERRORS as error:
            raise store_unavailable() from error
        request = self._open(caller, plan, prices)
        try:
            heads = await self._heads(caller, caller.once, request, plan) if caller.once and caller.runs else ()
            reservation = await self._reserve(caller, request, plan)
            for number, job in enumerate(request.jobs):
                job.limited_by = _limited_by(plan.asked[number].max_tokens, plan, reservation, prices)
                job.granted = reservation.granted_tokens
                elapsed_ms = (asyncio.get_running_loop().time() - arrived_s) * 1e3
                message = job_message(caller, plan, number, self.dispatcher, reservation, elapsed_ms)
                own = heads[number] if heads else ()
                if not begin(job, message, own):
                    await self._put(job, message, reservation, own)
        except BaseException as error:
            if isinstance(error, ApiError):
                error.asked = request.ask.model, request.ask.prompt_tokens
            await self.end(caller, request, error, submitted=False)
            raise
        return request

    async def end(
        self, caller: Caller, request: LiveRequest, error: BaseException | None = None, *, submitted: bool = True
    ) -> None:
        """End a request's open jobs with the outcome of an error, settling it before an error response if possible."""
        if request.grants is not None:
            request.grants.close()
        try:
            if isinstance(error, ApiError):
                outcome = outcome_of(error) if submitted else Outcome.REJECTED
                if error.code == "quota_store_unavailable":
                    self.settlements.hand_over(request, outcome)
                else:
                    await self.settlements.end(request, outcome)
                caller.statuses = request.statuses  # None if the store has not answered: they are read when needed
        finally:  # also for a cancelled submission or client, which cannot wait
            if request.jobs:
                self.settlements.hand_over(request, Outcome.CANCELLED if submitted else Outcome.REJECTED)
        if error is None and request.settled:
            caller.statuses = request.statuses  # without the unused part of the reservation

    def _open(self, caller: Caller, plan: Plan, prices: Prices) -> LiveRequest:
        asked = plan.asked
        ask = Ask(
            reservation_id=plan.ids[0],
            root=caller.root,
            tenant=caller.tenant_id,
            incarnation=caller.identity.tenant.incarnation,
            key_id=caller.key_id,
            model=plan.model.name,
            lane=asked[0].lane,
            prompts=tuple([each.prompt_tokens for each in asked]),
            max_output_tokens=max([each.max_tokens for each in asked]),
            n=asked[0].choices,
            explicit_max=asked[0].max_tokens_stated,
            once=caller.once,
            is_batch=caller.batch_due_ms is not None,
            quantum=self.quantum if caller.identity.tenant.reserve == "progressive" else None,
            prices=prices,
        )
        request = LiveRequest(ask, caller.identity.tenant.created_at)
        shard = shard_for(plan.model.queue, ask.root)
        request.jobs = [
            LiveJob(job_id, request, each.prompt_tokens, shard, first_choice=number * ask.n)
            for number, (job_id, each) in enumerate(zip(plan.ids, asked, strict=True))
        ]
        return request

    async def _heads(self, caller: Caller, once: Once, request: LiveRequest, plan: Plan) -> Sequence[Heads]:
        messages = [job_message(caller, plan, number, self.dispatcher) for number in range(len(plan.ids))]
        try:
            heads = await self.earlier.heads(caller, once, plan, messages)
        except STORE_ERRORS as error:
            raise store_unavailable() from error
        if heads:
            start = resumption(zip(messages, heads, strict=True))
            request.ask = msgspec.structs.replace(request.ask, resumption=start)
        return heads

    async def _reserve(self, caller: Caller, request: LiveRequest, plan: Plan) -> Reservation:
        with self.telemetry.span("reserve") as span:
            try:
                reservation = await self.quotas.reserve(request.ask)
            except (Denied, AccessDenied) as denied:
                if not denied.may_be_stored:
                    request.jobs = []  # nothing was written, so there is nothing to undo
                refused = _refused(denied, request.ask, plan)
                span.set({"fairlane.limit": None if refused.limit is None else refused.limit.name})
                try:
                    raise refused from denied
                finally:
                    del refused  # breaks the cycle through its traceback's frame, which holds the request
            except StoreAway as error:
                request.jobs = []  # as above: the store was not reached
                raise store_unavailable() from error
            except STORE_ERRORS as error:
                raise store_unavailable() from error
            caller.statuses = reservation.statuses
            if span.is_recording:
                span.set(_span_attributes(reservation))
        if reservation.shadowed:
            self.telemetry.shadowed(caller.tenant_id, reservation.shadowed)
        if reservation.granted_tokens < reservation.most_tokens and request.ask.start.going:
            request.grants = OutputGrants(self.quotas, request, reservation, self.quantum)
        return reservation

    async def _put(self, job: LiveJob, message: Job, reservation: Reservation, heads: Heads) -> None:
        job.message, job.queued_s = message, asyncio.get_running_loop().time()
        self.dispatcher.register(job)
        limit = None if message.follows else queued_limit(reservation.statuses)
        try:
            queue = self.dispatcher.queue(job.queue)
            generated = sum(len(head.token_ids) for head in heads) if heads else 0
            most = None if limit is None else limit.limit
            prefixes = prefix_keys(message)
            put = await queue.put(message, tenant_limit=most, prefixes=prefixes, generated=generated)
        except (LaneFull, TenantQueueFull, Unattainable) as full:
            job.message = None  # nothing was written
            raise queue_refused(full, "tenant" if limit is None else limit.scope) from full
        except StoreAway as error:
            job.message = None  # nothing was written: the store was not reached
            raise store_unavailable() from error
        except STORE_ERRORS as error:
            raise store_unavailable() from error
        if message.guaranteed and not put.guaranteed:
            job.message = msgspec.structs.replace(message, guaranteed=False)
            self.dispatcher.open_requests.demoted(job)
        job.place = put.position
        self.dispatcher.open_requests.placed(job, put.position)
        if put.called:
            self.dispatcher.watch(job)


def _span_attributes(reservation: Reservation) -> dict[str, Value | None]:
    limits = [status for status in reservation.statuses if not status.shadow and status.limit]
    attributes: dict[str, Value | None] = {
        "fairlane.granted_tokens": reservation.granted_tokens,
        "fairlane.most_tokens": reservation.most_tokens,
    }
    if limits:
        tightest = min(limits, key=lambda status: status.remaining / status.limit)
        attributes |= {
            "fairlane.limit": tightest.name,
            "fairlane.limit.scope": tightest.scope,
            "fairlane.limit.remaining": tightest.remaining,
        }
    return attributes


def _limited_by(max_tokens: int, plan: Plan, reservation: Reservation, prices: Prices) -> str | None:
    """Return the limit that made the output shorter than the context allows, unless the request states `max_tokens`.

    `max_tokens` is the requested output."""
    if plan.request.max_tokens is not None:
        return None
    if reservation.most_tokens >= max_tokens:
        return "kv_pool" if plan.model.longest < plan.model.context_length else None
    limits = [status for status in reservation.statuses if not status.shadow and status.name in OUTPUT_LIMITS]
    per_choice = [s.name for s in limits if s.name == "max_output_tokens" and s.limit == reservation.most_tokens]
    spent = sorted(
        (status for status in limits if status.name != "max_output_tokens"), key=lambda s: _tokens_left(s, prices)
    )
    return next(iter([*per_choice, *(status.name for status in spent)]), None)


def _tokens_left(status: LimitStatus, prices: Prices) -> float:
    weight = _RULES[status.name].output_weight(prices)
    return status.remaining / weight if weight else math.inf


def _exceeded_param(status: LimitStatus, ask: Ask, plan: Plan) -> str | None:
    is_of_prompt = status.name in _PROMPT_LIMITS
    of_prompt = ask.prompt_tokens * (_RULES[status.name].input_weight(ask.prices) or 1)
    if status.name in OUTPUT_LIMITS and not (is_of_prompt and of_prompt >= status.limit):
        return plan.output_param
    return plan.prompt_param if is_of_prompt else None


def _refused(denied: Denied | AccessDenied, ask: Ask, plan: Plan) -> ApiError:
    if isinstance(denied, AccessDenied):
        if denied.reason == "suspended":
            return ApiError("This tenant is suspended.", "tenant_suspended")
        return errors.tenant_deleted() if denied.reason == "deleted" else errors.invalid_api_key()
    param = _exceeded_param(denied.status, ask, plan) if denied.kind == "exceeds" else None
    in_part = ask.quantum is not None and ask.max_output_tokens > 1
    block = LimitBlock.of(denied.status, denied.requested)
    return errors.limit_denied(denied.kind, block, denied.retry_after_s, param, in_part=in_part)
