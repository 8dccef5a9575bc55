"""Ends every job and settles its request exactly once, despite failures of client, worker or store.

A settlement survives the cancellation of its request: a separate task retries until the store answers. A reaper settles
what this process leaves unsettled."""

import asyncio
import logging
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, field

import msgspec

from fairlane.gateway.errors import ApiError, internal_error
from fairlane.gateway.insight.telemetry.metrics import Telemetry
from fairlane.gateway.insight.telemetry.tracing import Value
from fairlane.gateway.pipeline.delivery import Dispatcher
from fairlane.gateway.request.live_request import LiveJob, LiveRequest, charge_of, total
from fairlane.quotas.store import Charge, QuotaStore, Resumption, Settled
from fairlane.scheduler.protocol.messages import Outcome
from fairlane.scheduler.queue.types import JobRecord
from fairlane.store.errors import STORE_ERRORS
from fairlane.store.retry import until_answered

log = logging.getLogger(__name__)

_OUTCOMES = {
    "deadline_exceeded": Outcome.EXPIRED,
    "internal_error": Outcome.FAILED,
    "invalid_request_error": Outcome.FAILED,
    "unavailable": Outcome.UNAVAILABLE,
}
# How long a response waits for its settlement, so that a client that then reads its limits sees the charge.
INLINE_S = 0.5


@dataclass(eq=False)
class Settlements:
    """Ends jobs, and settles a request with its last job. Further calls for an ended job do nothing.

    `confirm_s` is the time for a worker to confirm a cancellation, before the job's record decides."""

    quotas: QuotaStore
    dispatcher: Dispatcher
    telemetry: Telemetry
    confirm_s: float
    _tasks: set[asyncio.Task[None]] = field(default_factory=set, init=False)

    @property
    def in_hand(self) -> int:
        return len(self._tasks)

    async def settle(self, job: LiveJob, outcome: Outcome) -> None:
        """Charge a job that has ended by itself, waiting for the store for INLINE_S at most.

        The store is called directly, without creating a task. If it does not answer, a task retries."""
        if job.settled:
            return
        if job.finished is None:  # a stop string ended it before the worker did
            self._spawn(self._cancel(job))
        job.settled = True
        request, began_s = job.request, asyncio.get_running_loop().time()
        try:
            request.charges.append(job.charge(outcome))
            if not request.landed:
                return
            with self.telemetry.span("settle") as span:
                if span.is_recording:
                    span.set(_span_attributes(total(request.charges)))
                async with asyncio.timeout(INLINE_S):
                    settled = await self._ask(request)
        except (TimeoutError, asyncio.CancelledError) as error:
            self._spawn(self._finish(request))
            if isinstance(error, asyncio.CancelledError):
                raise
        except STORE_ERRORS:
            left_s = INLINE_S - (asyncio.get_running_loop().time() - began_s)
            await _wait([self._spawn(self._finish(request))], left_s)
        except Exception:
            self._leave(request)
            log.exception("a settlement failed; a reaper will do it")
        else:
            self._conclude(request, settled)

    async def end(self, request: LiveRequest, outcome: Outcome) -> None:
        """Cancel the request's open jobs and charge what was received, waiting for INLINE_S at most."""
        await _wait(self.hand_over(request, outcome))

    def hand_over(self, request: LiveRequest, outcome: Outcome) -> list[asyncio.Task[None]]:
        left = [job for job in request.jobs if not job.settled]
        for job in left:
            job.settled = True
        return [self._spawn(self._carry_out(job, outcome)) for job in left]

    async def aclose(self, timeout_s: float) -> None:
        """Wait up to `timeout_s` for settlements in progress. The rest is left to a reaper."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=timeout_s)
        if self._tasks:
            log.warning("%d settlements are left to a reaper", len(self._tasks))
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _carry_out(self, job: LiveJob, outcome: Outcome) -> None:
        request = job.request
        try:
            with self.telemetry.span("settle") as span:
                request.charges.append(await self._learn(job, outcome))
                if span.is_recording:
                    span.set(_span_attributes(request.charges[-1]))
                if request.landed:
                    await self._close(request)
        except BaseException:
            self._leave(request)
            raise

    async def _finish(self, request: LiveRequest) -> None:
        try:
            await self._close(request)
        except BaseException:
            self._leave(request)
            raise

    async def _close(self, request: LiveRequest) -> None:
        self._conclude(request, await until_answered(lambda: self._ask(request)))

    def _ask(self, request: LiveRequest) -> Awaitable[Settled]:
        return self.quotas.settle(request.ask.root, request.id, total(request.charges))

    def _conclude(self, request: LiveRequest, settled: Settled) -> None:
        ask, charge = request.ask, total(request.charges)
        request.statuses = settled.statuses
        request.settled = True
        self.dispatcher.wasted_tokens += max(0, request.published - charge.output_tokens)
        if request.record is not None:
            request.record.charged(charge)
        for job in request.jobs:
            self.dispatcher.release(job)
        request.jobs = []  # breaks a reference cycle
        if not charge.is_refund:
            self.telemetry.charged(ask.tenant, ask.lane, _fresh(charge, ask.resumption))

    def _leave(self, request: LiveRequest) -> None:
        if request.record is not None:
            request.record.settled()
        for job in request.jobs:
            self.dispatcher.abandon(job)
            if not job.settled:
                job.fail(internal_error())

    async def _learn(self, job: LiveJob, outcome: Outcome) -> Charge:
        if job.message is None:
            return Charge.refund()
        if job.finished is None and job.stream is not None:
            job.stream.stop()
            await self._confirmed(job)
        if job.finished is None:  # it waits for a holder, which will be refused
            queue = self.dispatcher.queue(job.queue)
            record = await until_answered(lambda: queue.cancel(job.id))
            if record is None and not job.begun:
                return Charge.refund()  # it was never enqueued
            return job.charge(outcome, taken=record is None or record.epoch > 0)
        ended_well = job.finished.outcome is Outcome.FINISHED and outcome is not Outcome.REJECTED
        return job.charge(Outcome.FINISHED if ended_well else outcome, taken=job.finished.epoch > 0)

    async def _confirmed(self, job: LiveJob) -> None:
        try:
            async with asyncio.timeout(self.confirm_s):
                await job.end()
        except TimeoutError:
            log.warning("no worker confirmed the cancellation of job %s", job.id)

    async def _cancel(self, job: LiveJob) -> None:
        if job.stream is not None:
            job.stream.stop()
            return
        queue = self.dispatcher.queue(job.queue)
        await until_answered(lambda: queue.cancel(job.id))

    def _spawn(self, work: Awaitable[None]) -> asyncio.Task[None]:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("a settlement failed; a reaper will do it", exc_info=task.exception())


def recorded(record: JobRecord) -> Charge:
    """Return an ended job's charge by its record alone, which has neither cached tokens nor preemptions."""
    outcome = record.outcome or Outcome.CANCELLED
    return charge_of(outcome, record.prompt_tokens, record.generated, taken=record.epoch > 0)


def _fresh(charge: Charge, resumption: Resumption | None) -> Charge:
    if resumption is None:
        return charge
    output = max(0, charge.output_tokens - resumption.published)
    return msgspec.structs.replace(charge, prompt_tokens=0, cached_tokens=0, output_tokens=output)


def outcome_of(error: Exception) -> Outcome:
    """Return the outcome of an enqueued job that was ended by this error."""
    return _OUTCOMES.get(error.code, Outcome.CANCELLED) if isinstance(error, ApiError) else Outcome.CANCELLED


def _span_attributes(charge: Charge) -> dict[str, Value | None]:
    return {
        "fairlane.outcome": charge.outcome,
        "fairlane.prompt_tokens": charge.prompt_tokens,
        "fairlane.cached_tokens": charge.cached_tokens,
        "fairlane.output_tokens": charge.output_tokens,
        "fairlane.preemptions": charge.preemptions,
    }


async def _wait(tasks: Sequence[asyncio.Task[None]], timeout_s: float = INLINE_S) -> None:
    if tasks:
        await asyncio.wait(tasks, timeout=max(0.0, timeout_s))
