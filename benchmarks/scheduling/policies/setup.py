"""What a policy is built from, and one request as all of them see it."""

import heapq
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from fairlane.scheduler.planner.sequence import Sequence
from fairlane.scheduler.planner.steps import require
from fairlane.scheduler.protocol.lanes import DEFAULT_LANES, Lane, LaneName
from fairlane.scheduler.protocol.messages import Job
from fairlane.scheduler.simulation.workload import Hardware


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """One worker, as its policy is told of it."""

    hardware: Hardware
    """Predictors that the papers fit offline are this formula itself, without its noise: in their favour."""
    blocks: int
    block_size: int = 16
    host_slots: int = 0
    max_sequences: int = 256
    max_step_tokens: int = 8192
    lanes: Mapping[LaneName, Lane] = field(default_factory=lambda: DEFAULT_LANES)
    output_tokens: Callable[[str], int] | None = None
    """How long a job's output becomes, for the policies that are given an oracle."""
    fills_rows: bool = False
    """Rows carry their tokens and block tables, for a model; a simulation reads neither."""

    def __post_init__(self) -> None:
        require("blocks", self.blocks, 1)
        require("block_size", self.block_size, 1)
        require("host_slots", self.host_slots, 0)
        require("max_sequences", self.max_sequences, 1)
        require("max_step_tokens", self.max_step_tokens, self.max_sequences)

    def oracle(self, policy: str) -> Callable[[str], int]:
        """The lengths, for a policy that cannot do without. Raises ValueError."""
        if self.output_tokens is None:
            raise ValueError(f"{policy} needs output_tokens, not None")
        return self.output_tokens


@dataclass(slots=True, eq=False)
class Request(Sequence):
    """A job in an engine. It has one choice, as every simulated job has."""

    number: int = 0
    """Order of arrival at this engine."""
    prompt_tokens: int = 0
    prompt_charged: int = 0
    """Prompt tokens computed once; recomputing them is not charged."""


R = TypeVar("R", bound=Request)


def first_due_ms(job: Job, arrived_ms: float, output_tokens: int) -> float:
    """When its first token is due if it yields this many; a stated end pulls it forward."""
    first_ms = job.ttft_ms if job.hard_ttft_ms is None else min(job.ttft_ms, job.hard_ttft_ms)
    if job.deadline_ms is not None:
        first_ms = min(first_ms, job.deadline_ms - output_tokens * job.tpot_ms)
    return arrived_ms + first_ms


class Queue(Generic[R]):
    """Requests that wait, smallest key first, equals in order of arrival. A request stands in it once at most."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, R]] = []

    def __len__(self) -> int:
        return len(self._heap)

    @property
    def head(self) -> R:
        """Who is next."""
        return self._heap[0][2]

    @property
    def key(self) -> float:
        """The key of who is next."""
        return self._heap[0][0]

    def push(self, request: R, key: float = 0.0) -> None:
        """Let a request wait."""
        heapq.heappush(self._heap, (key, request.number, request))

    def pop(self) -> R:
        """Take out who is next."""
        return heapq.heappop(self._heap)[2]


def prefill_within(hardware: Hardware, spare_ms: float, context: int, most: int) -> int:
    """The largest chunk of a prompt, up to `most` tokens after `context` others, that lengthens a step by no more."""
    _, row_ms, token_ms, _, pair_ms = hardware.step
    spare_ms -= row_ms
    if spare_ms <= 0.0:
        return 0
    linear_ms = token_ms + pair_ms * context
    # The positive root of pair · n² + linear · n = spare, in the form that also holds for pair = 0.
    divisor = linear_ms + math.sqrt(linear_ms * linear_ms + 4.0 * pair_ms * spare_ms)
    return min(most, int(2.0 * spare_ms / divisor)) if divisor > 0.0 else most
