"""`fairlane simulate`: the real scheduler in virtual time over a request trace; tables, JSON and plots of what came.

What a running worker is, in figures, from its metrics port.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import httpx
import msgspec
import typer
from rich.console import Console
from rich.progress import Progress

from fairlane.cli import simulate_report as report
from fairlane.cli.client import CommandError, check_writable, write_whole
from fairlane.cli.simulated_run import Scenario, check_load
from fairlane.scheduler.simulation.calibration import Calibration, CalibrationError, preset, read_calibration
from fairlane.scheduler.simulation.simulate import StuckError
from fairlane.scheduler.simulation.synthetic_tenants import SyntheticTenants, lane_tiers
from fairlane.scheduler.simulation.workload import TraceError, TraceRow, read_trace, slice_trace

TIMEOUT_S = 10.0


def fetch_calibration(url: str) -> Calibration:
    """Ask the worker whose metrics are at `url`. Raises CommandError, also where it has not learnt its costs yet."""
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
        raise CommandError(f"{address} does not show a worker's costs: {error}") from None
    if not calibration.learnt:
        raise CommandError("the worker has run too few steps to know its costs: give it some requests first")
    return calibration


app = typer.Typer(add_completion=False)
Option = typer.Option

Trace = Annotated[
    Path | None, Option(metavar="FILE", help="CSV: arrival_s,prompt_tokens,output_tokens; or Mooncake's JSON lines.")
]
Workers = Annotated[int, Option(help="1 to 1000; from 2 on they are behind the global queue.")]
Tenants = Annotated[int, Option(help="How many tenants ask.")]
Zipf = Annotated[float, Option(help="Exponent of the tenants' shares; 0: all ask alike.")]
LatencyShare = Annotated[float, Option(help="Part of the requests in the latency lane, 0 to 1.")]
TtftLimit = Annotated[
    float | None,
    Option(help="Seconds by which latency requests state that their first token must come; else they are refused."),
]
Loads = Annotated[
    list[float] | None, Option(help="How many times as fast as recorded; repeat to compare. [default: 1]")
]
Slice = Annotated[str | None, Option("--slice", metavar="START:DURATION", help="Seconds of the trace; else all.")]
Seed = Annotated[int, Option(help="Of tenants, lanes and noise.")]
HardwareName = Annotated[
    str | None, Option("--hardware", help="A worker by name, such as h100-8b, l4-1b, cpu-135m: docs/simulation.md.")
]
Costs = Annotated[Path | None, Option(metavar="FILE", help="What a worker is, in JSON; --calibrate writes it.")]
Calibrate = Annotated[str | None, Option(metavar="URL", help="Take it from a running worker's metrics port.")]
Blocks = Annotated[int | None, Option(help="KV blocks of a worker.")]
HostSlots = Annotated[int | None, Option(help="Blocks that a worker can swap out.")]
MaxSequences = Annotated[int | None, Option(help="Sequences in one step of a worker.")]
PrefixCache = Annotated[
    bool | None,
    Option(
        "--prefix-cache/--no-prefix-cache", help="Workers keep prompts' KV. [default: where the trace names blocks]"
    ),
]
JsonFile = Annotated[Path | None, Option("--json", metavar="FILE", help="Write every figure there.")]
Plots = Annotated[Path | None, Option(metavar="DIR", help="Draw latencies, goodput and service there.")]
PlotsAs = Annotated[Literal["png", "svg"], Option("--plots-as", help="Form of the pictures.")]


@app.command()
def simulate(
    trace: Trace = None,
    workers: Workers = 1,
    tenants: Tenants = 8,
    zipf: Zipf = 1.0,
    latency_share: LatencyShare = 0.3,
    ttft_limit: TtftLimit = None,
    load: Loads = None,
    part: Slice = None,
    seed: Seed = 0,
    hardware: HardwareName = None,
    costs: Costs = None,
    calibrate: Calibrate = None,
    blocks: Blocks = None,
    host_slots: HostSlots = None,
    max_sequences: MaxSequences = None,
    prefix_cache: PrefixCache = None,
    json_file: JsonFile = None,
    plots: Plots = None,
    plots_as: PlotsAs = "png",
) -> None:
    """The real scheduler in virtual time over a request trace.

    Tenants, lanes and the limits that requests state are dealt out from the seed; the same seed gives the same run.
    Admission, global queue and planner are those that serve.
    """
    with _errors_in_one_line():
        calibration = _calibration(costs, calibrate, hardware)
        if trace is None:
            if calibrate is None or costs is None:
                raise CommandError("name a trace to run (--trace FILE), or where to keep costs (--calibrate, --costs)")
            return
        sizes = {"blocks": blocks, "host_slots": host_slots, "max_sequences": max_sequences}
        calibration = _resized(calibration, sizes)
        rows = _rows(trace, part, calibration.kv_tokens)
        if prefix_cache is None:
            prefix_cache = any(row.hash_ids for row in rows)
        with _refusals():
            loads = [check_load(each) for each in load or [1.0]]
            limit_ms, stream_ms = (
                None if ttft_limit is None else 1e3 * ttft_limit,
                calibration.hardware.single_stream_ms,
            )
            tiers = lane_tiers(latency_share, limit_ms, single_stream_ms=stream_ms)
            overlay = SyntheticTenants(
                tenants=tenants, zipf=zipf, tiers=tiers, seed=seed, kv_tokens=calibration.kv_tokens
            )
            scenario = Scenario(
                rows=rows,
                overlay=overlay,
                calibration=calibration,
                workers=workers,
                seed=seed,
                prefix_cache=prefix_cache,
            )
        report.check(json_file, plots)
        runs = _run(scenario, loads)
        report.write(scenario, trace.name, runs, json_file, plots, plots_as)
        report.show(runs)


@contextmanager
def _errors_in_one_line() -> Iterator[None]:
    try:
        yield
    except (CommandError, TraceError, StuckError) as error:
        typer.echo(f"fairlane: {error}", err=True)
        raise typer.Exit(2) from None


@contextmanager
def _refusals() -> Iterator[None]:
    """Settings name themselves and their rule when they are out of range."""
    try:
        yield
    except ValueError as error:
        raise CommandError(str(error)) from None


def _calibration(file: Path | None, url: str | None, hardware: str | None) -> Calibration:
    """By name; else from a running worker, and then into the file; else from the file; else the defaults."""
    if hardware is not None:
        if file is not None or url is not None:
            raise CommandError("--hardware names the worker: --costs and --calibrate would name another")
        with _refusals():
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


def _resized(calibration: Calibration, sizes: dict[str, int | None]) -> Calibration:
    """With the sizes that were given on the command line, checked as those of a file are."""
    given = {name: size for name, size in sizes.items() if size is not None}
    try:
        return read_calibration(msgspec.json.encode({**msgspec.structs.asdict(calibration), **given}))
    except CalibrationError as error:
        name, _, _ = str(error).partition(":")
        raise CommandError(f"{error}, not {given[name]}") from None


def _rows(file: Path, part: str | None, kv_tokens: int) -> list[TraceRow]:
    stretch = None if part is None else _stretch(part)
    try:
        with file.open(encoding="utf-8-sig") as lines:  # spreadsheets begin a CSV with a byte order mark
            rows = read_trace(lines, kv_tokens=kv_tokens)
        return rows if stretch is None else slice_trace(rows, *stretch)
    except (OSError, UnicodeDecodeError, TraceError) as error:
        raise CommandError(f"{file}: {_reason(error)}") from None


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
    match error:
        case OSError():
            return f"cannot be read ({error.strerror or type(error).__name__})"
        case UnicodeDecodeError():
            return "is no text"
        case _:
            return str(error)


def _run(scenario: Scenario, loads: Sequence[float]) -> list[report.SimulatedLoad]:
    """Each load in turn, under a progress bar where somebody watches."""
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        runs = []
        for load in loads:
            task = progress.add_task(f"load {load:g}", total=len(scenario.rows))
            runs.append(report.SimulatedLoad(load, scenario.run(load, partial(progress.advance, task))))
        return runs
