"""One choice of one request: its tokens, how far its KV has come, where that KV is, and the moves it may make.

    WAITING ──► PREFILL ──► DECODE ◄──► PAUSED        on the device (resident)
       ▲           │  ▲       │  ▲        │
       │           ▼  │       ▼  │        ▼
       │        DROPPED ◄──► SWAPPED              the end of its KV lost / in host slots
       └ new                          any ──► FINISHED

`num_computed` tokens from the start have KV. A sequence that decodes lacks exactly one: the token sampled last. What
yields gives up its last blocks, perhaps not all: DROPPED and SWAPPED work may hold those before them; it does not run
until there is room for the rest, and may have to yield more. A sequence at its grant is not planned, in whatever state;
PAUSED is that state on the device. An illegal move raises `IllegalTransition` and changes nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from fairlane.scheduler.planner.steps import SeqId
from fairlane.scheduler.protocol.lanes import LaneName
from fairlane.scheduler.protocol.messages import FinishReason, Job, Preempted


class State(StrEnum):
    """Where a sequence stands between two steps."""

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
PREFILL, DECODE, PAUSED, FINISHED = State.PREFILL, State.DECODE, State.PAUSED, State.FINISHED
"""By names of their own where each step asks for them once for every sequence: an enumeration takes its time to look
a member up."""
RESIDENT = frozenset({State.PREFILL, State.DECODE, State.PAUSED})


Kind = tuple[LaneName, str, bool, bool]
"""What decodes that stand together in the order have in common: lane, tenant, promised, promoted."""


class IllegalTransition(RuntimeError):
    """A sequence was told to make a move that its state does not allow."""


@dataclass(slots=True, eq=False)
class Sequence:
    """One choice's generation state. Times are milliseconds of the worker's clock."""

    id: SeqId
    job: Job
    epoch: int
    arrived_ms: float
    first_due_ms: float
    """When its first token is due."""
    promoted_ms: float
    """From when on it counts for the lane above."""
    granted_until: int
    output: list[int] = field(default_factory=list)
    expected_output: int = 0
    """Output tokens that it is expected to have in the end; 0 before anybody asked."""
    num_computed: int = 0
    table: list[int] = field(default_factory=list)
    """Device blocks; there may be more than `num_computed` tokens need, never fewer."""
    table_view: tuple[int, ...] = ()
    """The table as its last row had it; while it decodes, the table but for a block that the next token needs."""
    shared: int = 0
    """Leading blocks of the table that the prefix cache knows."""
    borrowed: int = 0
    """Of these, as many as others held when it found them."""
    shared_when_asked: int | None = None
    """Blocks that it found with others when the prefix cache was last asked; None: not since it last yielded."""
    saved: int = 0
    """Leading blocks of the table that were copied to the host ahead, or had been."""
    slots: list[int] = field(default_factory=list)
    """Host slots, while SWAPPED: they hold what follows the table."""
    state: State = State.WAITING
    awaits_prefix: bool = False
    """A sibling is computing the prompt blocks that this choice will share."""
    first_token_ms: float | None = None
    stalled_since_ms: float | None = None
    """Since when it has been paused or preempted; None while it is neither."""
    preemptions: int = 0
    given_up: list[Preempted] = field(default_factory=list)
    """Each time that it yielded blocks since it last ran; at most as often as it has blocks, and once more."""
    kind: Kind = field(init=False)
    """While it is not promoted; kept, since every step asks for that of hundreds."""

    def __post_init__(self) -> None:
        ends_in_time = self.job.guaranteed and self.job.deadline_ms is not None
        self.kind = self.job.lane, self.job.tenant, ends_in_time, False

    @property
    def is_promised(self) -> bool:
        """A deadline that it was guaranteed lies ahead: that of its end, or of its first token while there is none."""
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
        """All its KV is on the device, as far as it is computed."""
        return self.state in RESIDENT

    @property
    def may_hold_blocks(self) -> bool:
        """It has begun here and is not over: some of its KV may be on the device."""
        return self.state not in (State.WAITING, State.FINISHED)

    @property
    def runs(self) -> bool:
        """It is on the device, and was not stopped."""
        return self.is_resident and self.stalled_since_ms is None

    @property
    def is_new(self) -> bool:
        """Nothing of it has run, here or at an earlier holder."""
        return self.state is State.WAITING and not self.output

    @property
    def is_runnable(self) -> bool:
        """Not over, and its grant allows another token."""
        return self.state is not FINISHED and len(self.output) < self.granted_until

    def token_ids(self, first: int, count: int) -> tuple[int, ...]:
        prompt = self.job.prompt
        if count == 1 and first >= len(prompt):
            return (self.output[first - len(prompt)],)
        beyond = max(0, first - len(prompt)), max(0, first + count - len(prompt))
        return (*prompt[first : first + count], *self.output[beyond[0] : beyond[1]])

    def move(self, to: State) -> None:
        """Change state. Raises IllegalTransition."""
        if to not in MOVES[self.state]:
            raise IllegalTransition(f"{self.id}: {self.state} to {to}")
        self.state = to

    def leave(self, to: State, now_ms: float, kept_tokens: int = 0) -> None:
        """Have yielded blocks: SWAPPED keeps what is computed, DROPPED forgets what follows the tokens kept. Raises
        IllegalTransition."""
        ran = self.runs
        self.move(to)
        if to is State.DROPPED:
            self.num_computed = min(self.num_computed, kept_tokens)
        self.shared, self.saved = min(self.shared, len(self.table)), min(self.saved, len(self.table))
        self.borrowed, self.shared_when_asked = min(self.borrowed, len(self.table)), None
        self.preemptions += ran
        self._stall(now_ms)

    def set_aside(self, now_ms: float) -> None:
        """Wait with all its KV on the device."""
        self.preemptions += 1
        self._stall(now_ms)

    def grant(self, granted_until: int) -> None:
        """Allow output up to `granted_until` tokens; a grant never shrinks."""
        self.granted_until = max(self.granted_until, min(granted_until, self.job.max_tokens))
        if self.state is State.PAUSED and self.is_runnable:
            self.move(State.DECODE)

    def append(self, token_id: int, now_ms: float) -> FinishReason | None:
        """Take in a sampled token and what follows from it: the end, a pause, or the next decode."""
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
    """Why a choice with this output is over; None: it goes on. No stop token is drawn before `min_tokens`, but where
    a grammar leaves nothing else."""
    sampling = job.sampling
    if output and output[-1] in sampling.stop_token_ids:
        return "stop"
    return "length" if len(output) >= job.max_tokens else None
