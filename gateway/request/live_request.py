"""One request that was let in, with a job for each of its prompts: what has arrived of each, and its one end.

The request holds the budget: reserved once for all jobs, settled once when the last of them has ended. Who owns a job,
and when it changes hands:

    submit       reserves the request's tokens, puts its jobs into the queue; takes both back where that fails half-way
    stream       tells its tokens to the client, and ends it where it ends by itself
    settlements  gets every job that its stream leaves open (client gone, deadline, fault, shutdown): cancels the job,
                 learns what was published; settles the request with what all its jobs came to

The dispatcher only delivers: `accept` is called by the one task that reads the job's queue, in order.
"""

import asyncio
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from fairlane.gateway.errors import ApiError, internal_error
from fairlane.gateway.model_text.tokenizer import TokenStream
from fairlane.quotas.limits import LimitStatus
from fairlane.quotas.store import LARGEST_MEASURE, Ask, Charge, Reservation
from fairlane.scheduler.protocol.messages import (
    CHARGED,
    Event,
    Finished,
    FinishReason,
    Job,
    JobSteps,
    Outcome,
    Paused,
    Preempted,
    Resumed,
    TokenDelta,
)

MAX_NOTICES = 256
"""Preemptions and the like that may wait for a slow client; more are dropped. Tokens are bounded by the job."""


_GRAVITY = (Outcome.FINISHED, Outcome.CANCELLED, Outcome.EXPIRED, Outcome.UNAVAILABLE, Outcome.FAILED)
"""How a request of several jobs ends: as the one that fared worst."""


def job_ids(booking_id: str, prompts: int) -> list[str]:
    """Ids of a request's jobs: whoever finds the reservation finds them all."""
    return [booking_id, *(f"{booking_id}-{number:03}" for number in range(1, prompts))]


def request_of(job_id: str) -> str:
    """Id of the request that a job is of."""
    return job_id.partition("-")[0]


def owed(
    outcome: Outcome,
    prompt_tokens: int,
    output_tokens: int,
    cached_tokens: int = 0,
    preemptions: int = 0,
    steps: JobSteps | None = None,
    *,
    taken: bool,
) -> Charge:
    """What one job comes to, by whatever is known of it at its end: its tokens, and its prompt where it has any or a
    worker had begun with it (`taken`) and did not fail. `steps`: as its worker measured them."""
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


def total(charges: Iterable[Charge]) -> Charge:
    """What a request comes to, from what each of its jobs does."""
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


@dataclass(frozen=True, slots=True)
class Fault:
    """Why a job cannot go on, where no worker says so."""

    error: ApiError


News = Event | Fault
_NOTICES = (Preempted, Resumed, Paused)


@dataclass(slots=True)
class Choice:
    """How far one choice has come."""

    index: int
    """Within the whole answer."""
    reader: TokenStream | None = None
    """Its tokens as text; None before the request's stream has begun."""
    token_ids: "array[int]" = field(default_factory=lambda: array("I"), repr=False)
    """Tokens accepted, in order."""
    published: int = 0
    """Their number, which is also the only next index that is accepted."""
    spoken: int = 0
    """Of these, those that the answer holds by now."""
    stopped_at: int | None = None
    """Tokens up to and with the one that completed a stop string: all that is charged of it."""
    finish_reason: FinishReason | None = None

    @property
    def counted(self) -> int:
        """Tokens charged so far."""
        return self.published if self.stopped_at is None else self.stopped_at


class Grants(Protocol):
    """Who asks for more output of a request while it runs; `grants.py` has it."""

    def spoken(self, choice: "Choice") -> None:
        """A token of this choice was told: it may need more soon."""

    def paused(self, job: "LiveJob", choice: "Choice") -> None:
        """It has come to all that it was granted, and waits."""

    def close(self) -> None:
        """Nothing is asked for any more."""


class Recorded(Protocol):
    """Who keeps what becomes of a request; `gateway.records.live` has it."""

    def heard(self, job: "LiveJob", event: Event) -> None:
        """A worker has said something of a job: of its tokens only the first under each lease, before they are
        counted."""

    def charged(self, charge: Charge) -> None:
        """It is settled, and its jobs are still at hand."""

    def settled(self) -> None:
        """A reaper will settle it."""


@dataclass(slots=True, eq=False)
class LiveRequest:
    """What one request holds of its budget, and the news of its jobs until they are told: one reader, and writers on
    the same loop."""

    ask: Ask
    tenant_since: float = 0.0
    """When its tenant was made: one of the same id that was made later is another."""
    jobs: list["LiveJob"] = field(default_factory=list)
    reservation: Reservation | None = None
    charges: list[Charge] = field(default_factory=list)
    """Of the jobs that have ended."""
    grants: "Grants | None" = None
    """Who asks for more output, where the reservation does not hold all that it may come to."""
    settled: bool = False
    """The store has booked its charge."""
    statuses: tuple[LimitStatus, ...] | None = None
    """The caller's limits as that left them; None: the store has not said."""
    record: "Recorded | None" = None
    """Who keeps what becomes of it, from when all its jobs are put."""
    is_faulty: bool = False
    """A fault has come, told or not."""
    _news: "list[tuple[LiveJob, News]]" = field(default_factory=list, repr=False)
    _reader: Callable[[], None] | None = field(default=None, repr=False)

    @property
    def id(self) -> str:
        """The id that the budget knows it by."""
        return self.ask.reservation_id

    @property
    def published(self) -> int:
        """Tokens that have arrived, those beyond a stop string too."""
        return sum([choice.published for job in self.jobs for choice in job.choices])

    @property
    def landed(self) -> bool:
        """What each of its jobs came to is known."""
        return len(self.charges) == len(self.jobs)

    def deliver(self, job: "LiveJob", news: News) -> None:
        """News of a job. What is no token and no end may be dropped where too much waits."""
        if len(self._news) > MAX_NOTICES and isinstance(news, _NOTICES):
            return
        self._news.append((job, news))

    def ring(self) -> None:
        """All news that came together is there: the reader may take it now."""
        if self._reader is not None:
            self._reader()

    def take_news(self) -> "list[tuple[LiveJob, News]]":
        """All that waits, in order."""
        taken, self._news = self._news, []
        return taken

    def read_by(self, reader: Callable[[], None] | None) -> None:
        """Call this from now on whenever there is more, in the turn in which it comes; it must not raise."""
        self._reader = reader


@dataclass(slots=True, eq=False)
class LiveJob:
    """One job, keyed by its id everywhere."""

    id: str
    """What queue and trace know it by."""
    request: LiveRequest = field(repr=False)
    prompt_tokens: int
    queue: str
    """Name of the queue it is put into."""
    first_choice: int = 0
    """Index of its choice 0 within the request's answer."""
    limited_by: str | None = None
    """The limit that left its choices less than they might have come to, if one did."""
    granted: int = 0
    """Output tokens per choice that its worker may make, as far as it was told."""
    cut_at: int | None = None
    """Output tokens per choice at which it ends, since no more will be granted."""
    message: Job | None = None
    """Set before it is put: from then on it may be in the queue, whatever `put` answered."""
    queued_s: float = 0.0
    """When it was first put, on the event loop's clock."""
    place: int = 0
    """Its first among its tenant's in the queue, from 1."""
    choices: list[Choice] = field(default_factory=list)
    epoch: int = 0
    """Of the lease under which its tokens come; 0 before the first."""
    diverged: int = -1
    """The last epoch whose tokens differ from those that the client has; nothing of it is accepted. -1: none."""
    preemptions: int = 0
    cached_tokens: int = 0
    """Of its prompt, what the prefix cache had; known from its first token on."""
    finished: Finished | None = None
    over: bool = False
    """Its job has ended in the queue, as its record says."""
    settled: bool = False
    """Its end is decided; it is charged exactly once, with its request."""
    _ended: asyncio.Event | None = field(default=None, repr=False)
    """Set with `finished`, where somebody waits for that."""

    def __post_init__(self) -> None:
        self.choices = [Choice(self.first_choice + number) for number in range(self.request.ask.n)]

    @property
    def begun(self) -> bool:
        """A token has arrived."""
        choices = self.choices
        return choices[0].published > 0 if len(choices) == 1 else any(choice.published for choice in choices)

    @property
    def told(self) -> bool:
        """Every choice has its finish reason: the client needs nothing more of it."""
        choices = self.choices
        if len(choices) == 1:
            return choices[0].finish_reason is not None
        return all(choice.finish_reason is not None for choice in choices)

    async def end(self) -> None:
        """Wait until it is `finished`."""
        if self.finished is None:
            self._ended = self._ended or asyncio.Event()
            await self._ended.wait()

    def accept(self, event: Event) -> None:
        """Take in one event of the queue's stream: only the next tokens of each choice, each once.

        Whoever has no more for now rings at the request.
        """
        if self.finished is not None:
            return
        if isinstance(event, TokenDelta):
            self._accept_tokens(event)
            return
        if isinstance(event, Finished):
            if event.epoch <= self.diverged and event.outcome is Outcome.FINISHED:
                return
            self.finished = event
            self.preemptions = max(self.preemptions, event.preemptions)
            self.cached_tokens = max(self.cached_tokens, event.cached_tokens)
            if self._ended is not None:
                self._ended.set()
        elif isinstance(event, Preempted):
            self.preemptions += 1
        if self.request.record is not None:
            self.request.record.heard(self, event)
        self.request.deliver(self, event)

    def cut(self, tokens: int, limited_by: str) -> None:
        """Let every choice that goes on end at so many tokens, by this limit: no more will be granted."""
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
        """End the request with this error; its generation hands the job over."""
        self.request.is_faulty = True
        self.request.deliver(self, Fault(error))
        self.request.ring()

    def charge(self, outcome: Outcome, *, recorded: Sequence[int] = (), taken: bool = True) -> Charge:
        """What the job comes to at its end.

        `recorded`: published tokens per choice by the job's record, where that may be ahead of what was delivered.
        `taken`: a worker has begun with it.
        """
        output = sum([choice.counted for choice in self.choices])
        for choice, published in zip(self.choices, recorded, strict=False):
            if choice.stopped_at is None:
                output += max(0, published - choice.published)
        steps = None if self.finished is None else self.finished.steps
        return owed(outcome, self.prompt_tokens, output, self.cached_tokens, self.preemptions, steps, taken=taken)

    def _accept_tokens(self, delta: TokenDelta) -> None:
        if not 0 <= delta.choice < len(self.choices) or delta.epoch <= self.diverged:
            return
        if delta.epoch > self.epoch:
            self.epoch = delta.epoch
            if self.request.record is not None:
                self.request.record.heard(self, delta)
        if delta.cached_tokens > self.cached_tokens:
            self.cached_tokens = delta.cached_tokens
        choice = self.choices[delta.choice]
        known = choice.published - delta.first_index
        if known < 0:  # the store fences and orders what it accepts, so this is damage, not a race
            self.fail(internal_error())
            return
        if known and not _repeats(choice.token_ids, delta):
            self.diverged = delta.epoch
            return
        fresh = delta.token_ids[known:]
        if not fresh and delta.finish_reason is None:
            return
        if known:
            first_index, logprobs = delta.first_index + known, delta.logprobs[known:]
            delta = msgspec.structs.replace(delta, first_index=first_index, token_ids=fresh, logprobs=logprobs)
        choice.token_ids.extend(fresh)
        choice.published += len(fresh)
        if self.cut_at is not None and choice.published >= self.cut_at and delta.finish_reason is None:
            delta = msgspec.structs.replace(delta, finish_reason="length")
        self.request.deliver(self, delta)


def _repeats(known: "array[int]", delta: TokenDelta) -> bool:
    """Whether the tokens of a delta that are known already are the same."""
    repeated = known[delta.first_index : delta.first_index + len(delta.token_ids)]
    return tuple(repeated) == delta.token_ids[: len(repeated)]
