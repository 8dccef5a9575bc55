"""Inputs of `simulate` and `advise`: a trace, and a worker's calibration by name, from a file, or from a running
worker."""

import math
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Literal

import httpx
import msgspec
import typer

from fairlane.cli.client import CommandError, check_writable, report_errors, write_whole
from fairlane.scheduler.simulation.calibration import Calibration, CalibrationError, preset, read_calibration
from fairlane.scheduler.simulation.simulate import StuckError
from fairlane.scheduler.simulation.trace import (
    BadRows,
    Trace,
    TraceError,
    TraceRow,
    load_trace,
    slice_trace,
    text_lines,
)

TIMEOUT_S = 10.0


def fetch_calibration(url: str) -> Calibration:
    """Fetch a worker's calibration from its metrics port. Raises CommandError, also if it is not learnt yet."""
    address = f"{url.removesuffix('/').removesuffix('/metrics')}/costs"
    try:
        answer = httpx.get(address, timeout=TIMEOUT_S)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise CommandError(f"no worker answers at {address} ({type(error).__name__})") from None
    if not answer.is_success:
        raise CommandError(f"{address} answers {answer.status_code}: not a worker's metrics port")
    try:
        calibration = read_calibration(answer.content)
    except CalibrationError as error:
        raise CommandError(f"{address} does not return a worker's costs: {error}") from None
    if not calibration.learnt:
        raise CommandError("the worker has run too few steps to know its costs: send it some requests first")
    return calibration


def usage_errors() -> AbstractContextManager[None]:
    """Turn errors in arguments and traces into a line on stderr and exit code 2."""
    return report_errors((CommandError, TraceError, StuckError), exit_code=2)


@contextmanager
def refusals() -> Iterator[None]:
    """Turn a setting's ValueError, which names the setting, into a CommandError."""
    try:
        yield
    except ValueError as error:
        raise CommandError(str(error)) from None


def read_workers(file: Path | None, url: str | None, hardware: str | None) -> Calibration:
    """Read a calibration: a preset, a running worker's (and store it in `file`), a file's, or the default."""
    if hardware is not None:
        if file is not None or url is not None:
            raise CommandError("--hardware cannot be combined with --costs or --calibrate")
        with refusals():
            return preset(hardware)
    if url is not None:
        if file is not None:
            check_writable(file)
        calibration = fetch_calibration(url)
        if file is not None:
            write_whole(file, [calibration.to_json() + b"\n"])
        return calibration
    if file is None:
        return Calibration()
    try:
        return read_calibration(file.read_bytes())
    except (OSError, CalibrationError) as error:
        raise CommandError(f"{file}: {_reason(error)}") from None


def resized(calibration: Calibration, sizes: dict[str, int | None]) -> Calibration:
    """Return the calibration with the sizes given on the command line, validated as those of a file."""
    given = {name: size for name, size in sizes.items() if size is not None}
    try:
        return read_calibration(msgspec.json.encode({**msgspec.structs.asdict(calibration), **given}))
    except CalibrationError as error:
        name, _, _ = str(error).partition(":")
        raise CommandError(f"{error}, not {given[name]}") from None


def read_file(file: Path, kv_tokens: int | None, bad_rows: Literal["fail", "skip"]) -> Trace:
    """Read a trace from a file. Rows that cannot be used are named on stderr. Raises CommandError."""
    bad = BadRows(bad_rows)
    try:
        with file.open("rb") as opened:
            read = load_trace(text_lines(opened), kv_tokens=kv_tokens, bad=bad)
    except (OSError, TraceError) as error:
        if isinstance(error, TraceError) and len(error.named) > 1:
            _name(file, bad)
        raise CommandError(f"{file}: {_reason(error)}") from None
    if bad.count:
        _name(file, bad)
        typer.echo(f"{file}: {bad.count} rows are skipped", err=True)
    return read


def _name(file: Path, bad: BadRows) -> None:
    for line in bad.named:
        typer.echo(f"{file}: {line}", err=True)


def cut(file: Path, trace: Trace, part: str | None) -> list[TraceRow]:
    """Return the rows of a trace to play. Raises CommandError."""
    try:
        rows = trace.demand()
        return rows if part is None else slice_trace(rows, *_stretch(part))
    except TraceError as error:
        raise CommandError(f"{file}: {error}") from None


def print_left_out(trace: Trace, rows: Sequence[TraceRow], part: str | None) -> None:
    """Print on stderr how many recorded requests `rows` lacks because a limit had refused them."""
    recorded = trace.rows if part is None else slice_trace(trace.rows, *_stretch(part))
    left_out = len(recorded) - len(rows)
    if left_out:
        noun, verb = ("request", "is") if left_out == 1 else ("requests", "are")
        typer.echo(f"{left_out:,} {noun} refused by a limit {verb} left out", err=True)


def _stretch(part: str) -> tuple[float, float]:
    start, _, duration = part.partition(":")
    try:
        seconds = float(start), float(duration)
    except ValueError:
        seconds = math.nan, math.nan
    if not (0.0 <= seconds[0] < math.inf and 0.0 < seconds[1] < math.inf):
        raise CommandError(f"--slice must be START:DURATION in seconds, such as 600:600, not {part[:40]!r}")
    return seconds


def _reason(error: Exception) -> str:
    if isinstance(error, OSError):
        return f"cannot be read ({error.strerror or type(error).__name__})"
    return str(error)
