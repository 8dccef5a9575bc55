"""An admitted request with one job per prompt: the output received so far, and its end.

The request's budget is reserved once for all jobs, and settled once when the last of them has ended. The dispatcher
calls `accept` with a job's events, in order."""

import asyncio
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

import msgspec

from fairlane.gateway.errors import ApiError, internal_error
from fairlane.gateway.model_text.token_stream import TokenStream
from fairlane.quotas.limits import LimitStatus
from fairlane.quotas.store import LARGEST_MEASURE, Ask, Charge
from fairlane.scheduler.protocol.messages import (
    CHARGED,
    Event,
    Finished,
    FinishReason,
    Job,
    JobSteps,
    Outcome,
    Paused,
    PositionLogprobs,
    Preempted,
    PromptLogprobs,
    Resumed,
    TokenDelta,
)

# Preemptions and similar events waiting for a slow client; more are dropped. Tokens are bounded by the job.
MAX_NOTICES = 256
# Outcomes from best to worst. A request ends with the worst outcome of its jobs.
_GRAVITY = (Outcome.FINISHED, Outcome.CANCELLED, Outcome.EXPIRED, Outcome.UNAVAILABLE, Outcome.FAILED)


def job_ids(booking_id: str, prompts: int) -> list[str]:
    """Return the ids of a request's jobs, which can be derived from the reservation's id."""
    return [booking_id, *[f"{booking_id}-{number:03}" for number in range(1, prompts)]]


def request_of(job_id: str) -> str:
    """Return the id of a job's request."""
    return job_id.partition("-")[0]


def charge_of(
    outcome: Outcome,
    prompt_tokens: int,
    output_tokens: int,
    cached_tokens: int = 0,
    preemptions: int = 0,
    steps: JobSteps | None = None,
    *,
    taken: bool,
) -> Charge:
    """Return the charge of one job, by what is known at its end.

    The prompt is charged if there is output, or if a worker had started the job (`taken`) and did not fail. `steps` are
    the worker's measurements."""
    if outcome not in CHARGED:
        return Charge.refund()
    has_prompt = output_tokens > 0 or (taken and outcome in (Outcome.FINISHED, Outcome.CANCELLED))
    return Charge(
        prompt_tokens=prompt_tokens if has_prompt else 0,
        cached_tokens=min(cached_tokens, prompt_tokens) if has_prompt else 0,
        output_tokens=output_tokens,
        outcome=outcome.value,
        preemptions=preemptions,
        gpu_us=0 if steps is None else min(max(0, steps.gpu_us), LARGEST_MEASURE),
        kv_block_ms=0 if steps is None else min(max(0, steps.kv_block_ms), LARGEST_MEASURE),
    )


def total(charges: Sequence[Charge]) -> Charge:
    """Add up the charges of a request's jobs."""
    if len(charges) == 1:
        return charges[0]
    owed = [charge for charge in charges if not charge.is_refund]
    if len(owed) <= 1:
        return owed[0] if owed else Charge.refund()
    return Charge(
        prompt_tokens=sum(charge.prompt_tokens for charge in owed),
        cached_tokens=sum(charge.cached_tokens for charge in owed),
        output_tokens=sum(charge.output_tokens for charge in owed),
        outcome=max((Outcome(charge.outcome) for charge in owed), key=_GRAVITY.index).value,
        preemptions=sum(charge.preemptions for charge in owed),
        gpu_us=min(sum(charge.gpu_us for charge in owed), LARGEST_MEASURE),
        kv_block_ms=min(sum(charge.kv_block_ms for charge in owed), LARGEST_MEASURE),
    )


# An event of the queue, or an error of the gateway's own that ends the job.
News = Event | ApiError
_NOTICES = (Preempted, Resumed, Paused)


@dataclass(slots=True)
class Choice:
    """The progress of one choice."""

    index: int
    # Converts tokens to text; None before the stream starts.
    reader: TokenStream | None = None
    token_ids: "array[int]" = field(default_factory=partial(array, "I"), repr=False)
    # Number of accepted tokens, and the only index accepted next.
    published: int = 0
    sent: int = 0
    # Tokens up to the end of a stop string; later ones are not charged.
    stopped_at: int | None = None
    finish_reason: FinishReason | None = None

    @property
    def counted(self) -> int:
        return self.published if self.stopped_at is None else self.stopped_at


class HolderStream(Protocol):
    """The stream of the worker that holds a job, as `pipeline.streams` has it."""

    def grant(self, granted_until: int) -> None:
        """Raise the number of tokens of each choice that the worker may produce."""

    def stop(self) -> None:
        """Ask the worker to end the job."""


class Grants(Protocol):
    """Extends the output of a request while it runs, as `grants.py` does."""

    def sent(self, choice: "Choice") -> None: ...

    def close(self) -> None: ...


class Recorded(Protocol):
    """Records the outcome of a request, as `insight.request_records.live` does."""

    def observe(self, job: "LiveJob", event: Event) -> None:
        """Record an event of a job; of its tokens only the first under each lease, before they are counted."""

    def charged(self, charge: Charge) -> None: ...

    def settled(self) -> None: ...


@dataclass(slots=True, eq=False)
class LiveRequest:
    """One running request: its budget, and events of its jobs that were not read yet.

    It has one reader, and writers on the same event loop."""

    ask: Ask
    # Creation time of its tenant: a later tenant of the same id is another one.
    tenant_since: float = 0.0
    jobs: list["LiveJob"] = field(default_factory=list)
    charges: list[Charge] = field(default_factory=list)
    grants: "Grants | None" = None
    settled: bool = False
    # The caller's limits after the settlement; None until the store has answered.
    statuses: tuple[LimitStatus, ...] | None = None
    record: "Recorded | None" = None
    is_faulty: bool = False
    _news: "list[tuple[LiveJob, News]]" = field(default_factory=list, repr=False)
    _reader: Callable[[], None] | None = field(default=None, repr=False)

    @property
    def id(self) -> str:
        return self.ask.reservation_id

    @property
    def published(self) -> int:
        published = 0
        for job in self.jobs:
            for choice in job.choices:
                published += choice.published
        return published

    @property
    def landed(self) -> bool:
        return len(self.charges) == len(self.jobs)

    def deliver(self, job: "LiveJob", news: News) -> None:
        """Add an event. Notices are dropped if too many are waiting."""
        if len(self._news) > MAX_NOTICES and isinstance(news, _NOTICES):
            return
        self._news.append((job, news))

    def ring(self) -> None:
        if self._reader is not None:
            self._reader()

    def take_news(self) -> "list[tuple[LiveJob, News]]":
        taken, self._news = self._news, []
        return taken

    def read_by(self, reader: Callable[[], None] | None) -> None:
        """Set the callback for new events. It runs in the same loop iteration and must not raise."""
        self._reader = reader


@dataclass(slots=True, eq=False)
class LiveJob:
    """One job of a request."""

    id: str
    request: LiveRequest = field(repr=False)
    prompt_tokens: int
    queue: str
    first_choice: int = 0
    limited_by: str | None = None
    # Output tokens per choice last granted to its worker.
    granted: int = 0
    # Output tokens per choice at which it ends, because no more will be granted.
    cut_at: int | None = None
    # Set before `put`: from then on the job may be in the queue, whatever `put` returned.
    message: Job | None = None
    queued_s: float = 0.0
    # Its first place among its tenant's jobs in the queue, from 1.
    place: int = 0
    choices: list[Choice] = field(default_factory=list)
    begun: bool = False
    # Epoch of the lease under which its tokens arrive; 0 before the first.
    epoch: int = 0
    # Epoch of the last lease that opened it; older ones are refused.
    fence: int = 0
    # Of its holder; None while it waits for one.
    stream: "HolderStream | None" = field(default=None, repr=False)
    preemptions: int = 0
    # Prompt tokens found in the prefix cache; known from the first token on.
    cached_tokens: int = 0
    # Of the prompt's tokens after the first, if requested.
    prompt_logprobs: list[PositionLogprobs] = field(default_factory=list, repr=False)
    finished: Finished | None = None
    # Its end is decided. It is charged exactly once, with its request.
    settled: bool = False
    _ended: asyncio.Event | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        self.choices = [Choice(self.first_choice + number) for number in range(self.request.ask.n)]

    @property
    def granted_until(self) -> int:
        return self.granted if self.message is None else min(self.granted, self.message.max_tokens)

    @property
    def is_complete(self) -> bool:
        """True if every choice has its finish reason, so that the client needs nothing more."""
        for choice in self.choices:  # noqa: SIM110 - asked several times per request: a generator costs more
            if choice.finish_reason is None:
                return False
        return True

    @property
    def awaits_end(self) -> bool:
        """True if it may be in the queue, and neither the queue nor the gateway has ended it."""
        return self.message is not None and self.finished is None and not self.settled

    async def end(self) -> None:
        if self.finished is None:
            self._ended = self._ended or asyncio.Event()
            await self._ended.wait()

    def accept(self, event: Event) -> None:
        """Handle one event of the job's holder or of its queue, accepting only the next tokens of each choice, once.

        The caller wakes the reader with `LiveRequest.ring` after the last event of a batch."""
        if self.finished is not None:
            return
        if isinstance(event, TokenDelta):
            self._accept_tokens(event)
            return
        if isinstance(event, PromptLogprobs):
            self._accept_prompt_logprobs(event)
            return
        if isinstance(event, Finished):
            self.finished = event
            self.preemptions = max(self.preemptions, event.preemptions)
            self.cached_tokens = max(self.cached_tokens, event.cached_tokens)
            if self._ended is not None:
                self._ended.set()
        elif isinstance(event, Preempted):
            self.preemptions += 1
        if self.request.record is not None:
            self.request.record.observe(self, event)
        self.request.deliver(self, event)

    def cut(self, tokens: int, limited_by: str) -> None:
        """End every running choice at `tokens` because of a limit: no more will be granted."""
        self.cut_at, self.limited_by = tokens, limited_by
        for number, choice in enumerate(self.choices):
            if choice.finish_reason is None and choice.published >= tokens:
                end = TokenDelta(
                    job_id=self.id,
                    epoch=0,
                    choice=number,
                    first_index=choice.published,
                    token_ids=(),
                    finish_reason="length",
                )
                self.request.deliver(self, end)
        self.request.ring()

    def fail(self, error: ApiError) -> None:
        self.request.is_faulty = True
        self.request.deliver(self, error)
        self.request.ring()

    def charge(self, outcome: Outcome, *, taken: bool = True) -> Charge:
        """Return the charge of the job at its end. `taken`: a worker has started it."""
        output = 0
        for choice in self.choices:
            output += choice.counted
        steps = None if self.finished is None else self.finished.steps
        return charge_of(outcome, self.prompt_tokens, output, self.cached_tokens, self.preemptions, steps, taken=taken)

    def _accept_prompt_logprobs(self, event: PromptLogprobs) -> None:
        """Accept the next ones, once: another worker computes the prompt again from its beginning."""
        known = 1 + len(self.prompt_logprobs) - event.first
        if known < 0:
            self.fail(internal_error())
        elif self._lacks_prompt_logprobs:
            self.prompt_logprobs += event.logprobs[known:]

    @property
    def _lacks_prompt_logprobs(self) -> bool:
        wanted = self.message is not None and self.message.sampling.prompt_logprobs is not None
        return wanted and len(self.prompt_logprobs) < self.prompt_tokens - 1

    def _accept_tokens(self, delta: TokenDelta) -> None:
        if not 0 <= delta.choice < len(self.choices):
            return
        if delta.epoch > self.epoch:
            self.epoch = delta.epoch
            if self.request.record is not None:
                self.request.record.observe(self, delta)
        if delta.cached_tokens > self.cached_tokens:
            self.cached_tokens = delta.cached_tokens
        choice = self.choices[delta.choice]
        known = choice.published - delta.first_index
        if known < 0:  # a link keeps the order, so this is corruption, not a race
            self.fail(internal_error())
            return
        fresh = delta.token_ids[known:]
        if not fresh and delta.finish_reason is None:
            return
        if known:
            first_index, logprobs = delta.first_index + known, delta.logprobs[known:]
            delta = msgspec.structs.replace(delta, first_index=first_index, token_ids=fresh, logprobs=logprobs)
        if not self.begun and self._lacks_prompt_logprobs:
            self.fail(internal_error())
            return
        choice.token_ids.extend(fresh)
        choice.published += len(fresh)
        self.begun = self.begun or choice.published > 0
        if self.cut_at is not None and choice.published >= self.cut_at and delta.finish_reason is None:
            delta = msgspec.structs.replace(delta, finish_reason="length")
        self.request.deliver(self, delta)
