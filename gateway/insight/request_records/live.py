"""The record of a running request, built from reports of gateway and workers.

The methods run while a request is served, so they only store their arguments. The record itself is built when it is
read or written; most requests of a busy gateway end before that. No method is called for each token."""

from collections.abc import Callable
from dataclasses import InitVar, dataclass, field
from typing import Protocol

import msgspec

from fairlane.gateway.insight.request_records.interruptions import Interruptions
from fairlane.gateway.insight.request_records.record import RequestRecord, State
from fairlane.gateway.insight.request_records.time_account import Start, Timeline, TimeParts, account
from fairlane.gateway.request.live_request import LiveJob, LiveRequest
from fairlane.quotas.store import Charge
from fairlane.scheduler.protocol.messages import (
    Event,
    Finished,
    Outcome,
    Paused,
    Preempted,
    PromptLogprobs,
    Resumed,
    TokenDelta,
)

_ORDINARY = frozenset({Outcome.FINISHED.value, Outcome.CANCELLED.value})


class TokenTimes(Protocol):
    """Token times on the event loop's clock; `gateway.pipeline.stream.TokenEvents` implements it."""

    @property
    def first_token_s(self) -> float | None: ...

    @property
    def last_token_s(self) -> float | None: ...


class Answered(msgspec.Struct, frozen=True, gc=False):
    """The end of a response, on the event loop's clock. `code` is None without an error."""

    at_s: float
    code: str | None
    outcome: Outcome
    message: str
    limit: str


@dataclass(slots=True, eq=False)
class LiveRecord:
    """One admitted request. It is complete once its response has ended and it has been settled or left to a reaper.

    Instants are on the event loop's clock, and `at_ms` counts from the request's arrival."""

    _make: "Callable[[LiveRecord], RequestRecord] | None"
    request: InitVar[LiveRequest]
    names: tuple[str, str]
    _arrived_s: float
    due_ms: float
    _clock: Callable[[], float]
    # Called once, when the record is complete.
    _on_over: "Callable[[LiveRecord], None]"
    id: str = field(init=False)
    jobs: list[LiveJob] = field(init=False)
    interruptions: Interruptions | None = None
    moved: int = 0
    has_news: bool = True
    # Time of the last write; 0.0: never.
    written_s: float = 0.0
    taken: bool = False
    time: TimeParts | None = None
    answer: Answered | None = None
    charge: Charge | None = None
    progress: TokenTimes | None = None
    _is_settled: bool = False
    _record: RequestRecord | None = None
    _finished: list[Finished] | None = None
    # Time in the queue until the prompt was started, as reported at the end of a job without tokens.
    _begun_after_ms: float | None = None
    _starts: list[Start] = field(default_factory=list)
    _workers: list[str] = field(default_factory=list)

    def __post_init__(self, request: LiveRequest) -> None:
        self.id, self.jobs = request.id, request.jobs

    @property
    def account(self) -> str:
        return self.jobs[0].request.ask.account

    @property
    def record(self) -> RequestRecord:
        record = self._record
        if record is None:
            assert self._make is not None  # noqa: S101 - `release` is called after the last read
            record, job = self._make(self), self.jobs[0]
            self._record = record
            if job.place:
                record.add((job.queued_s - self._arrived_s) * 1e3, "queued", job.place)
        if self._make is not None:
            self._update(record)
        return record

    @property
    def age_ms(self) -> float:
        return (self._clock() - self._arrived_s) * 1e3

    @property
    def waits(self) -> bool:
        return not (self.taken or any(job.begun for job in self.jobs))

    @property
    def is_special(self) -> bool:
        """True if it failed, was moved, preempted or paused, or its first token was late."""
        if self.moved or (self.interruptions is not None and self.interruptions.count):
            return True
        first_s = None if self.progress is None else self.progress.first_token_s
        if first_s is not None and (first_s - self._arrived_s) * 1e3 > self.due_ms:
            return True
        if self.charge is not None:
            return self.charge.outcome not in _ORDINARY
        return self.answer is None or self.answer.outcome not in _ORDINARY

    def place(self, position: int | None) -> None:
        """Record its place in the queue. None: a worker has taken it; the end of the job reports when."""
        if position is None:
            self.has_news = self.has_news or self.waits
            self.taken = True
            return
        record = self.record
        if not (record.events and record.events[-1].figure == position):
            self.has_news = True
            record.add(self.age_ms, "position", position)

    def observe(self, job: LiveJob, event: Event) -> None:
        """Record a worker's event. Of tokens, only the first under each lease is reported, before it is counted."""
        self.has_news = True
        if isinstance(event, TokenDelta):
            self._taken_up(job, event)
        elif isinstance(event, Finished):
            if event.steps is not None and event.steps.queued_ms is not None:
                self._begun_after_ms = event.steps.queued_ms
            if self._finished is None:
                self._finished = [event]
            else:
                self._finished.append(event)
            if self.interruptions is not None:
                self.interruptions.end(job, self.age_ms)
        elif not isinstance(event, PromptLogprobs):
            self._interrupted(job, event)

    def charged(self, charge: Charge) -> None:
        self.charge = charge
        self.settled()

    def settled(self) -> None:
        self._is_settled = True
        if self.answer is not None:
            self._on_over(self)

    def answered(self, code: str | None, outcome: Outcome, message: str, limit: str, *, is_timed: bool = False) -> None:
        """Record the end of its response, with an error if `code` names one. `is_timed`: also set `time`."""
        if self.answer is None:
            self.answer = Answered(self._clock(), code, outcome, message, limit)
            if is_timed:
                self.time = self._account()
            if self._is_settled:
                self._on_over(self)

    def release(self) -> None:
        """Drop the references to the request, which itself refers to this object. The record cannot be updated after
        that."""
        self._make, self.progress, self.jobs = None, None, []

    def refresh(self) -> None:
        if self._record is None or self._published() > self._record.output_tokens:
            self.has_news = True

    def _published(self) -> int:
        published = 0
        for job in self.jobs:
            for choice in job.choices:
                published += choice.published
        return published

    def _update(self, record: RequestRecord) -> None:
        for worker in self._workers:
            if worker not in record.workers:
                record.workers.append(worker)
        record.output_tokens = self._published()
        self._add_times(record)
        if self._finished:
            for event in self._finished:
                _add_end(record, event, self._queued_ms)
            self._finished = None
        if self.charge is not None:
            charge, prices = self.charge, self.jobs[0].request.ask.prices
            record.charge(charge)
            record.spend = prices.spend(charge.prompt_tokens, charge.cached_tokens, charge.output_tokens)
        record.state = self._state()
        if self.answer is not None and record.total_ms is None:
            answered = self.answer
            record.total_ms = record.add((answered.at_s - self._arrived_s) * 1e3, "ended")
            record.code, record.message, record.limit = answered.code, answered.message, answered.limit
            record.outcome = record.outcome or answered.outcome.value
        record.time = self.time or self._account()
        if self._starts or self.answer is not None:
            record.queue_ms = record.time.queue

    def _add_times(self, record: RequestRecord) -> None:
        progress = self.progress
        if progress is None or progress.first_token_s is None:
            return
        if record.ttft_ms is None:
            record.ttft_ms = record.add((progress.first_token_s - self._arrived_s) * 1e3, "first_token")
        if progress.last_token_s is not None:
            record.last_token_ms = round((progress.last_token_s - self._arrived_s) * 1e3, 1)

    def _account(self) -> TimeParts:
        answered, progress = self.answer, self.progress
        last_s = None if progress is None else progress.last_token_s
        until_ms = self.age_ms if answered is None else (answered.at_s - self._arrived_s) * 1e3
        return account(
            Timeline(
                total_ms=until_ms,
                has_ended=answered is not None,
                queued_ms=self._queued_ms,
                starts=self._starts,
                stalls=() if self.interruptions is None else self.interruptions.stalls(until_ms),
                last_token_ms=None if last_s is None else (last_s - self._arrived_s) * 1e3,
                begun_after_ms=self._begun_after_ms,
            )
        )

    @property
    def _queued_ms(self) -> float:
        for job in self.jobs:  # in the order in which they were enqueued
            if job.queued_s:
                return (job.queued_s - self._arrived_s) * 1e3
        return 0.0

    def _state(self) -> State:
        if self.answer is not None and self._is_settled:
            return "ended"
        interrupted = None if self.interruptions is None else self.interruptions.state
        return interrupted or ("queued" if self.waits else "running")

    def _interrupted(self, job: LiveJob, event: Preempted | Resumed | Paused) -> None:
        if self.interruptions is None:
            self.interruptions = Interruptions()
        now_ms = self.age_ms
        match event:
            case Preempted():
                preemption = self.interruptions.preempt(job, event, now_ms)
                self.record.add(preemption.at_ms, "preempted")
                self.record.add_preemption(preemption)
            case Paused():
                self.interruptions.pause(job, event.choice, now_ms)
                self.record.paused += 1
                self.record.add(now_ms, "paused")
            case Resumed():
                self.interruptions.resume(job, event, now_ms, self.record)

    def _taken_up(self, job: LiveJob, event: TokenDelta) -> None:
        if event.worker_id and event.worker_id not in self._workers:
            self._workers.append(event.worker_id)
        last_s = None if self.progress is None else self.progress.last_token_s
        since_ms = (last_s - self._arrived_s) * 1e3 if last_s is not None and job.begun else None
        now_ms = self.age_ms
        if since_ms is not None or not self._starts:
            self._starts.append(Start(now_ms, event.queued_ms, event.prefill_ms, since_ms))
        if since_ms is not None:
            self.moved += 1
            self.record.add(now_ms, "moved", round(now_ms - since_ms, 1))


def _add_end(record: RequestRecord, event: Finished, queued_ms: float) -> None:
    record.takings = max(record.takings, event.epoch)
    if event.worker_id and event.worker_id not in record.workers:
        record.workers.append(event.worker_id)
    if event.steps is None:
        return
    steps, waits = event.steps, record.waits_ms
    record.prefill_steps += steps.prefill_steps
    record.prefill_tokens += steps.prefill_tokens
    record.decode_steps += steps.decode_steps
    if steps.taken_ms is not None:
        if record.taken_ms is None:
            record.add(queued_ms + steps.taken_ms, "taken")
        record.taken_ms = round(max(record.taken_ms or 0.0, queued_ms + steps.taken_ms), 1)
    for reason, waited_ms in steps.waits_ms.items():
        waits[reason] = round(max(waits.get(reason, 0.0), waited_ms), 1)
