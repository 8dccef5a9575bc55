"""One choice of a request: its tokens, its computed KV, where that KV is, and its state transitions.

    WAITING ──► PREFILL ──► DECODE ◄──► PAUSED        on the device (resident)
       ▲           │  ▲       │  ▲        │
       │           ▼  │       ▼  │        ▼
       │        DROPPED ◄──► SWAPPED              the end of its KV lost / in host slots
       └ new                          any ──► FINISHED

The first `num_computed` tokens have KV. A decoding sequence lacks exactly one: the last sampled token. A preempted
sequence loses its last blocks, perhaps not all: DROPPED and SWAPPED sequences may still hold the blocks before those.
They do not run until there is room for the rest, and may lose more. A sequence that has used up its grant is not
planned, in any state; PAUSED is that condition on the device. An illegal transition raises `IllegalTransition` and
changes nothing."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from fairlane.scheduler.planner.steps import SeqId
from fairlane.scheduler.protocol.lanes import LaneName
from fairlane.scheduler.protocol.messages import FinishReason, Job, Preempted


class State(StrEnum):
    """State of a sequence between two steps."""

    WAITING = "waiting"
    PREFILL = "prefill"
    DECODE = "decode"
    PAUSED = "paused"
    SWAPPED = "swapped"
    DROPPED = "dropped"
    FINISHED = "finished"


MOVES: Mapping[State, frozenset[State]] = {
    State.WAITING: frozenset({State.PREFILL, State.FINISHED}),
    State.PREFILL: frozenset({State.DECODE, State.PAUSED, State.SWAPPED, State.DROPPED, State.FINISHED}),
    State.DECODE: frozenset({State.PAUSED, State.SWAPPED, State.DROPPED, State.FINISHED}),
    State.PAUSED: frozenset({State.DECODE, State.SWAPPED, State.DROPPED, State.FINISHED}),
    State.SWAPPED: frozenset({State.PREFILL, State.DECODE, State.SWAPPED, State.DROPPED, State.FINISHED}),
    State.DROPPED: frozenset({State.PREFILL, State.SWAPPED, State.DROPPED, State.FINISHED}),
    State.FINISHED: frozenset(),
}
# Aliases for code that each step runs per sequence: looking up an enum member is slow.
PREFILL, DECODE, PAUSED, FINISHED = State.PREFILL, State.DECODE, State.PAUSED, State.FINISHED
RESIDENT = frozenset({State.PREFILL, State.DECODE, State.PAUSED})


# Lane, tenant, promised, promoted: decodes with the same kind are adjacent in the order.
Kind = tuple[LaneName, str, bool, bool]


class IllegalTransition(RuntimeError):
    """A sequence's state does not allow the transition."""


@dataclass(slots=True, eq=False)
class Sequence:
    """One choice's generation state. Times are milliseconds of the worker's clock."""

    id: SeqId
    job: Job
    epoch: int
    arrived_ms: float
    first_due_ms: float
    # From this time on it counts for the lane above.
    promoted_ms: float
    granted_until: int
    output: list[int] = field(default_factory=list)
    expected_output: int = 0
    num_computed: int = 0
    # Device blocks; possibly more than `num_computed` tokens need, never fewer.
    table: list[int] = field(default_factory=list)
    # The table as of its last row; while it decodes, the table except for a block that the next token needs.
    table_view: tuple[int, ...] = ()
    # Leading blocks of the table that the prefix cache knows.
    shared: int = 0
    # Number of these that other sequences held at the time of the lookup.
    borrowed: int = 0
    # Blocks held by others at the last lookup in the prefix cache; None: no lookup since its last preemption.
    shared_when_asked: int | None = None
    # Leading blocks of the table with a copy on the host, made ahead or earlier.
    saved: int = 0
    # Host slots while SWAPPED, with the KV after the table.
    slots: list[int] = field(default_factory=list)
    state: State = State.WAITING
    # A sibling is computing the prompt blocks that this choice will share.
    awaits_prefix: bool = False
    first_token_ms: float | None = None
    stalled_since_ms: float | None = None
    preemptions: int = 0
    # Preemptions since it last ran; at most its number of blocks plus one.
    given_up: list[Preempted] = field(default_factory=list)
    # Kind, ignoring promotion; cached, since each step needs it for hundreds of sequences.
    kind: Kind = field(init=False)

    def __post_init__(self) -> None:
        ends_in_time = self.job.guaranteed and self.job.deadline_ms is not None
        self.kind = self.job.lane, self.job.tenant, ends_in_time, False

    @property
    def is_promised(self) -> bool:
        """Return whether a guaranteed deadline lies ahead: of its end, or of its first token while it has none."""
        return self.job.guaranteed and (self.job.deadline_ms is not None or not self.output)

    @property
    def length(self) -> int:
        return len(self.job.prompt) + len(self.output)

    @property
    def pending(self) -> int:
        return self.length - self.num_computed

    @property
    def remaining(self) -> int:
        return self.job.max_tokens - len(self.output)

    @property
    def is_resident(self) -> bool:
        return self.state in RESIDENT

    @property
    def may_hold_blocks(self) -> bool:
        return self.state not in (State.WAITING, State.FINISHED)

    @property
    def runs(self) -> bool:
        return self.is_resident and self.stalled_since_ms is None

    @property
    def is_new(self) -> bool:
        return self.state is State.WAITING and not self.output

    @property
    def is_runnable(self) -> bool:
        return self.state is not FINISHED and len(self.output) < self.granted_until

    def token_ids(self, first: int, count: int) -> tuple[int, ...]:
        prompt = self.job.prompt
        if count == 1 and first >= len(prompt):
            return (self.output[first - len(prompt)],)
        beyond = max(0, first - len(prompt)), max(0, first + count - len(prompt))
        return (*prompt[first : first + count], *self.output[beyond[0] : beyond[1]])

    def move(self, to: State) -> None:
        if to not in MOVES[self.state]:
            raise IllegalTransition(f"{self.id}: {self.state} to {to}")
        self.state = to

    def leave(self, to: State, now_ms: float, kept_tokens: int = 0) -> None:
        """Record the loss of blocks: SWAPPED keeps the computed tokens, DROPPED only `kept_tokens`."""
        ran = self.runs
        self.move(to)
        if to is State.DROPPED:
            self.num_computed = min(self.num_computed, kept_tokens)
        self.shared, self.saved = min(self.shared, len(self.table)), min(self.saved, len(self.table))
        self.borrowed, self.shared_when_asked = min(self.borrowed, len(self.table)), None
        self.preemptions += ran
        self._stall(now_ms)

    def set_aside(self, now_ms: float) -> None:
        self.preemptions += 1
        self._stall(now_ms)

    def grant(self, granted_until: int) -> None:
        self.granted_until = max(self.granted_until, min(granted_until, self.job.max_tokens))
        if self.state is State.PAUSED and self.is_runnable:
            self.move(State.DECODE)

    def append(self, token_id: int, now_ms: float) -> FinishReason | None:
        state, job, output = self.state, self.job, self.output
        if not (state is DECODE or state is PREFILL) or self.num_computed != len(job.prompt) + len(output):
            raise IllegalTransition(f"{self.id}: a token while {self.state} with {self.pending} tokens pending")
        output.append(token_id)
        if self.first_token_ms is None:
            self.first_token_ms = now_ms
        reason = finish_reason(job, output)
        if reason is not None:
            self.move(State.FINISHED)
        elif len(output) >= self.granted_until:
            self.move(State.PAUSED)
            self._stall(now_ms)
        elif state is PREFILL:
            self.move(DECODE)
        return reason

    def _stall(self, now_ms: float) -> None:
        if self.stalled_since_ms is None:
            self.stalled_since_ms = now_ms

    def __repr__(self) -> str:
        return f"Sequence({self.id}, {self.state}, {self.num_computed}/{self.length} tokens)"


def finish_reason(job: Job, output: list[int]) -> FinishReason | None:
    """Return why a choice with this output has ended, or None. The sampler draws no stop token before `min_tokens`."""
    sampling = job.sampling
    if output and output[-1] in sampling.stop_token_ids:
        return "stop"
    return "length" if len(output) >= job.max_tokens else None
