"""One step of a worker as plain values: the planner's plan and the runner's result.

Constructors reject parameters out of range with one line that names the value and the rule."""

import math
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from fairlane.common.redacted import Redacted
from fairlane.scheduler.protocol.messages import (
    FinishReason,
    JobSteps,
    Outcome,
    Paused,
    PositionLogprobs,
    Preempted,
    PromptLogprobs,
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
    # Device blocks that hold positions 0 to `first_position + len(token_ids) - 1`, in order.
    block_table: tuple[int, ...]
    # Whether the last token's logits give the next output token.
    samples: bool
    # Index of that output token within its choice; the counter of its random draw.
    output_index: int

    @property
    def context_length(self) -> int:
        return self.first_position + len(self.token_ids)

    def __repr__(self) -> str:
        return f"Row({self.seq}, {len(self.token_ids)} tokens at {self.first_position}, samples={self.samples})"


class StepFeatures(NamedTuple):
    """Inputs of the cost model for a step."""

    rows: int
    # Tokens of rows that compute more than one.
    prefill_tokens: int
    # KV tokens that one-token rows attend to.
    context: int
    # Tokens times context, over the rows that compute more than one.
    attention: int


NO_WORK = StepFeatures(0, 0, 0, 0)


def features(rows: Iterable[Row]) -> StepFeatures:
    """Return the features of a step's rows."""
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
    """A preemption in a step: the sequence loses the blocks with the KV of its tokens from `first` to before `end`."""

    seq: SeqId
    mode: YieldMode
    first: int
    end: int
    predicted_ms: float
    # Blocks copied to the host in this step; in a swap, the others are already there.
    copied: int = 0


class WaitReason(StrEnum):
    """Reasons why a sequence has no row in a step."""

    SLOTS = "slots"
    TOKENS = "tokens"
    # The step would take too long for the pace of the first lane's decodes.
    PACE = "pace"
    # Too few KV blocks are free, and no sequence that may yield holds enough.
    BLOCKS = "blocks"
    # It must not be recomputed, and the host pool has no room to swap it to.
    HOST = "host"
    # It would fit, but would delay a more urgent request that lacks blocks.
    HEAD = "head"
    GRANT = "grant"
    PREFIX = "prefix"
    PREEMPTED = "preempted"


@dataclass(frozen=True, slots=True)
class StepPlan:
    """The work of one step, in this order: swap out, swap in, run the rows."""

    number: int
    rows: tuple[Row, ...] = ()
    # Device block to host slot. This step's rows may write the device blocks, except those copied ahead.
    swap_out: tuple[Copy, ...] = ()
    # Host slot to device block. The host slots are free after the step.
    swap_in: tuple[Copy, ...] = ()
    events: tuple[Preempted | Resumed | Paused, ...] = ()
    # All preemptions; `events` reports only those of sequences that were running.
    yields: tuple[Yield, ...] = ()
    features: StepFeatures = NO_WORK
    waits: Mapping[str, int] = field(default_factory=dict)
    # Copies to the host of blocks that are not preempted yet. They take almost no time of the step.
    ahead: int = 0
    predicted_ms: float = 0.0

    @property
    def copies(self) -> int:
        return len(self.swap_out) + len(self.swap_in) - self.ahead

    @property
    def is_empty(self) -> bool:
        return not (self.rows or self.swap_out or self.swap_in)


@dataclass(frozen=True, slots=True)
class StepResult:
    """The runner's result of a plan."""

    number: int
    tokens: Mapping[SeqId, int] = field(default_factory=dict)
    # Rows that could not be computed (for example because of a NaN), with a reason that holds no content.
    failed: Mapping[SeqId, str] = field(default_factory=dict)
    # Log-probabilities of the sampled tokens whose requests ask for them.
    logprobs: Mapping[SeqId, PositionLogprobs] = field(default_factory=dict)
    # Of prompt tokens that this step computed, by job.
    prompt_logprobs: Mapping[str, PromptLogprobs] = field(default_factory=dict)
    # Rows that are not computed yet, if the runner does not wait for all; they are planned again.
    pending: Set[SeqId] = frozenset()
    # Prompt tokens of these rows found in a cache outside the planner; reported with any of their tokens.
    cached_tokens: Mapping[SeqId, int] = field(default_factory=dict)
    # Vectors of embedding rows, sent instead of the token.
    embeddings: Mapping[SeqId, bytes] = field(default_factory=dict)
    # Whether `run_ms` is representative of steps like this one.
    is_typical: bool = True
    run_ms: float = 0.0
    copy_ms: float = 0.0


class Produced(Redacted, frozen=True):
    """A new token of a sequence, and its finish reason if it was the last."""

    seq: SeqId
    index: int
    token_id: int
    finish_reason: FinishReason | None
    # Prompt tokens found in the prefix cache. Sent with the first token, or with the one when it became known.
    cached_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Ended:
    """A job that ended in this worker; its blocks are free."""

    job_id: str
    outcome: Outcome
    error: str = ""
    preemptions: int = 0
    cached_tokens: int = 0
    # None if no step of it was planned.
    steps: JobSteps | None = None


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """The results of a step that the server has to send."""

    produced: tuple[Produced, ...] = ()
    ended: tuple[Ended, ...] = ()
    # Weighted tokens computed in this step, by job, which its tenant's counter is charged.
    charges: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Yielding:
    """Work of one lane in a worker that would yield to waiting tenants that have been served less."""

    # Tenants with started work here, at least a quarter of any other tenant's.
    begun: tuple[str, ...]
    # Tenants with waiting work here: no more of their jobs are requested.
    waiting: tuple[str, ...]
    # Number of further tenants, with less started work than those, whose jobs are requested.
    jobs: int
    sequences: int
    kv_tokens: int
    # Exclusive bound of those tenants' prompt tokens; 0: none.
    shorter_than: int = 0

    @property
    def newcomer_tokens(self) -> float:
        """Exclusive bound of the prompt tokens of requested newcomers; 0.0 if none is requested."""
        return (self.shorter_than or math.inf) if self.jobs > 0 else 0.0


class PoolSizes(NamedTuple):
    """Sizes of a worker's KV pools."""

    block_size: int
    blocks: int
    host_slots: int


@dataclass(frozen=True, slots=True)
class Capacity:
    """Work that a worker could start in its next step, by lane, in free room or room taken from lower lanes."""

    sequences: Mapping[str, int]
    kv_tokens: Mapping[str, int]
    # Time to compute a prompt token here; 0.0 if it is not known.
    prefill_ms: float = 0.0
    # Sequences in one step of this worker; 0: only those that it offers.
    max_sequences: int = 0
    # KV tokens of the whole pool; 0: only those that it offers.
    pool_tokens: int = 0
    # Further work that could start by lane, for tenants to whom other work yields.
    yielding: Mapping[str, Yielding] = field(default_factory=dict)

    @property
    def most_sequences(self) -> int:
        return max(self.max_sequences, *self.sequences.values(), 0)

    @property
    def most_tokens(self) -> int:
        return max(self.pool_tokens, *self.kv_tokens.values(), 0)

    def holds(self, choices: int, tokens: int) -> bool:
        return choices <= self.most_sequences and tokens <= self.most_tokens

    @property
    def is_full(self) -> bool:
        return not any(self.sequences.values())

    @property
    def is_empty(self) -> bool:
        return self.is_full and not any(lane.sequences for lane in self.yielding.values())


def require(name: str, value: float, low: float, high: float = math.inf) -> None:
    """Raise ValueError unless the value is within the inclusive bounds; NaN never is."""
    if not low <= value <= high:
        raise ValueError(f"{name} must be between {low} and {high}, not {value}")
