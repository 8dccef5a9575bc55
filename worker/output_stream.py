"""One lease's output, kept until its gateway has the job's end, and the part that the gateway lacks."""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

import msgspec

from fairlane.scheduler.links.frames import Events, Tokens
from fairlane.scheduler.protocol.messages import (
    Event,
    Finished,
    FinishReason,
    Lease,
    Outcome,
    PositionLogprobs,
    PromptLogprobs,
    TokenDelta,
)
from fairlane.scheduler.queue.types import Progress

# Preemptions and similar events that wait for the gateway; the oldest are dropped.
MAX_NOTICES = 256
# Tokens in one message after a redial; with 20 log-probabilities each, about 300 kB.
TOKENS_PER_MESSAGE = 1_024


@dataclass(slots=True, eq=False)
class OutputStream:
    """One lease's output."""

    lease: Lease
    number: int
    # Of each choice, including what its gateway had when the lease began.
    output: list[list[int]] = field(default_factory=list)
    # Of each choice's last tokens, if requested.
    logprobs: list[list[PositionLogprobs]] = field(default_factory=list)
    finish: list[FinishReason | None] = field(default_factory=list)
    # Waits for its gateway's answer before it starts.
    waits: bool = False
    # Its images and sounds are being fetched, before it starts.
    lacks_media: bool = False
    is_open: bool = False
    # The first token under this lease, with its timing.
    first: TokenDelta | None = None
    embeddings: list[TokenDelta] = field(default_factory=list)
    prompt_logprobs: list[PromptLogprobs] = field(default_factory=list)
    # Preemptions and the like, since the stream is not open.
    notices: deque[Event] = field(default_factory=partial(deque, maxlen=MAX_NOTICES))
    end: Finished | None = None
    # The gateway has the end, or will never ask for it.
    is_over: bool = False
    outcome: Outcome | None = None
    # Weighted tokens: computed since the last report, and charged in advance.
    cost: float = 0.0
    charged: float = 0.0
    reported: int = 0

    @property
    def job_id(self) -> str:
        return self.lease.job.job_id

    @property
    def key(self) -> tuple[str, int]:
        return self.job_id, self.lease.epoch

    @property
    def generated(self) -> int:
        return sum(map(len, self.output))

    def begin(self, generated: Sequence[Sequence[int]]) -> None:
        self.output = [[*ids] for ids in generated]
        self.logprobs = [[] for _ in generated]
        self.finish = [None] * len(self.output)
        self.first = None
        self.prompt_logprobs.clear()
        self.notices.clear()

    def record(self, events: Iterable[Event]) -> None:
        for event in events:
            if isinstance(event, TokenDelta):
                self.output[event.choice] += event.token_ids
                self.logprobs[event.choice] += event.logprobs
                self.finish[event.choice] = event.finish_reason or self.finish[event.choice]
                self.first = self.first or event
                if event.embedding:
                    self.embeddings.append(event)
            elif isinstance(event, Finished):
                self.end, self.outcome = event, event.outcome
            elif isinstance(event, PromptLogprobs):
                self.prompt_logprobs.append(event)
            elif not self.is_open:
                self.notices.append(event)

    def since(self, generated: Sequence[Sequence[int]]) -> list[Event]:
        """Return what the gateway lacks, which has these tokens of each choice.

        Notices such as preemptions are sent once; a lost link loses them."""
        events: list[Event] = [*self.embeddings]
        if not any(generated):  # else the gateway has them, since they precede all tokens
            events += self.prompt_logprobs
        for choice, ids in enumerate(generated):
            events += self._choice_since(choice, len(ids))
        events += self.notices
        self.notices.clear()
        if self.end is not None:
            events.append(self.end)
        return events

    def _choice_since(self, choice: int, known: int) -> Iterator[TokenDelta]:
        output, finish = self.output[choice], self.finish[choice]
        if len(output) <= known and finish is None:
            return
        # The engine reports log-probabilities only of the tokens that it produced under this lease.
        logprobs, without = self.logprobs[choice], len(output) - len(self.logprobs[choice])
        first = self.first if self.first is not None and self.first.choice == choice else None
        for at in range(known, max(len(output), known + 1), TOKENS_PER_MESSAGE):
            until = at + TOKENS_PER_MESSAGE
            yield TokenDelta(
                job_id=self.job_id,
                epoch=self.lease.epoch,
                choice=choice,
                first_index=at,
                token_ids=tuple(output[at:until]),
                logprobs=tuple(logprobs[at - without : until - without]) if logprobs else (),
                finish_reason=finish if until >= len(output) else None,
                cached_tokens=0 if first is None else first.cached_tokens,
                queued_ms=None if first is None else first.queued_ms,
                prefill_ms=None if first is None else first.prefill_ms,
                worker_id="" if first is None else first.worker_id,
            )
            first = None

    def progress(self, *, returns: bool) -> Progress:
        # A job that has not run here keeps what an earlier holder reported.
        keeps = self.lease.job.keeps_output and (self.is_over or returns) and self.generated > 0
        self.reported, cost, self.cost = self.generated, self.cost, 0.0
        self.charged = max(0.0, self.charged - cost)
        return Progress(
            job_id=self.job_id,
            epoch=self.lease.epoch,
            generated=self.generated,
            cost=cost,
            ends=self.outcome if self.is_over else None,
            token_ids=tuple(map(tuple, self.output)) if keeps else (),
        )


def messages_of(number: int, events: Sequence[Event]) -> list[msgspec.Struct]:
    """Return the messages of one job's events, in order; plain tokens need few bytes."""
    if all(isinstance(event, TokenDelta) and _is_plain(event) for event in events):
        return [
            Tokens(number, event.choice, event.first_index, event.token_ids)
            for event in events
            if isinstance(event, TokenDelta)
        ]
    return [Events(number, tuple(events))]


def _is_plain(delta: TokenDelta) -> bool:
    has_more = delta.logprobs or delta.finish_reason or delta.cached_tokens or delta.embedding or delta.worker_id
    return not has_more and delta.queued_ms is None
