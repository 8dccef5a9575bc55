"""The runner of an external engine: a sequence has a stream at the server exactly while the planner gives it a row.

The server gets a whole prompt when the planner has room for its last part. A row whose token has not arrived is
pending, and planned again. The duration of the server's steps is derived from the tokens' arrival times."""

import hashlib
import hmac
import logging
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from fairlane.scheduler.planner.ordering import first_due_ms
from fairlane.scheduler.planner.steps import Row, SeqId, StepPlan, StepResult
from fairlane.scheduler.protocol import engine_priority
from fairlane.scheduler.protocol.lanes import Lane, LaneName
from fairlane.scheduler.protocol.messages import (
    Job,
    Lease,
    Paused,
    PositionLogprobs,
    Preempted,
    PromptLogprobs,
    Resumed,
)
from fairlane.worker.engine.engine import LookAhead, StepRunner
from fairlane.worker.remote.api import GenerationRequest, MediaItem
from fairlane.worker.remote.lark import as_lark
from fairlane.worker.remote.streams import StreamEnd, Streams, Token

log = logging.getLogger(__name__)

# Time that a step waits for a token before jobs are examined again, since deadlines pass meanwhile.
PATIENCE_S = 0.1
# Maximum number of consecutive broken streams before a choice fails.
MOST_TRIES = 4
# Delay before the second try; it doubles with each further one.
RETRY_S = 0.25
# Number of steps without a row after which a stream is ended, to free its place.
UNPLANNED = 64
FAILED = "the engine could not compute this request"
_SEED_BITS = 63


@dataclass(slots=True)
class _Choice:
    job: Job
    number: int
    # Deadline of its first token, in Unix milliseconds.
    due_ms: float
    output: list[int]
    salt: str
    # Streams opened so far.
    runs: int = 0
    # Streams that broke since the last token.
    broken: int = 0
    # The run that produced the first token; 0 if that was at another worker.
    first_run: int = 0
    # Number of prompt tokens in the server's prefix cache.
    cached: int = 0
    not_before_s: float = 0.0
    unplanned: int = 0


class _Since(NamedTuple):
    # Arrival of the last step's tokens, or the time of the request for the prompts.
    at_s: float
    prompts: frozenset[SeqId] = frozenset()


@dataclass(slots=True)
class _Found:
    tokens: dict[SeqId, int] = field(default_factory=dict)
    logprobs: dict[SeqId, PositionLogprobs] = field(default_factory=dict)
    prompt_logprobs: dict[str, PromptLogprobs] = field(default_factory=dict)
    failed: dict[SeqId, str] = field(default_factory=dict)
    cached: dict[SeqId, int] = field(default_factory=dict)
    vectors: dict[SeqId, bytes] = field(default_factory=dict)
    arrivals: list[float] = field(default_factory=list)


class RemoteRunner(StepRunner):
    """The `StepRunner` of an external engine."""

    def __init__(
        self,
        streams: Streams,
        lanes: Mapping[LaneName, Lane],
        name: str,
        *,
        max_sequences: int,
        resumes_grammars: bool = False,
    ) -> None:
        """`name` identifies this worker's process in request ids. `max_sequences` bounds the open streams."""
        self._streams = streams
        self._lanes = lanes
        self._name = name
        self._max_sequences = max_sequences
        self._resumes_grammars = resumes_grammars
        # Key of the cache salts, so that other clients cannot guess a salt and probe a tenant's cached KV.
        self._secret = secrets.token_bytes(32)
        self._choices: dict[SeqId, _Choice] = {}
        # Jobs whose gateway lacks the log-probabilities of their prompt: each choice's first stream asks for them.
        self._unscored: set[str] = set()
        # None if the server has started other work since.
        self._since: _Since | None = None

    def register(self, lease: Lease) -> None:
        job = lease.job
        due_ms = time.time() * 1e3 - lease.arrived_ms_ago + first_due_ms(job)
        whose = f"group {job.share_group}" if job.share_group else f"tenant {job.tenant} {job.tenant_since}"
        salt = hmac.new(self._secret, whose.encode(), hashlib.sha256).hexdigest()
        if job.sampling.prompt_logprobs is not None and len(job.prompt) > 1 and not any(lease.generated):
            self._unscored.add(job.job_id)
        for number in range(job.n):
            generated = lease.generated[number] if number < len(lease.generated) else ()
            self._choices[SeqId(job.job_id, number)] = _Choice(job, number, due_ms, [*generated], salt)

    def forget(self, job_id: str) -> None:
        self._unscored.discard(job_id)
        number = 0
        while self._choices.pop(seq := SeqId(job_id, number), None) is not None:
            self._streams.stop([seq])
            number += 1

    def wake(self) -> None:
        self._streams.wake()

    def run(self, plan: StepPlan, on_forward: Callable[[], None], look_ahead: LookAhead) -> StepResult:
        on_forward()
        self._streams.stop(one.seq for one in plan.yields)
        self._streams.stop(SeqId(event.job_id, event.choice) for event in plan.events if _ends_stream(event))
        sampling = [row for row in plan.rows if row.samples]
        self._stop_unplanned(plan.rows, sampling)
        opened = [row.seq for row in sampling if self._ensure_open(row)]
        if sampling:
            self._streams.wait([row.seq for row in sampling], PATIENCE_S)
        found = _Found()
        for row in sampling:
            self._take(row, found)
        run_ms = self._step_ms(plan.rows, opened, found)
        pending = {row.seq for row in sampling} - found.tokens.keys() - found.failed.keys()
        return StepResult(
            number=plan.number,
            tokens=found.tokens,
            failed=found.failed,
            logprobs=found.logprobs,
            prompt_logprobs=found.prompt_logprobs,
            pending=pending,
            cached_tokens=found.cached,
            embeddings=found.vectors,
            is_typical=run_ms is not None,
            run_ms=run_ms or 0.0,
        )

    def _stop_unplanned(self, rows: Sequence[Row], sampling: Sequence[Row]) -> None:
        """End streams without a row for UNPLANNED steps, and the longest idle ones if their places are needed."""
        planned, idle = {row.seq for row in rows}, []
        for seq, choice in self._choices.items():
            choice.unplanned = 0 if seq in planned else choice.unplanned + 1
            if choice.unplanned and self._streams.is_running(seq):
                idle.append((choice.unplanned, seq))
        idle.sort(reverse=True)
        excess = len(idle) + len(sampling) - self._max_sequences
        self._streams.stop([seq for place, (steps, seq) in enumerate(idle) if place < excess or steps >= UNPLANNED])

    def _ensure_open(self, row: Row) -> bool:
        choice = self._choices[row.seq]
        if self._streams.opened_s(row.seq) is not None:
            return False
        if not self._streams.is_up or time.monotonic() < choice.not_before_s:
            return False
        media = self._media(choice.job)
        if len(media) < len(choice.job.media):  # released with the job, which is dropped in a moment
            return False
        choice.runs += 1
        self._streams.open(row.seq, self._ask(choice, media))
        return True

    def _media(self, job: Job) -> list[MediaItem]:
        found = [(span, self._streams.media.get(span.digest)) for span in job.media]
        return [MediaItem(span, data) for span, data in found if data is not None]

    def _ask(self, choice: _Choice, media: Sequence[MediaItem]) -> GenerationRequest:
        # A server that restarts the grammar must repeat the output first.
        job, output = choice.job, choice.output
        repeats = output if job.grammar and not self._resumes_grammars else []
        known = [] if repeats else output
        sampling = msgspec.structs.replace(
            job.sampling,
            min_tokens=max(0, job.sampling.min_tokens - len(known)),
            seed=_seed(job.sampling.seed, choice.number, len(known)),
            prompt_logprobs=job.sampling.prompt_logprobs if job.job_id in self._unscored else None,
        )
        return GenerationRequest(
            request_id=f"{self._name}-{job.job_id}-{choice.number}-{choice.runs}",
            token_ids=[*job.prompt, *known],
            max_tokens=job.max_tokens - len(known),
            sampling=sampling,
            priority=engine_priority.encode(self._lanes[job.lane].rank, choice.due_ms, guaranteed=job.guaranteed),
            cache_salt=choice.salt,
            grammar=as_lark(job.grammar) if job.grammar else "",
            begun=len(known) if job.grammar else 0,
            repeats=[*repeats],
            inputs=job.inputs or (len(job.prompt),),
            media=media,
        )

    def _take(self, row: Row, found: _Found) -> None:
        token = self._streams.take(row.seq)
        if token is not None:
            self._took(row.seq, token, found)
            return
        ended = self._streams.end_of(row.seq)
        if ended is None:
            return
        end, reason = ended
        choice = self._choices[row.seq]
        if end is StreamEnd.REFUSED:
            found.failed[row.seq] = reason
        elif end is StreamEnd.BROKEN:
            choice.broken += 1
            choice.not_before_s = time.monotonic() + RETRY_S * 2 ** (choice.broken - 1)
            if choice.broken >= MOST_TRIES:
                found.failed[row.seq] = FAILED

    def _took(self, seq: SeqId, token: Token, found: _Found) -> None:
        choice = self._choices[seq]
        choice.output.append(token.token_id)
        choice.broken = 0
        found.tokens[seq] = token.token_id
        found.arrivals.append(token.arrived_s)
        if token.logprob is not None:
            found.logprobs[seq] = token.logprob
        if token.prompt_logprobs and seq.job_id in self._unscored:
            self._unscored.remove(seq.job_id)
            of_prompt = PromptLogprobs(job_id=seq.job_id, first=1, logprobs=tuple(token.prompt_logprobs))
            found.prompt_logprobs[seq.job_id] = of_prompt
        if token.vectors:
            found.vectors[seq] = token.vectors
        if len(choice.output) == 1:
            choice.first_run = choice.runs
        cached = min(token.cached_tokens, len(choice.job.prompt))
        if choice.runs == choice.first_run and cached > choice.cached:  # later runs find the first run's own KV
            found.cached[seq] = choice.cached = cached

    def _step_ms(self, rows: Sequence[Row], opened: Sequence[SeqId], found: _Found) -> float | None:
        """Return a step's duration at the server, if the arrival times show it.

        They do if all tokens arrived after the last such step, or after prompts requested together while nothing else
        ran."""
        since, self._since = self._since, None
        if not rows:
            return None
        if opened:
            since = self._asked_at_once(rows, opened)
        if not (found.tokens or found.failed):
            self._since = since  # the step continues: it may take longer than one step here waits
            return None
        if len(found.tokens) < len(rows):
            return None
        first_s, last_s = min(found.arrivals), max(found.arrivals)
        self._since = _Since(last_s)
        if since is None or first_s <= since.at_s:
            return None
        if since.prompts:
            is_alike = since.prompts == {row.seq for row in rows} and not found.cached
        else:
            is_alike = all(len(row.token_ids) == 1 for row in rows)
        return (last_s - since.at_s) * 1e3 if is_alike else None

    def _asked_at_once(self, rows: Sequence[Row], opened: Sequence[SeqId]) -> "_Since | None":
        if len(opened) < len(rows) or any(row.first_position for row in rows):
            return None
        at_s = [self._streams.opened_s(seq) or 0.0 for seq in opened]
        return _Since(min(at_s), frozenset(opened))


def _ends_stream(event: Preempted | Resumed | Paused) -> bool:
    return isinstance(event, Paused) or (isinstance(event, Preempted) and event.mode == "keep")


def _seed(seed: int, choice: int, so_far: int) -> int:
    """Return the seed of one run: a server restarts its generator, and would draw the same for every choice."""
    if not (choice or so_far):
        return seed
    words = hashlib.sha256(f"{seed} {choice} {so_far}".encode()).digest()
    return int.from_bytes(words[:8], "big") >> (64 - _SEED_BITS)
