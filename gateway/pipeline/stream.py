"""The event loop of one request: events of its jobs in, pieces of the response out, until its end or a deadline.

Events are handled in the loop iteration in which they arrive: a stream has an event for each token, and waking a task
costs as much as sending it. The request's task does everything that may block."""

import asyncio
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from fairlane.gateway.answers.chunks import (
    AnswerChunk,
    ChunkConsumer,
    KeepAlive,
    KeepAliveSchedule,
    Progress,
    TextChunk,
)
from fairlane.gateway.errors import ApiError, internal_error, invalid, unavailable
from fairlane.gateway.insight.telemetry.tracing import Span
from fairlane.gateway.pipeline.prepare import Plan
from fairlane.gateway.pipeline.settlement import Settlements, outcome_of
from fairlane.gateway.request.live_request import Choice, LiveJob, LiveRequest, News
from fairlane.scheduler.protocol.grammar_limits import BROKEN_GRAMMAR
from fairlane.scheduler.protocol.messages import Finished, Outcome, Paused, Preempted, Resumed, TokenDelta
from fairlane.scheduler.queue.redis_queue import RedisQueue
from fairlane.store.errors import STORE_ERRORS


@dataclass(slots=True)
class TokenEvents:
    """Serves one request whose jobs are all enqueued. Call `run` once; the submitter ends jobs that are still open
    after it."""

    request: LiveRequest
    plan: Plan
    settlements: Settlements
    arrived_s: float
    # Ends at the start of the first prefill if the worker reports it, else with the first token.
    queue_span: Span
    gap: Callable[[float], None] = lambda _seconds: None
    # Time from the queue to the first prefill, if reported.
    queued_s: float | None = None
    # Kept here, because the request drops its jobs when it is settled.
    jobs: Sequence[LiveJob] = field(init=False)
    first_token_s: float | None = None
    last_token_s: float | None = None
    _loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)
    _all_begun: bool = False
    # The maximum wait has passed, and a worker has every job.
    _max_wait_over: bool = False
    _sent_s: float = 0.0
    _has_started: bool = False
    # The consumer has not sent its last output yet.
    _is_behind: bool = False
    # Output for the consumer once it catches up, before it receives a fault.
    _unsent: list[AnswerChunk] = field(default_factory=list)
    _fault: Exception | None = None
    _waiter: asyncio.Future[None] | None = None
    _state: str = "generating"
    # Jobs whose output was all sent, and that are not settled.
    _unsettled: list[LiveJob] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.jobs = self.request.jobs
        for job in self.jobs:
            for choice in job.choices:
                choice.reader = self.plan.reader()

    @property
    def seconds_per_token(self) -> float | None:
        """Mean time between tokens of a choice; None before the second token, and after an earlier run."""
        if self.request.ask.resumption is not None:
            return None
        steps = max([choice.published for job in self.jobs for choice in job.choices], default=0) - 1
        if steps < 1 or self.first_token_s is None or self.last_token_s is None:
            return None
        return (self.last_token_s - self.first_token_s) / steps

    async def run(self, consumer: ChunkConsumer, schedule: KeepAliveSchedule) -> None:
        """Pass all events to the consumer, until every job is settled.

        Raises ApiError if a job cannot finish: deadline, failure of a worker, internal error."""
        every_s = schedule.every_s if self.plan.service_level.tells_progress else schedule.keep_alive_s
        notice_at = self.arrived_s + schedule.first_s
        self.request.read_by(partial(self._deliver, consumer))
        try:
            self._deliver(consumer)
            while True:
                while self._is_behind:
                    await consumer.catch_up()
                    self._is_behind = False
                    self._deliver(consumer)
                if self._fault is not None:
                    raise self._fault
                while self._unsettled:
                    await self.settlements.settle(self._unsettled.pop(), Outcome.FINISHED)
                if not [job for job in self.jobs if not job.settled]:
                    return
                await self._sleep(min(notice_at, self._next_deadline_s()))
                if self._has_work:
                    continue
                now_s, notice_at = self._loop.time(), max(notice_at, self._sent_s + every_s)
                self._check_deadlines(now_s)
                if now_s >= notice_at:
                    notice_at = now_s + every_s
                    pieces = await self._while_silent()
                    if self._sent_s < now_s:
                        self._has_started = True
                        self._is_behind = not consumer.feed(pieces)
        finally:
            self.request.read_by(None)
            self._count_undelivered()

    async def _sleep(self, until_s: float) -> None:
        if self._has_work:
            return
        self._waiter = self._loop.create_future()
        alarm = self._loop.call_at(until_s, self._wake) if until_s < math.inf else None
        try:
            await self._waiter
        finally:
            self._waiter = None
            if alarm is not None:
                alarm.cancel()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    @property
    def _has_work(self) -> bool:
        return self._is_behind or bool(self._unsettled) or self._fault is not None

    def _deliver(self, consumer: ChunkConsumer) -> None:
        """Pass waiting events to the consumer, and leave blocking work to the task.

        While the consumer is behind, events stay at the request, which drops notices if there are too many. A fault
        does not wait for the consumer."""
        if self._fault is not None and not self._unsent:
            return
        unsent, now_s = self._unsent, self._loop.time()
        try:
            try:
                if self._fault is None and (not self._is_behind or self.request.is_faulty):
                    for job, item in self.request.take_news():
                        piece = self._read(job, item, now_s)
                        if piece is not None:
                            unsent.append(piece)
            finally:  # tokens before a fault are sent
                if unsent and not self._is_behind:
                    self._unsent, self._sent_s = [], now_s
                    self._is_behind = not consumer.feed(unsent)
        except Exception as fault:  # noqa: BLE001 - kept for the request's task: the caller must not fail
            self._fault = fault
            if self._is_behind:  # a slow client must not delay the settlement
                self.settlements.hand_over(self.request, outcome_of(fault))
        if self._has_work:
            self._wake()

    def _count_undelivered(self) -> None:
        for job, news in self.request.take_news():
            if isinstance(news, TokenDelta):
                self._read_tokens(job, job.choices[news.choice], news)

    def _read(self, job: LiveJob, news: News, now_s: float) -> AnswerChunk | None:
        if isinstance(news, TokenDelta):
            if self.last_token_s is None:
                self._began(news, now_s)
            elif now_s > self.last_token_s:  # else they arrived together
                self.gap(now_s - self.last_token_s)
            self.last_token_s = now_s
            return self._read_tokens(job, job.choices[news.choice], news)
        match news:
            case ApiError():
                raise news
            case Finished():
                _check_end(job, news, self.plan)
            case Preempted() | Resumed() | Paused():
                self._state = type(news).__name__.lower()
                return Progress(self._state) if self.plan.service_level.tells_progress else None
        return None

    def _began(self, delta: TokenDelta, now_s: float) -> None:
        self.first_token_s = now_s
        if delta.queued_ms is None:
            self.queue_span.end()
            return
        self.queued_s = delta.queued_ms / 1e3
        self.queue_span.set({"fairlane.queued_ms": delta.queued_ms})
        self.queue_span.end_after(self.queued_s)

    def _read_tokens(self, job: LiveJob, choice: Choice, delta: TokenDelta) -> TextChunk | None:
        reader = choice.reader
        if reader is None or choice.finish_reason is not None:  # after its stop string, or a repeated end
            return None
        piece = reader.push(delta.token_ids)
        text, cuts, finish = piece.text, piece.cuts, delta.finish_reason
        if finish is not None and not piece.stopped:
            piece = reader.flush()
            text += piece.text
        token_ids, logprobs = delta.token_ids, delta.logprobs
        if piece.stopped:
            finish, choice.stopped_at = "stop" if reader.stopped_by is not None else "length", piece.counted
            counted = max(0, piece.counted - delta.first_index)
            token_ids, logprobs = token_ids[:counted], logprobs[:counted]
        choice.sent = choice.counted if piece.stopped else delta.first_index + len(token_ids)
        if finish is not None:
            choice.finish_reason = finish
            if job.is_complete and not job.settled:
                self._unsettled.append(job)
        grants = self.request.grants
        if grants is not None:
            grants.sent(choice)
        if text or finish is not None or delta.token_ids:
            stopped_by = reader.stopped_by if piece.stopped else None
            return TextChunk(choice.index, text, token_ids, logprobs, finish, stopped_by, delta.embedding, cuts)
        return None

    def _next_deadline_s(self) -> float:
        level = self.plan.service_level
        due_ms = math.inf if level.deadline_ms is None else level.deadline_ms
        if self._awaits_first_tokens():
            first_ms = math.inf if level.hard_ttft_ms is None else level.hard_ttft_ms
            due_ms = min(due_ms, first_ms, math.inf if self._max_wait_over else level.max_wait_ms)
        return self.arrived_s + due_ms / 1e3

    def _check_deadlines(self, now_s: float) -> None:
        """Raise ApiError `deadline_exceeded` if a deadline, or the maximum wait in the queue, has passed."""
        level, waited_ms = self.plan.service_level, (now_s - self.arrived_s) * 1e3
        if level.deadline_ms is not None and waited_ms >= level.deadline_ms:
            raise _deadline_exceeded(f"it was not done within {level.deadline_ms:g} ms")
        if not self._awaits_first_tokens():
            return
        if level.hard_ttft_ms is not None and waited_ms >= level.hard_ttft_ms:
            raise _deadline_exceeded(f"there was no token within {level.hard_ttft_ms:g} ms")
        if waited_ms >= level.max_wait_ms and not self._max_wait_over:
            if self._awaits_worker():
                raise _deadline_exceeded(f"it waited in the queue for {level.max_wait_ms:g} ms")
            self._max_wait_over = True

    def _awaits_first_tokens(self) -> bool:
        self._all_begun = self._all_begun or not [job for job in self.jobs if not job.begun]
        return not self._all_begun

    def _awaits_worker(self) -> bool:
        """Return whether no worker has opened a job that has no token: it is in the queue, or out of their reach."""
        return any(not job.begun and job.stream is None for job in self.jobs)

    def _queue(self, job: LiveJob) -> RedisQueue:
        return self.settlements.dispatcher.queue(job.queue)  # by name: a job may move before its first token

    async def _while_silent(self) -> Sequence[AnswerChunk]:
        if self.plan.service_level.tells_progress:
            return (await self._waiting(),)
        return (KeepAlive(),) if self._has_started or self._sent_s else ()

    async def _waiting(self) -> Progress:
        waiting = min((job for job in self.jobs if not job.is_complete), key=lambda f: f.begun, default=None)
        if waiting is None:
            return Progress(self._state)
        try:
            position = await self._queue(waiting).position(waiting.id)
        except STORE_ERRORS:
            position = None
        if position is None:
            return Progress(self._state if waiting.begun else "prefilling")
        eta_ms = self.settlements.dispatcher.open_requests.still_waits_ms(waiting, position)
        if eta_ms is None:  # assume the rest of the expected wait; once that has passed, as long again as it has taken
            waited_ms, expected_ms = (self._loop.time() - self.arrived_s) * 1e3, self.plan.expected_ttft_ms
            eta_ms = expected_ms - waited_ms if waited_ms < expected_ms else waited_ms
        return Progress(f"queued position={position} eta_ms={math.ceil(eta_ms)}")


def _deadline_exceeded(why: str) -> ApiError:
    return ApiError(f"The request has ended: {why}.", "deadline_exceeded")


def _check_end(job: LiveJob, finished: Finished, plan: Plan) -> None:
    if job.is_complete:
        return
    match finished.outcome:
        case Outcome.EXPIRED:
            raise _deadline_exceeded("its deadline, or its lane's longest wait, has passed")
        case Outcome.UNAVAILABLE:
            raise unavailable()
        case Outcome.FAILED if finished.error == BROKEN_GRAMMAR:
            param = plan.grammar_param
            raise invalid(param, f"`{param}` cannot be served: {BROKEN_GRAMMAR}.")
        case Outcome.FAILED:
            raise ApiError(f"The model failed on this request: {finished.error or 'no reason'}.", "internal_error")
        case Outcome.CANCELLED:
            raise ApiError("The request was cancelled: its gateway had lost the store.", "quota_store_unavailable")
        case _:
            raise internal_error()
