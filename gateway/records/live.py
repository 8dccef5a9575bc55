"""A record in the making: what gateway and workers say of one request while it runs.

Called on the event loop, on a request's way: each call is a few assignments. Nothing is called for a token.
"""

from collections.abc import Callable
from typing import Protocol

from fairlane.gateway.records.record import RecordedPreemption, RequestRecord, State
from fairlane.gateway.requests.request import LiveJob, LiveRequest, request_of
from fairlane.quotas.store import Charge
from fairlane.scheduler.protocol.messages import Cause, Event, Finished, JobSteps, Outcome, Paused, Preempted, Resumed


class Progress(Protocol):
    """When tokens came, on the event loop's clock; `requests.stream.TokenEvents` is one."""

    @property
    def first_token_s(self) -> float | None:
        """None: there is none yet."""

    @property
    def last_token_s(self) -> float | None:
        """As above."""

    @property
    def queued_s(self) -> float | None:
        """How long it took until the step that began with its prompt; None: not told."""


class LiveRecord:
    """Of one request that was let in. It is over once it was answered, and settled or left to a reaper."""

    def __init__(
        self,
        record: RequestRecord,
        request: LiveRequest,
        arrived_s: float,
        clock: Callable[[], float],
        on_over: Callable[["LiveRecord"], None],
    ) -> None:
        """`arrived_s` and `clock`: of the event loop."""
        self.record = record
        self.job = request.jobs[0]
        """Whose place in the queue is followed."""
        self.has_news = True
        """Something has happened since it was last written."""
        self.written_s = 0.0
        """When that was; 0.0: it never was."""
        self.taken = False
        self._request = request
        self._arrived_s = arrived_s
        self._clock = clock
        self._on_over = on_over
        self._progress: Progress | None = None
        self._away: dict[tuple[str, int], RecordedPreemption] = {}
        self._pauses: dict[tuple[str, int], float] = {}
        self._answered = self._settled = False

    @property
    def age_ms(self) -> float:
        """Since the request arrived."""
        return (self._clock() - self._arrived_s) * 1e3

    @property
    def waits(self) -> bool:
        """No worker has taken it, as far as is known."""
        return not (self.taken or self._request.published)

    def follow(self, progress: Progress) -> None:
        """Its tokens are told from now on."""
        self._progress = progress

    def place(self, position: int | None) -> None:
        """Where it stands in the queue; None: a worker has taken it."""
        record = self.record
        if position is None:
            if self.waits:
                self.taken = self.has_news = True
                record.add(self.age_ms, "taken")
        elif not (record.events and record.events[-1].figure == position):
            self.has_news = True
            record.add(self.age_ms, "position", position)

    def heard(self, job: LiveJob, event: Event) -> None:
        """A worker has said something of a job, beside its tokens."""
        self.has_news = True
        match event:
            case Preempted():
                self._preempted(job, event)
            case Resumed():
                self._resumed(job, event)
            case Paused():
                self._pauses[job.id, event.choice] = at_ms = self.age_ms
                self.record.paused += 1
                self.record.add(at_ms, "paused")
            case Finished():
                self._finished(job, event)

    def charged(self, charge: Charge) -> None:
        """It is settled, and its jobs are still at hand."""
        self.update()
        record = self.record
        record.outcome = charge.outcome
        record.output_tokens = max(record.output_tokens, charge.output_tokens)
        record.charges = (charge.prompt_tokens, charge.cached_tokens, charge.output_tokens)
        self.settled()

    def settled(self) -> None:
        """Nothing more is to be learnt of its charge here: it is booked, or left to a reaper."""
        self._settled = True
        self._look()

    def answered(self, code: str | None, outcome: Outcome, message: str, limit: str) -> None:
        """Its answer has ended, by this error if `code` says so."""
        if self._answered:
            return
        record, self._answered = self.record, True
        self.update()
        record.total_ms = round(self.age_ms, 1)
        if record.queue_ms is None:
            record.queue_ms = record.taken_ms
        record.code, record.message, record.limit = code, message, limit
        record.outcome = record.outcome or outcome.value
        record.add(record.total_ms, "ended")
        self._progress = None
        self._look()

    def update(self) -> None:
        """Fill in what is only looked at when somebody wants to know."""
        record, progress = self.record, self._progress
        published = self._request.published
        if published > record.output_tokens:
            record.output_tokens, self.has_news = published, True
        if progress is not None and progress.first_token_s is not None:
            if record.ttft_ms is None:
                record.ttft_ms = self._at_ms(progress.first_token_s)
                record.add(record.ttft_ms, "first_token")
            if progress.queued_s is not None:
                record.queue_ms = round(progress.queued_s * 1e3, 1)
            if progress.last_token_s is not None:
                record.last_token_ms = self._at_ms(progress.last_token_s)
        record.state = self._state()

    def _state(self) -> State:
        if self._away:
            return "preempted"
        if self._pauses:
            return "paused"
        return "queued" if self.waits else "running"

    def _look(self) -> None:
        if self._answered and self._settled:
            self.record.state = "ended"
            self._on_over(self)

    def _at_ms(self, at_s: float) -> float:
        return round((at_s - self._arrived_s) * 1e3, 1)

    def _preempted(self, job: LiveJob, event: Preempted) -> None:
        preemption = RecordedPreemption(
            at_ms=round(self.age_ms, 1),
            choice=job.first_choice + event.choice,
            mode=event.mode,
            blocks=event.blocks,
            bytes=event.bytes,
            predicted_ms=round(event.predicted_ms, 3),
        )
        self._blame(preemption, event.cause)
        self._away[job.id, event.choice] = preemption
        self.record.add(preemption.at_ms, "preempted")
        self.record.add_preemption(preemption)

    def _blame(self, preemption: RecordedPreemption, cause: Cause | None) -> None:
        if cause is not None:
            preemption.resource, preemption.lane = cause.resource, cause.lane
            preemption.tenant, preemption.request = cause.tenant, request_of(cause.job_id)

    def _resumed(self, job: LiveJob, event: Resumed) -> None:
        record, place, stall_ms = self.record, (job.id, event.choice), round(event.stalled_ms, 1)
        preemption, paused_at_ms = self._away.pop(place, None), self._pauses.pop(place, None)
        if preemption is not None:
            preemption.stall_ms = stall_ms
            record.stalled_ms += stall_ms
            if event.blocks:  # it may have been set aside first, and have given up blocks later, or more of them
                preemption.mode, preemption.blocks, preemption.bytes = event.mode, event.blocks, event.bytes
                preemption.predicted_ms = round(event.predicted_ms, 3)
                self._blame(preemption, event.cause)
        elif paused_at_ms is not None:
            record.paused_ms += stall_ms
        record.add(self.age_ms, "resumed", stall_ms)

    def _finished(self, job: LiveJob, event: Finished) -> None:
        record = self.record
        record.takings = max(record.takings, event.epoch)
        if event.worker_id and event.worker_id not in record.workers:
            record.workers.append(event.worker_id)
        for choice in range(len(job.choices)):
            self._away.pop((job.id, choice), None)
            self._pauses.pop((job.id, choice), None)
        if event.steps is not None:
            self._add_steps(event.steps)

    def _add_steps(self, steps: JobSteps) -> None:
        record, waits = self.record, self.record.waits_ms
        record.prefill_steps += steps.prefill_steps
        record.prefill_tokens += steps.prefill_tokens
        record.decode_steps += steps.decode_steps
        if steps.taken_ms is not None:
            record.taken_ms = round(max(record.taken_ms or 0.0, steps.taken_ms), 1)
        for reason, waited_ms in steps.waits_ms.items():
            waits[reason] = round(max(waits.get(reason, 0.0), waited_ms), 1)
