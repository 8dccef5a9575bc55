"""What a simulation is given and what it gives back: arrivals, the hardware's costs, and a record of each request.

Prompts are token ids, made only when asked for. All tokens of a block that a trace names have one id, the block's; what
no trace names has an id that no other prompt has. So two prompts agree to the token up to where their blocks part, and
the prefix cache finds what it would find in the texts. A prompt of 100,000 tokens is kept as the names of its 196
blocks.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, repeat
from typing import cast, overload

from fairlane.scheduler.admission.decide import UNPROMISED, Admitted
from fairlane.scheduler.planner.costs import TYPICAL_CONTEXT
from fairlane.scheduler.planner.steps import StepFeatures, require
from fairlane.scheduler.protocol.lanes import LaneName
from fairlane.scheduler.protocol.messages import Job, Outcome, Sampling
from fairlane.scheduler.simulation.trace import HASHED_TOKENS


class Prompt(Sequence[int]):
    """Token ids by blocks. `rest`: the id of every token behind the blocks; more blocks than the prompt has are
    ignored."""

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
            return self._id(range(self._length)[place] // self._block_tokens)
        first, end, step = place.indices(self._length)
        ids = tuple(chain.from_iterable(self._stretches(first, end))) if step > 0 else self[:][place]
        return ids[::step] if step > 1 else ids

    def _stretches(self, first: int, end: int) -> Iterator[Iterator[int]]:
        """The ids from `first` to before `end`, a block at a time."""
        size = self._block_tokens
        named = min(end, len(self._blocks) * size)
        while first < named:
            block = first // size
            behind = min(named, (block + 1) * size)
            yield repeat(self._blocks[block], behind - first)
            first = behind
        yield repeat(self._rest, max(0, end - first))

    def _id(self, block: int) -> int:
        return self._blocks[block] if block < len(self._blocks) else self._rest


MOST_MS = 1e9
MOST_NOISE = 2.0
END_TOKEN = 1
"""Ends an output; every other token of a simulated output is its request's `own_token`."""
FIRST_BLOCK = 2
"""The least id of a prompt's block."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """One request of a workload. Times are milliseconds; `at_ms` counts from the start of the simulation."""

    at_ms: float
    job_id: str
    tenant: str
    lane: LaneName
    prompt_tokens: int
    output_tokens: int
    """Where its output ends: at most `max_tokens`."""
    max_tokens: int
    ttft_ms: float
    tpot_ms: float
    choices: int = 1
    """Answers to the one prompt, each as long; `n` of the API."""
    weight: float = 1.0
    deadline_ms: float | None = None
    """Stated and hard: it ends the request."""
    hard_ttft_ms: float | None = None
    tier: str = ""
    """The class that reports group it by."""
    blocks: tuple[int, ...] = ()
    """What its prompt begins with, as `Prompt` has it: ids of at least FIRST_BLOCK."""
    block_tokens: int = HASHED_TOKENS
    """Of the prompt, what each of these stands for."""
    own_token: int = 0
    """Id of all its other tokens; where prefixes are to be found, no other request's."""

    def job(self, word: Admitted = UNPROMISED) -> Job:
        """As a gateway would queue it, after the gateway's word on its deadlines."""
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
            guaranteed=word.guaranteed,
            pace_ms=word.pace_ms,
            claim_ms=word.claim_ms,
            work_ms=word.work_ms,
            token_ms=word.token_ms,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """What steps and copies take: linear in the features that the cost model learns, with noise if wanted."""

    step: tuple[float, float, float, float, float]
    """Milliseconds per step, and per unit of each of `StepFeatures`."""
    copy: tuple[float, float]
    """Milliseconds per step with copies, and per block copied."""
    overhead_ms: float = 0.0
    """Between two steps: planning, sampling, publishing."""
    noise: float = 0.0
    """Standard deviation of the logarithm of a step's time."""

    def __post_init__(self) -> None:
        for name, values in (("step", self.step), ("copy", self.copy), ("overhead_ms", (self.overhead_ms,))):
            for value in values:
                require(name, value, 0.0, MOST_MS)
        require("noise", self.noise, 0.0, MOST_NOISE)

    @property
    def single_stream_ms(self) -> float:
        """What a further token of a stream takes that is alone, of typical length."""
        return self.step_ms(StepFeatures(1, 0, TYPICAL_CONTEXT, 0)) + self.overhead_ms

    def step_ms(self, features: StepFeatures) -> float:
        if not features.rows:
            return 0.0
        return self.step[0] + sum(weight * value for weight, value in zip(self.step[1:], features, strict=True))

    def copy_ms(self, blocks: int) -> float:
        return self.copy[0] + self.copy[1] * blocks if blocks else 0.0


@dataclass(slots=True)
class Record:
    """What became of one request."""

    arrival: Arrival
    outcome: Outcome | None = None
    """None while it is not over."""
    first_ms: float | None = None
    end_ms: float | None = None
    tokens: int = 0
    late_tokens: int = 0
    """That came after their due time in the request's envelope."""
    computed: int = 0
    """Prompt and output tokens computed for it, recomputed ones too."""
    cached: int = 0
    """Prompt tokens that nobody computed for it: the prefix cache had them."""
    preemptions: int = 0

    @property
    def ttft_ms(self) -> float | None:
        return None if self.first_ms is None else self.first_ms - self.arrival.at_ms

    @property
    def tpot_ms(self) -> float | None:
        """Mean time between tokens; None with fewer than two."""
        if self.first_ms is None or self.end_ms is None or self.tokens < 2:
            return None
        return (self.end_ms - self.first_ms) / (self.tokens - 1)

    def produced(self, index: int, now_ms: float) -> None:
        """Output token `index` is there; late if its envelope wanted it earlier (Niyama, FairBatching)."""
        arrival = self.arrival
        due_ms = arrival.at_ms + arrival.ttft_ms
        if self.first_ms is None:
            self.first_ms = now_ms
        elif index:
            due_ms = max(due_ms, self.first_ms) + index * arrival.tpot_ms
        self.late_tokens += now_ms > due_ms
        self.tokens += 1

    def produced_at(self, first: int, times_ms: Sequence[float]) -> None:
        """Output tokens from index `first` on came at these times, in order: as `produced` for each. Not the very first
        of the request."""
        arrival, began_ms = self.arrival, self.first_ms or 0.0
        due_ms = max(arrival.at_ms + arrival.ttft_ms, began_ms)
        if times_ms[-1] > due_ms + first * arrival.tpot_ms:
            self.late_tokens += sum([ms > due_ms + index * arrival.tpot_ms for index, ms in enumerate(times_ms, first)])
        self.tokens += len(times_ms)
