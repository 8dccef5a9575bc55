"""What a simulation is given and what it gives back: arrivals, the hardware's costs, and a record of each request.

Request traces are text lines: ours in CSV, Mooncake's in JSON lines (Qin et al., "Mooncake", FAST 2025), checked to the
last row before anything runs. Rows must be in the order of their arrival. Several may arrive at one moment, as recorded
clocks are coarse, and be alike in every column: callers send again, and many ask the same.

Prompts are token ids, made only when asked for. All tokens of a block that a trace names have one id, the block's; what
no trace names has an id that no other prompt has. So two prompts agree to the token up to where their blocks part, and
the prefix cache finds what it would find in the texts. A prompt of 100,000 tokens is kept as the names of its 196
blocks.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, repeat
from typing import Annotated, cast, overload

import msgspec

from fairlane.scheduler.admission.decide import UNPROMISED, Admitted
from fairlane.scheduler.planner.costs import TYPICAL_CONTEXT
from fairlane.scheduler.planner.steps import StepFeatures, require
from fairlane.scheduler.protocol.lanes import LaneName
from fairlane.scheduler.protocol.messages import Job, Outcome, Sampling

CSV_COLUMNS = ["arrival_s", "prompt_tokens", "output_tokens"]
LATEST_MS = 1e12
"""Thirty years: a later arrival is taken for a time stamp."""
MOST_TOKENS = 100_000_000
HASHED_TOKENS = 512
"""Of a prompt, what one of its `hash_ids` stands for."""


class TraceError(ValueError):
    """A trace that cannot be used; the message names the row and what is wrong with it, in one line."""


@dataclass(frozen=True, slots=True)
class TraceRow:
    """One request of a trace."""

    row: int
    """Its line in the file, from 1."""
    at_ms: float
    """From the start of the trace."""
    prompt_tokens: int
    output_tokens: int
    hash_ids: tuple[int, ...] = ()
    """Names of the prompt's blocks of HASHED_TOKENS, from the first on: two prompts are alike up to where their names
    part. Empty where the trace has none."""

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + self.output_tokens


_Tokens = Annotated[int, msgspec.Meta(ge=1, le=MOST_TOKENS)]


class _MooncakeRow(msgspec.Struct, frozen=True):
    timestamp: Annotated[float, msgspec.Meta(ge=0, le=LATEST_MS)]
    input_length: _Tokens
    output_length: _Tokens
    hash_ids: tuple[Annotated[int, msgspec.Meta(ge=0)], ...] = ()


def read_trace(lines: Iterable[str], *, kv_tokens: int | None = None) -> list[TraceRow]:
    """All rows of a trace in either form. `kv_tokens`: what the KV pool holds, and so what one request may need.

    Raises TraceError.
    """
    numbered = ((number, line) for number, line in enumerate(lines, 1) if line.strip())
    first = next(numbered, None)
    if first is None:
        raise TraceError("the trace is empty")
    parse = _mooncake_rows if first[1].lstrip().startswith("{") else _csv_rows
    rows: list[TraceRow] = []
    for row in parse(chain([first], numbered)):
        _check(row, rows[-1] if rows else None, kv_tokens)
        rows.append(row)
    if not rows:
        raise TraceError("the trace holds no requests")
    return rows


def slice_trace(rows: Iterable[TraceRow], start_s: float, duration_s: float) -> list[TraceRow]:
    """The requests of one stretch of time, which begins at 0. Raises TraceError where there are none."""
    start_ms, end_ms = start_s * 1e3, (start_s + duration_s) * 1e3
    found = [replace(row, at_ms=row.at_ms - start_ms) for row in rows if start_ms <= row.at_ms < end_ms]
    if not found:
        raise TraceError(f"no request arrives in the {duration_s:g} s from {start_s:g} s on")
    return found


def scale_load(rows: Iterable[TraceRow], factor: float) -> Iterator[TraceRow]:
    """The same requests in the same order, `factor` times as fast (> 0)."""
    return (replace(row, at_ms=row.at_ms / factor) for row in rows)


def _csv_rows(lines: Iterator[tuple[int, str]]) -> Iterator[TraceRow]:
    number, header = next(lines)
    if header.strip().split(",") != CSV_COLUMNS:
        raise TraceError(f"row {number}: the columns must be {','.join(CSV_COLUMNS)}")
    for number, line in lines:
        cells = line.strip().split(",")
        if len(cells) != len(CSV_COLUMNS):
            raise TraceError(f"row {number}: {len(CSV_COLUMNS)} columns are expected, not {len(cells)}")
        prompt_tokens, output_tokens = _tokens(number, cells, 1), _tokens(number, cells, 2)
        yield TraceRow(number, _arrival_ms(number, cells[0]), prompt_tokens, output_tokens)


def _arrival_ms(number: int, cell: str) -> float:
    try:
        at_ms = float(cell) * 1e3
    except ValueError:
        at_ms = math.nan
    if not 0.0 <= at_ms <= LATEST_MS:  # nor NaN, which compares false
        raise TraceError(f"row {number}: arrival_s must be a finite number of at least 0, not {cell[:40]!r}")
    return at_ms


def _tokens(number: int, cells: list[str], place: int) -> int:
    cell = cells[place]
    value = int(cell) if cell.isascii() and cell.isdecimal() and len(cell) <= len(str(MOST_TOKENS)) else 0
    if not 1 <= value <= MOST_TOKENS:
        rule = f"must be a whole number from 1 to {MOST_TOKENS}"
        raise TraceError(f"row {number}: {CSV_COLUMNS[place]} {rule}, not {cell[:40]!r}")
    return value


def _mooncake_rows(lines: Iterator[tuple[int, str]]) -> Iterator[TraceRow]:
    decoder = msgspec.json.Decoder(_MooncakeRow)
    for number, line in lines:
        try:
            found = decoder.decode(line)
        except (msgspec.DecodeError, UnicodeEncodeError) as error:
            raise TraceError(f"row {number}: {error}") from None
        yield TraceRow(number, found.timestamp, found.input_length, found.output_length, found.hash_ids)


def _check(row: TraceRow, before: TraceRow | None, kv_tokens: int | None) -> None:
    """What a row must be beside the one before it, and beside the pool. Raises TraceError."""
    if before is not None and row.at_ms < before.at_ms:
        raise TraceError(f"row {row.row}: arrives before row {before.row}; a trace is sorted by arrival")
    if kv_tokens is not None and row.tokens > kv_tokens:
        raise TraceError(f"row {row.row}: needs {row.tokens} KV tokens, and the pool holds {kv_tokens}")


class Prompt(Sequence[int]):
    """Token ids by blocks. `rest`: the id of every token behind the blocks; more blocks than the prompt has are
    ignored."""

    __slots__ = ("_blocks", "_length", "_rest")

    def __init__(self, length: int, blocks: tuple[int, ...] = (), rest: int = 0) -> None:
        self._length, self._blocks, self._rest = length, blocks, rest

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
            return self._id(range(self._length)[place] // HASHED_TOKENS)
        first, end, step = place.indices(self._length)
        ids = tuple(chain.from_iterable(self._stretches(first, end))) if step > 0 else self[:][place]
        return ids[::step] if step > 1 else ids

    def _stretches(self, first: int, end: int) -> Iterator[Iterator[int]]:
        """The ids from `first` to before `end`, a block at a time."""
        named = min(end, len(self._blocks) * HASHED_TOKENS)
        while first < named:
            block = first // HASHED_TOKENS
            behind = min(named, (block + 1) * HASHED_TOKENS)
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
            prompt=cast("tuple[int, ...]", Prompt(self.prompt_tokens, self.blocks, self.own_token)),
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
