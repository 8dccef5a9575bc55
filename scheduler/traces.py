"""Request traces as text lines: ours in CSV, Mooncake's in JSON lines. Checked to the last row before anything runs.

Rows must be in the order of their arrival. Several may arrive at one moment, as recorded clocks are coarse, and be
alike in every column: callers send again, and many ask the same. Source of the JSON form: Qin et al., "Mooncake" (FAST
2025).
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain
from typing import Annotated

import msgspec

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
        """KV tokens that it grows to."""
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
