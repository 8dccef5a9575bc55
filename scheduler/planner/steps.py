"""One step of a worker as plain values: what the planner says to run, and what the runner says came out.

Parameters out of range are refused where a thing is built, in one line that names the value and the rule.
"""

import math
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

import msgspec

from fairlane.scheduler.protocol.messages import (
    FinishReason,
    JobSteps,
    Outcome,
    Paused,
    PositionLogprobs,
    Preempted,
    Resumed,
    YieldMode,
)


class SeqId(NamedTuple):
    """One choice of one job: the unit that owns a block table."""

    job_id: str
    choice: int


class Copy(NamedTuple):
    """One KV block to copy. Device blocks and host slots are both counted from 0."""

    source: int
    target: int


class Row(NamedTuple):
    """One sequence's part of a step: compute `token_ids` at positions from `first_position`."""

    seq: SeqId
    token_ids: tuple[int, ...]
    first_position: int
    block_table: tuple[int, ...]
    """Device blocks that hold positions 0 to `first_position + len(token_ids) - 1`, in order."""
    samples: bool
    """The last token's logits yield the next output token."""
    output_index: int
    """Index of that output token within its choice; the counter of its random draw."""

    @property
    def context_length(self) -> int:
        """KV tokens that the last token of the row attends to."""
        return self.first_position + len(self.token_ids)

    def __repr__(self) -> str:
        return f"Row({self.seq}, {len(self.token_ids)} tokens at {self.first_position}, samples={self.samples})"


class StepFeatures(NamedTuple):
    """What a step's time depends on."""

    rows: int
    prefill_tokens: int
    """Tokens of rows that compute more than one."""
    context: int
    """KV tokens that one-token rows attend to."""
    attention: int
    """Token times context, over the rows that compute more than one."""


NO_WORK = StepFeatures(0, 0, 0, 0)


def features(rows: Iterable[Row]) -> StepFeatures:
    """The features of a step's rows."""
    count = prefill_tokens = context = attention = 0
    for row in rows:
        count += 1
        if len(row.token_ids) == 1:
            context += row.context_length
        else:
            prefill_tokens += len(row.token_ids)
            attention += len(row.token_ids) * row.context_length
    return StepFeatures(count, prefill_tokens, context, attention)


class Yield(NamedTuple):
    """A preemption in a step: the sequence yields blocks with the KV of its tokens from `first` up to `end`."""

    seq: SeqId
    mode: YieldMode
    first: int
    end: int
    predicted_ms: float
    """Expected cost of its way back; 0.0 where nobody asked."""
    copied: int = 0
    """Blocks that go to the host in this step; by swap, the others are there already."""


class WaitReason(StrEnum):
    """Why a sequence has no row in a step."""

    SLOTS = "slots"
    """The batch is full of more urgent work."""
    TOKENS = "tokens"
    """The step's token budget is spent on more urgent work."""
    PACE = "pace"
    """With it the step would take longer than decodes of the first lane can bear."""
    BLOCKS = "blocks"
    """KV blocks are short, and nobody that may yield holds enough."""
    HOST = "host"
    """It must never be computed again, and the host pool has no room left to swap it to."""
    HEAD = "head"
    """It would fit, but would delay a more urgent request that lacks blocks."""
    GRANT = "grant"
    """Its budget allows no further token yet."""
    PREFIX = "prefix"
    """A sibling choice is computing the prompt that both share."""
    PREEMPTED = "preempted"
    """It yielded its blocks in this very step."""


@dataclass(frozen=True, slots=True)
class StepPlan:
    """What one step does, in this order: swap out, swap in, run the rows."""

    number: int
    rows: tuple[Row, ...] = ()
    swap_out: tuple[Copy, ...] = ()
    """Device block to host slot. The device blocks may be written by this step's rows, but for those that only go
    ahead."""
    swap_in: tuple[Copy, ...] = ()
    """Host slot to device block. The host slots are free once the step has run."""
    events: tuple[Preempted | Resumed | Paused, ...] = ()
    yields: tuple[Yield, ...] = ()
    """All blocks taken; events tell only of those who ran until then."""
    features: StepFeatures = NO_WORK
    """Of the rows: what the step's time depends on."""
    waits: Mapping[str, int] = field(default_factory=dict)
    """Sequences that were looked at and got no row, by `WaitReason`."""
    ahead: int = 0
    """Of the copies to the host, those of blocks that nobody yields yet: they take next to nothing from the step."""
    predicted_ms: float = 0.0

    @property
    def copies(self) -> int:
        """Blocks that swaps copy, both ways together."""
        return len(self.swap_out) + len(self.swap_in) - self.ahead

    @property
    def is_empty(self) -> bool:
        return not (self.rows or self.swap_out or self.swap_in)


@dataclass(frozen=True, slots=True)
class StepResult:
    """What the runner produced for a plan."""

    number: int
    tokens: Mapping[SeqId, int] = field(default_factory=dict)
    """The sampled token of each row that samples."""
    failed: Mapping[SeqId, str] = field(default_factory=dict)
    """Rows that could not be computed (a NaN, say), with a reason that holds no content."""
    logprobs: Mapping[SeqId, PositionLogprobs] = field(default_factory=dict)
    """Of the sampled tokens whose requests ask for them."""
    pending: Set[SeqId] = frozenset()
    """Rows that are not computed yet, where the runner does not wait for all: they are planned again."""
    cached_tokens: Mapping[SeqId, int] = field(default_factory=dict)
    """Of the prompts of these rows, what a cache had that the planner does not keep; said with any of their tokens."""
    embeddings: Mapping[SeqId, bytes] = field(default_factory=dict)
    """Of an embedder's rows, what is told in place of the token."""
    is_typical: bool = True
    """Steps like this one take `run_ms`."""
    run_ms: float = 0.0
    """Wall time of the rows."""
    copy_ms: float = 0.0
    """Wall time of the swaps."""


class Produced(msgspec.Struct, frozen=True):
    """A token that a sequence gained, and its end if that was the last."""

    seq: SeqId
    index: int
    token_id: int
    finish_reason: FinishReason | None
    cached_tokens: int = 0
    """With its first token, or with the one by which it was known: of the job's prompt, what the prefix cache had."""

    def __repr__(self) -> str:
        return f"Produced({self.seq}[{self.index}], {self.finish_reason})"


@dataclass(frozen=True, slots=True)
class Ended:
    """A job that is over in this worker; its blocks are free."""

    job_id: str
    outcome: Outcome
    error: str = ""
    preemptions: int = 0
    cached_tokens: int = 0
    steps: JobSteps | None = None
    """What its steps came to; None where none was planned."""


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """What the planner learnt from a result, for the server to publish."""

    produced: tuple[Produced, ...] = ()
    ended: tuple[Ended, ...] = ()
    charges: Mapping[str, float] = field(default_factory=dict)
    """Weighted tokens computed in this step, by job: what its tenant's counter is charged."""


@dataclass(frozen=True, slots=True)
class Yielding:
    """What one lane's own work in a worker would yield, to tenants that were served less than those that hold it."""

    begun: tuple[str, ...]
    """Tenants whose work has begun here, at least a quarter as much as of any other."""
    waiting: tuple[str, ...]
    """Tenants of which work waits here already: no more of theirs is asked for."""
    jobs: int
    """For so many tenants of which nothing is here, or less than that."""
    sequences: int
    kv_tokens: int
    shorter_than: int = 0
    """These tenants' prompts must have fewer tokens than that; 0: they may have any length."""

    @property
    def newcomer_tokens(self) -> float:
        """Prompts of newcomers that are asked for have fewer tokens than this; 0.0 where none is asked for."""
        return (self.shorter_than or math.inf) if self.jobs > 0 else 0.0


class PoolSizes(NamedTuple):
    """What a worker holds KV in."""

    block_size: int
    blocks: int
    host_slots: int


@dataclass(frozen=True, slots=True)
class Capacity:
    """What a worker could start in its next step, by lane: free room, and what it could take from lower lanes."""

    sequences: Mapping[str, int]
    kv_tokens: Mapping[str, int]
    prefill_ms: float = 0.0
    """What a prompt's token takes to compute here; 0.0 while that is not known."""
    max_sequences: int = 0
    """Sequences in one step of this worker, were it empty; 0: no more than it offers."""
    pool_tokens: int = 0
    """KV tokens that its whole pool holds; 0: no more than it offers."""
    yielding: Mapping[str, Yielding] = field(default_factory=dict)
    """What could be started beyond that, by lane, for those who are owed it."""

    @property
    def most_sequences(self) -> int:
        """The most choices of one job that ever run here together."""
        return max(self.max_sequences, *self.sequences.values(), 0)

    @property
    def most_tokens(self) -> int:
        """KV tokens of the longest sequence that ever fits here."""
        return max(self.pool_tokens, *self.kv_tokens.values(), 0)

    def holds(self, choices: int, tokens: int) -> bool:
        """Whether a job could ever end here: all its choices in one step, and each alone as long as it can grow."""
        return choices <= self.most_sequences and tokens <= self.most_tokens

    @property
    def is_full(self) -> bool:
        """No lane could start anything unless its own work yields."""
        return not any(self.sequences.values())

    @property
    def is_empty(self) -> bool:
        return self.is_full and not any(lane.sequences for lane in self.yielding.values())


def require(name: str, value: float, low: float, high: float = math.inf) -> None:
    """Refuse a value that is not between two others, both included; NaN is never. Raises ValueError."""
    if not low <= value <= high:
        raise ValueError(f"{name} must be between {low} and {high}, not {value}")
