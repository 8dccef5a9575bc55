"""Inputs and outputs of a simulation: arrivals, hardware costs, and a record of each request.

Prompts are token ids, generated on demand. Two prompts are equal exactly up to the first named block in which they
differ, so the prefix cache finds the same hits as with the real prompts."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, repeat
from typing import Annotated, cast, overload

import msgspec

from fairlane.scheduler.admission.decide import UNPROMISED, Admitted
from fairlane.scheduler.planner.costs import TYPICAL_CONTEXT
from fairlane.scheduler.planner.steps import StepFeatures, require
from fairlane.scheduler.protocol.lanes import LaneName
from fairlane.scheduler.protocol.messages import Job, Outcome, Sampling
from fairlane.scheduler.simulation.trace import HASHED_TOKENS


class Prompt(Sequence[int]):
    """Token ids by blocks. `rest` is the id of every token after the blocks; superfluous blocks are ignored."""

    __slots__ = ("_block_tokens", "_blocks", "_length", "_rest")

    def __init__(
        self, length: int, blocks: tuple[int, ...] = (), rest: int = 0, block_tokens: int = HASHED_TOKENS
    ) -> None:
        self._length, self._blocks, self._rest, self._block_tokens = length, blocks, rest, block_tokens

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[int]:
        return iter(self[:])

    @overload
    def __getitem__(self, place: int) -> int: ...

    @overload
    def __getitem__(self, place: slice) -> tuple[int, ...]: ...

    def __getitem__(self, place: int | slice) -> int | tuple[int, ...]:
        if isinstance(place, int):
            block = range(self._length)[place] // self._block_tokens
            return self._blocks[block] if block < len(self._blocks) else self._rest
        first, end, step = place.indices(self._length)
        ids = tuple(chain.from_iterable(self._stretches(first, end))) if step > 0 else self[:][place]
        return ids[::step] if step > 1 else ids

    def _stretches(self, first: int, end: int) -> Iterator[Iterator[int]]:
        size = self._block_tokens
        named = min(end, len(self._blocks) * size)
        while first < named:
            block = first // size
            behind = min(named, (block + 1) * size)
            yield repeat(self._blocks[block], behind - first)
            first = behind
        yield repeat(self._rest, max(0, end - first))


MAX_MS = 1e9
MAX_NOISE = 2.0
Milliseconds = Annotated[float, msgspec.Meta(ge=0, le=MAX_MS)]
# Ends an output; every other token of a simulated output is its request's `own_token`.
END_TOKEN = 1
# The smallest id of a prompt's block.
FIRST_BLOCK = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """One request of a workload. Times are milliseconds; `at_ms` counts from the start of the simulation."""

    at_ms: float
    job_id: str
    tenant: str
    lane: LaneName
    prompt_tokens: int
    # Actual length of the output: at most `max_tokens`.
    output_tokens: int
    max_tokens: int
    ttft_ms: float
    tpot_ms: float
    # `n` of the API: outputs for the same prompt, all of the same length.
    choices: int = 1
    weight: float = 1.0
    # Stated and hard: it ends the request.
    deadline_ms: float | None = None
    hard_ttft_ms: float | None = None
    tier: str = ""
    # Start of the prompt, for `Prompt`: ids of at least FIRST_BLOCK.
    blocks: tuple[int, ...] = ()
    block_tokens: int = HASHED_TOKENS
    # Id of all its other tokens; must be unique if prefixes are to be found.
    own_token: int = 0

    def job(self, decision: Admitted = UNPROMISED) -> Job:
        return Job(
            job_id=self.job_id,
            gateway_id="gateway",
            tenant=self.tenant,
            weight=self.weight,
            lane=self.lane,
            prompt=cast("tuple[int, ...]", Prompt(self.prompt_tokens, self.blocks, self.own_token, self.block_tokens)),
            n=self.choices,
            max_tokens=self.max_tokens,
            granted_until=self.max_tokens,
            sampling=Sampling(stop_token_ids=(END_TOKEN,)),
            ttft_ms=self.ttft_ms,
            tpot_ms=self.tpot_ms,
            deadline_ms=self.deadline_ms,
            hard_ttft_ms=self.hard_ttft_ms,
            guaranteed=decision.guaranteed,
            pace_ms=decision.pace_ms,
            claim_ms=decision.claim_ms,
            work_ms=decision.work_ms,
            token_ms=decision.token_ms,
        )


class Hardware(msgspec.Struct, frozen=True, kw_only=True):
    """Costs of steps and copies: linear in the features that the cost model learns, with optional noise."""

    # Milliseconds per step, and per unit of each of `StepFeatures`.
    step: tuple[Milliseconds, Milliseconds, Milliseconds, Milliseconds, Milliseconds]
    # Milliseconds per step with copies, and per block copied.
    copy: tuple[Milliseconds, Milliseconds]
    # Between two steps: planning, sampling, sending.
    overhead_ms: Milliseconds = 0.0
    # Standard deviation of the logarithm of a step's time.
    noise: Annotated[float, msgspec.Meta(ge=0, le=MAX_NOISE)] = 0.0

    def __post_init__(self) -> None:
        for name, values in (("step", self.step), ("copy", self.copy), ("overhead_ms", (self.overhead_ms,))):
            for value in values:
                require(name, value, 0.0, MAX_MS)
        require("noise", self.noise, 0.0, MAX_NOISE)

    @property
    def single_stream_ms(self) -> float:
        return self.step_ms(StepFeatures(1, 0, TYPICAL_CONTEXT, 0)) + self.overhead_ms

    def step_ms(self, features: StepFeatures) -> float:
        if not features.rows:
            return 0.0
        return self.step[0] + sum(weight * value for weight, value in zip(self.step[1:], features, strict=True))

    def copy_ms(self, blocks: int) -> float:
        return self.copy[0] + self.copy[1] * blocks if blocks else 0.0


@dataclass(slots=True)
class Record:
    """The result of one request."""

    arrival: Arrival
    outcome: Outcome | None = None
    first_ms: float | None = None
    end_ms: float | None = None
    tokens: int = 0
    # Tokens after their due time in the request's envelope.
    late_tokens: int = 0
    # Prompt and output tokens computed for it, including recomputed ones.
    computed: int = 0
    cached: int = 0
    preemptions: int = 0

    @property
    def ttft_ms(self) -> float | None:
        return None if self.first_ms is None else self.first_ms - self.arrival.at_ms

    @property
    def tpot_ms(self) -> float | None:
        if self.first_ms is None or self.end_ms is None or self.tokens < 2:
            return None
        return (self.end_ms - self.first_ms) / (self.tokens - 1)

    def produced(self, index: int, now_ms: float) -> None:
        """Record output token `index`; it is late if the envelope required it earlier (Niyama, FairBatching)."""
        arrival = self.arrival
        due_ms = arrival.at_ms + arrival.ttft_ms
        if self.first_ms is None:
            self.first_ms = now_ms
        elif index:
            due_ms = max(due_ms, self.first_ms) + index * arrival.tpot_ms
        self.late_tokens += now_ms > due_ms
        self.tokens += 1

    def produced_at(self, first: int, times_ms: Sequence[float]) -> None:
        """Record output tokens from index `first` (> 0) on with their times, in order."""
        arrival, began_ms = self.arrival, self.first_ms or 0.0
        due_ms = max(arrival.at_ms + arrival.ttft_ms, began_ms)
        if times_ms[-1] > due_ms + first * arrival.tpot_ms:
            self.late_tokens += sum([ms > due_ms + index * arrival.tpot_ms for index, ms in enumerate(times_ms, first)])
        self.tokens += len(times_ms)
