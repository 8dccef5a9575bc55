"""Request traces: arrival times and sizes, in CSV, Mooncake's JSON lines, or gateway recordings (docs/simulation.md).

Rows of the first two formats are in order of arrival; recordings are in the order in which requests ended. Several rows
may be identical: recorded clocks are coarse, and clients retry."""

import math
import random
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from operator import itemgetter
from statistics import median_low
from typing import IO, Annotated, Literal

import msgspec

from fairlane.scheduler.planner.steps import require
from fairlane.scheduler.protocol.lanes import LaneName

CSV_COLUMNS = ["arrival_s", "prompt_tokens", "output_tokens"]
MARK = "fairlane_trace"
VERSION = 1
# Thirty years: a later arrival is assumed to be a timestamp.
LATEST_MS = 1e12
LATEST_EPOCH_MS = 1e14
MAX_TOKENS = 100_000_000
MAX_CHOICES = 1_024
MAX_LINE_BYTES = 2**20
MAX_NAMED = 20
MAX_ROWS = 20_000_000
COPIES_APART_MS = 1_000.0
# Default prompt tokens per entry of `hash_ids`.
HASHED_TOKENS = 512
SERVED = "ok"
# Lone surrogates stand for bytes that are not UTF-8.
_NOT_TEXT = re.compile("[\ud800-\udfff]")
# Outcomes of requests rejected by a limit of the tenant's own, which more workers would not have served either.
NO_DEMAND = frozenset(
    {"rate_limit_exceeded", "concurrency_limit_exceeded", "queue_full", "insufficient_quota", "request_exceeds_limit"}
)


class TraceError(ValueError):
    """An unusable trace; the message names the row and the problem in one line."""

    def __init__(self, message: str, named: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.named = named


@dataclass(frozen=True, slots=True)
class TraceRow:
    """One request of a trace. Values missing in the trace are None and are assigned later (`synthetic_tenants`)."""

    row: int
    at_ms: float
    prompt_tokens: int
    # Output tokens of each choice.
    output_tokens: int
    # Names of the prompt's blocks of `block_tokens`, from the first on.
    hash_ids: tuple[int, ...] = ()
    block_tokens: int = HASHED_TOKENS
    tenant: str | None = None
    lane: LaneName | None = None
    choices: int = 1
    max_tokens: int | None = None
    ttft_ms: float | None = None
    deadline_ms: float | None = None
    model: str = ""
    outcome: str = SERVED

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + self.choices * self.output_tokens


@dataclass(frozen=True, slots=True)
class TraceTenant:
    """A tenant's properties in a recorded trace."""

    weight: float = 1.0
    limits: Mapping[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class BadRows:
    """Invalid rows: all are counted, and the first MAX_NAMED are described. `fail` rejects the trace after checking
    all of it."""

    policy: Literal["fail", "skip"] = "fail"
    count: int = 0
    named: list[str] = field(default_factory=list)

    def add(self, row: int, problem: str) -> None:
        self.count += 1
        if len(self.named) < MAX_NAMED:
            self.named.append(f"row {row}: {problem}")

    def check(self) -> None:
        if self.count and self.policy == "fail":
            more = f"; {self.count - 1} more rows are wrong" if self.count > 1 else ""
            raise TraceError(f"{self.named[0]}{more}", self.named)


@dataclass(slots=True)
class Trace:
    """The rows, bad rows and tenants of a parsed trace."""

    rows: list[TraceRow]
    bad: BadRows
    tenants: dict[str, TraceTenant] = field(default_factory=dict)

    @property
    def weights(self) -> dict[str, float]:
        return {name: tenant.weight for name, tenant in self.tenants.items()}

    def demand(self) -> list[TraceRow]:
        """Return the requests that need workers, without those rejected by a tenant's own limit. Requests without
        output get the lane's median. Raises TraceError if there are none."""
        outputs: dict[LaneName | None, list[int]] = {}
        for row in self.rows:
            if row.output_tokens:
                outputs.setdefault(row.lane, []).append(row.output_tokens)
        typical = {lane: median_low(found) for lane, found in outputs.items()}
        asked = [
            row
            if row.output_tokens
            else replace(row, output_tokens=min(typical.get(row.lane, 1), row.max_tokens or MAX_TOKENS))
            for row in self.rows
            if row.output_tokens or row.outcome not in NO_DEMAND
        ]
        if not asked:
            raise TraceError("the trace contains no requests that workers could serve")
        return asked


def text_lines(file: IO[bytes]) -> Iterator[str]:
    """Yield the lines of a file for `load_trace`. Longer ones are cut just above MAX_LINE_BYTES, so that they are
    detected; invalid UTF-8 is detected too."""
    is_first = True
    while line := file.readline(MAX_LINE_BYTES + 1):
        whole = line
        while len(line) > MAX_LINE_BYTES and not whole.endswith(b"\n"):
            whole = file.readline(MAX_LINE_BYTES)
            if not whole:
                break
        text = line.decode("utf-8", errors="surrogateescape")
        yield text.removeprefix("\ufeff") if is_first else text  # spreadsheets write a byte order mark
        is_first = False


def load_trace(
    lines: Iterable[str], *, kv_tokens: int | None = None, bad: BadRows | None = None, most_rows: int = MAX_ROWS
) -> Trace:
    """Parse a trace in any format; `kv_tokens` limits one request. Raises TraceError if the text is not a trace, or has
    bad rows and `bad` rejects them."""
    numbered = ((number, line) for number, line in enumerate(lines, 1) if line.strip())
    first = next(numbered, None)
    if first is None:
        raise TraceError("the trace is empty")
    head = first[1].lstrip()
    is_json = head.startswith("{")
    is_recorded = is_json and MARK in head[: len(MARK) + 4]
    if not is_json and _NOT_TEXT.search(head):
        raise TraceError("is not text")
    trace = Trace([], bad or BadRows())
    parse: _RowParser = _mooncake_row
    if is_recorded:
        parse = _RecordedRows(trace.tenants).parse
    elif not is_json:
        parse = _csv_parser(first)
    all_lines = chain([first], numbered)
    _read(trace, all_lines, parse, kv_tokens=kv_tokens, most_rows=most_rows, in_order=not is_recorded)
    trace.bad.check()
    if not trace.rows:
        raise TraceError("the trace holds no requests")
    if is_recorded:
        rows = sorted(trace.rows, key=lambda row: row.at_ms)
        trace.rows = [replace(row, at_ms=row.at_ms - rows[0].at_ms) for row in rows]
    return trace


def slice_trace(rows: Iterable[TraceRow], start_s: float, duration_s: float) -> list[TraceRow]:
    """Return the requests of one period, with times from its start. Raises TraceError if there are none."""
    start_ms, end_ms = start_s * 1e3, (start_s + duration_s) * 1e3
    found = [replace(row, at_ms=row.at_ms - start_ms) for row in rows if start_ms <= row.at_ms < end_ms]
    if not found:
        raise TraceError(f"no request arrives in the {duration_s:g} s from {start_s:g} s on")
    return found


def scale_load(rows: Iterable[TraceRow], factor: float) -> Iterator[TraceRow]:
    """Yield the same requests in the same order, `factor` times as fast (> 0)."""
    return (replace(row, at_ms=row.at_ms / factor) for row in rows)


def copy_rows(rows: Sequence[TraceRow], copies: int, seed: int) -> list[TraceRow]:
    """Return each request `copies` times, by arrival. A copy arrives up to COPIES_APART_MS later, drawn from the seed,
    so that the trace's changes of rate remain. Copies share no prefix."""
    require("copies", copies, 1, MAX_ROWS // len(rows))
    if copies == 1:
        return list(rows)
    draws = random.Random(seed)
    moved = [(row.at_ms + draws.random() * COPIES_APART_MS, row) for row in rows for _ in range(copies)]
    return [replace(row, at_ms=at_ms, hash_ids=()) for at_ms, row in sorted(moved, key=itemgetter(0))]


_RowParser = Callable[[int, str], TraceRow | None]


def _read(
    trace: Trace,
    lines: Iterable[tuple[int, str]],
    parse: _RowParser,
    *,
    kv_tokens: int | None,
    most_rows: int,
    in_order: bool,
) -> None:
    rows = trace.rows
    for number, line in lines:
        try:
            _check_line(line)
            row = parse(number, line)
            if row is not None:
                if in_order and rows and row.at_ms < rows[-1].at_ms:
                    raise _RowProblem(f"arrives before row {rows[-1].row}; a trace is sorted by arrival")
                if kv_tokens is not None and row.tokens > kv_tokens:
                    raise _RowProblem(f"needs {row.tokens} KV tokens, and the pool holds {kv_tokens}")
                rows.append(row)
        except _RowProblem as problem:
            trace.bad.add(number, str(problem))
        if len(rows) > most_rows:
            raise TraceError(f"the trace contains more than {most_rows} requests; use a part of it")


class _RowProblem(ValueError):
    """A problem of a row, in one line that starts with the column."""


def _check_line(line: str) -> None:
    if len(line) > MAX_LINE_BYTES:
        raise _RowProblem(f"the line is longer than {MAX_LINE_BYTES} bytes")
    if _NOT_TEXT.search(line):
        raise _RowProblem("is not text")


def _csv_parser(first: tuple[int, str]) -> _RowParser:
    header_row, header = first
    if header.strip().split(",") != CSV_COLUMNS:
        raise TraceError(f"row {header_row}: the columns must be {','.join(CSV_COLUMNS)}")

    def parse(number: int, line: str) -> TraceRow | None:
        if number == header_row:
            return None
        cells = line.strip().split(",", len(CSV_COLUMNS))
        if len(cells) != len(CSV_COLUMNS):
            found = line.count(",") + 1
            raise _RowProblem(f"{len(CSV_COLUMNS)} columns are expected, not {found}")
        return TraceRow(number, _arrival_ms(cells[0]), _tokens(cells, 1), _tokens(cells, 2))

    return parse


def _arrival_ms(cell: str) -> float:
    try:
        at_ms = float(cell) * 1e3
    except ValueError:
        at_ms = math.nan
    if not 0.0 <= at_ms <= LATEST_MS:  # also excludes NaN
        raise _RowProblem(f"arrival_s must be a finite number of at least 0, not {cell[:40]!r}")
    return at_ms


def _tokens(cells: Sequence[str], place: int) -> int:
    cell = cells[place]
    value = int(cell) if cell.isascii() and cell.isdecimal() and len(cell) <= len(str(MAX_TOKENS)) else 0
    if not 1 <= value <= MAX_TOKENS:
        rule = f"must be a whole number from 1 to {MAX_TOKENS}"
        raise _RowProblem(f"{CSV_COLUMNS[place]} {rule}, not {cell[:40]!r}")
    return value


_Tokens = Annotated[int, msgspec.Meta(ge=1, le=MAX_TOKENS)]
_HashId = Annotated[int, msgspec.Meta(ge=0)]
_Duration = Annotated[float, msgspec.Meta(gt=0, le=LATEST_MS)]


class _MooncakeRow(msgspec.Struct, frozen=True):
    timestamp: Annotated[float, msgspec.Meta(ge=0, le=LATEST_MS)]
    input_length: _Tokens
    output_length: _Tokens
    hash_ids: tuple[_HashId, ...] = ()


_decode_mooncake = msgspec.json.Decoder(_MooncakeRow).decode


def _mooncake_row(number: int, line: str) -> TraceRow:
    try:
        found = _decode_mooncake(line)
    except msgspec.DecodeError as error:
        raise _json_problem(error) from None
    return TraceRow(number, found.timestamp, found.input_length, found.output_length, found.hash_ids)


def _json_problem(error: msgspec.DecodeError) -> _RowProblem:
    rule, _, place = str(error).rstrip("`").partition(" - at `$.")
    return _RowProblem(f"{place}: {rule}"[:160] if place else rule[:160])


class RecordedHead(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The first line of a gateway's recording."""

    fairlane_trace: Annotated[int, msgspec.Meta(ge=1, le=VERSION)]
    # Unix seconds.
    started_at: float = 0.0
    # Prompt tokens per number in `prefix`.
    block_tokens: Annotated[int, msgspec.Meta(ge=1, le=65_536)] = HASHED_TOKENS


class RecordedTenant(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A tenant's weight and limits, written before its first request and whenever they change."""

    tenant: Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
    weight: Annotated[float, msgspec.Meta(gt=0, le=1e6)] = 1.0
    limits: dict[str, Annotated[int, msgspec.Meta(ge=0)]]


class RecordedRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A request that has ended."""

    # Its arrival, Unix milliseconds.
    at_ms: Annotated[float, msgspec.Meta(ge=0, le=LATEST_EPOCH_MS)]
    tenant: Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
    lane: LaneName
    prompt_tokens: _Tokens
    # Output tokens of all its choices together.
    output_tokens: Annotated[int, msgspec.Meta(ge=0, le=MAX_TOKENS)]
    # Stated by the caller for each choice.
    max_tokens: _Tokens | None = None
    n: Annotated[int, msgspec.Meta(ge=1, le=MAX_CHOICES)] = 1
    model: Annotated[str, msgspec.Meta(max_length=500)] = ""
    ttft_ms: _Duration | None = None
    deadline_ms: _Duration | None = None
    # As in the gateway's metrics: `ok`, `client_closed`, or an error code.
    outcome: Annotated[str, msgspec.Meta(max_length=64)] = SERVED
    # Names of the prompt's whole blocks, from the first on.
    prefix: tuple[_HashId, ...] = ()


_ABSENT = msgspec.Raw()


class _Kind(msgspec.Struct, frozen=True):
    fairlane_trace: msgspec.Raw = _ABSENT
    at_ms: msgspec.Raw = _ABSENT
    limits: msgspec.Raw = _ABSENT


_decode_kind = msgspec.json.Decoder(_Kind).decode
_decode_head = msgspec.json.Decoder(RecordedHead).decode
_decode_tenant = msgspec.json.Decoder(RecordedTenant).decode
_decode_request = msgspec.json.Decoder(RecordedRequest).decode


class _RecordedRows:
    def __init__(self, tenants: dict[str, TraceTenant]) -> None:
        self._tenants = tenants
        self._block_tokens = HASHED_TOKENS

    def parse(self, number: int, line: str) -> TraceRow | None:
        """Return a request, or None for another kind of line or one that a killed gateway left incomplete."""
        try:
            kind = _decode_kind(line)
            if len(kind.fairlane_trace):
                self._block_tokens = _decode_head(line).block_tokens
            elif len(kind.limits) and not len(kind.at_ms):
                tenant = _decode_tenant(line)
                self._tenants[tenant.tenant] = TraceTenant(tenant.weight, tenant.limits)
            else:
                return self._row(number, _decode_request(line))
        except msgspec.DecodeError as error:
            if not line.endswith("\n") and not isinstance(error, msgspec.ValidationError):
                return None
            raise _json_problem(error) from None
        return None

    def _row(self, number: int, found: RecordedRequest) -> TraceRow:
        return TraceRow(
            row=number,
            at_ms=found.at_ms,
            prompt_tokens=found.prompt_tokens,
            output_tokens=-(-found.output_tokens // found.n),
            hash_ids=found.prefix,
            block_tokens=self._block_tokens,
            tenant=found.tenant,
            lane=found.lane,
            choices=found.n,
            max_tokens=found.max_tokens,
            ttft_ms=found.ttft_ms,
            deadline_ms=found.deadline_ms,
            model=found.model,
            outcome=found.outcome,
        )
