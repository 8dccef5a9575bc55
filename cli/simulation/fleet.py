"""The fleet of `fairlane simulate --gateways --shards`: options, the run, tables and JSON."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.progress import Progress

from fairlane.cli.client import check_writable, write_whole
from fairlane.cli.printer import show_table
from fairlane.cli.simulation.inputs import refusals
from fairlane.cli.simulation.simulate_report import GROUP_COLUMNS, group_figures
from fairlane.scheduler.protocol.lanes import DEFAULT_LANES, Lane, LaneName
from fairlane.scheduler.simulation.calibration import Calibration
from fairlane.scheduler.simulation.fleet.admission import Gateways
from fairlane.scheduler.simulation.fleet.control_plane import LINK_MS, FleetShape
from fairlane.scheduler.simulation.fleet.figures import CoreFigures, FleetMeter, FleetSummary
from fairlane.scheduler.simulation.fleet.fleet import Fleet
from fairlane.scheduler.simulation.fleet.rows_worker import RowsShape
from fairlane.scheduler.simulation.fleet.store_cores import StoreTimes
from fairlane.scheduler.simulation.synthetic_tenants import SyntheticTenants
from fairlane.scheduler.simulation.trace import TraceRow, copy_rows, scale_load

Option = typer.Option
GatewayCount = Annotated[
    int | None, Option("--gateways", help="Simulate the control plane too, with this many gateways.")
]
Shards = Annotated[int | None, Option("--shards", help="Shards of the model's queue, each on a store core of its own.")]
StoreUs = Annotated[
    str | None,
    Option(
        "--store-us", metavar="CALL=US[+US],...", help="Script time of a call, and of each job in it; e.g. put=190."
    ),
]
LinkMs = Annotated[float | None, Option("--link-ms", help="One-way latency between processes. [default: 0.25]")]
WorkersAs = Annotated[
    str | None,
    Option("--workers-as", metavar="rows=64,step_ms=30", help="Workers of a fleet; by default as fast as --hardware."),
]
WorkerDeaths = Annotated[
    float | None, Option(help="Workers of a fleet that die per minute; another one comes 10 s later. [default: 0]")
]
Copies = Annotated[int | None, Option(help="Copies of each request of the trace, in a fleet. [default: 1]")]
Weights = Annotated[str | None, Option(help="Weights of the drawn tenants, in turns, such as 1,2,4.")]

MAX_QUEUED = 10_000_000
CORE_COLUMNS = ("core", "busy %", "busiest second %", "wait p50", "wait p99 ms", "longest call ms", "calls")
RUN_COLUMNS = (
    "load", "chats/s", "rows used %", "busiest store core %", "store wait p50", "p99 ms", "calls/chat at the queue",
    "tokens/frame", "max deviation of service/weight %", "starved tenants", "guaranteed", "broken", "workers died",
    "broken by it",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class FleetRun:
    """One load and its results."""

    load: float
    summary: FleetSummary


def lanes_for(workers: int) -> Mapping[LaneName, Lane]:
    """Return the lanes with their caps for as many workers: a default is for one."""
    return {
        name: replace(lane, max_queued=min(MAX_QUEUED, lane.max_queued * workers))
        for name, lane in DEFAULT_LANES.items()
    }


def shape_of(
    calibration: Calibration,
    rows: Sequence[TraceRow],
    workers: int,
    gateways: int | None,
    shards: int | None,
    *,
    store_us: str | None,
    link_ms: float | None,
    workers_as: str | None,
    worker_deaths: float | None,
    copies: int | None,
) -> FleetShape | None:
    """Return the fleet that the options describe, or None if none of them is given. Raises ValueError."""
    if all(option is None for option in (gateways, shards, store_us, link_ms, workers_as, worker_deaths, copies)):
        return None
    return FleetShape(
        workers=workers,
        gateways=1 if gateways is None else gateways,
        shards=1 if shards is None else shards,
        kind=RowsShape.like(calibration, rows) if workers_as is None else RowsShape.parse(workers_as),
        times=StoreTimes() if store_us is None else StoreTimes.parse(store_us),
        link_ms=LINK_MS if link_ms is None else link_ms,
        deaths_per_min=worker_deaths or 0.0,
    )


def drawn_weights(text: str | None, tenants: int) -> Mapping[str, float]:
    """Return the weights of drawn tenants. Raises ValueError."""
    if text is None:
        return {}
    try:
        weights = [float(part) for part in text.split(",")]
    except ValueError:
        weights = []
    if not weights or not all(0.0 < weight <= 1e6 for weight in weights):
        raise ValueError(f"weights must be numbers above 0, such as 1,2,4, not {text[:40]!r}")
    return {f"tenant-{number + 1}": weights[number % len(weights)] for number in range(tenants)}


def run(
    rows: Sequence[TraceRow],
    overlay: SyntheticTenants,
    shape: FleetShape,
    loads: Sequence[float],
    *,
    copies: int | None,
    seed: int,
    trace: str,
    json_file: Path | None,
) -> None:
    """Simulate each load of the trace's copies, and show the results. Raises CommandError."""
    if json_file is not None:
        check_writable(json_file)
    runs = []
    for load in loads:
        with refusals():
            copied = copy_rows([*scale_load(rows, load)], 1 if copies is None else copies, seed)
        runs.append(FleetRun(load, _run(copied, overlay, shape, seed, load)))
    if json_file is not None:
        document = {"trace": trace, "copies": copies or 1, "seed": seed, "fleet": shape, "runs": runs}
        write_whole(json_file, [msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n"])
    show(runs, shape)


def _run(
    rows: Sequence[TraceRow], overlay: SyntheticTenants, shape: FleetShape, seed: int, load: float
) -> FleetSummary:
    decides = any(tier.deadline_ms or tier.hard_ttft_ms for tier in overlay.tiers) or any(
        row.deadline_ms or row.ttft_ms for row in rows
    )
    admission = Gateways(shape.gateways, shape.workers, shape.kind) if decides else None
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        meter = FleetMeter(on_end=partial(progress.advance, progress.add_task(f"load {load:g}", total=len(rows))))
        fleet = Fleet(
            overlay.arrivals(rows),
            shape,
            lanes=lanes_for(shape.workers),
            admission=admission,
            observers=[meter],
            seed=seed,
        )
        fleet.run()
    return meter.summarize(fleet, admission.guaranteed if admission else ())


def show(runs: Sequence[FleetRun], shape: FleetShape) -> None:
    """Print each run by lane and by store core, then all runs side by side."""
    kind = shape.kind
    typer.echo(
        f"{shape.workers:,} workers of {kind.rows} rows and steps of {kind.step_ms:.3g} ms, {shape.gateways} gateways, "
        f"{shape.shards} shards. KV and preemption are not simulated."
    )
    for one in runs:
        summary = one.summary
        typer.echo(f"\nload {one.load:g}, by lane")
        groups = summary.requests.lanes.items()
        show_table(("lane", *GROUP_COLUMNS), [(name, *group_figures(group)) for name, group in groups])
        typer.echo(f"\nload {one.load:g}, by store core")
        named = [(f"queue {place}", core) for place, core in enumerate(summary.shards)]
        named += [(f"budgets {place}", core) for place, core in enumerate(summary.budgets)]
        show_table(CORE_COLUMNS, [(name, *_core(core)) for name, core in named])
    typer.echo()
    show_table(RUN_COLUMNS, [_line(one) for one in runs])


def _core(core: CoreFigures) -> tuple[object, ...]:
    return (
        100.0 * core.utilisation,
        100.0 * core.busiest_second,
        core.wait_p50_ms,
        core.wait_p99_ms,
        core.longest_call_ms,
        sum(core.calls.values()),
    )


def _line(run: FleetRun) -> tuple[object, ...]:
    summary, busiest = run.summary, run.summary.busiest
    deviations = [100.0 * found.deviation for found in summary.fairness.values()]
    return (
        f"{run.load:g}",
        summary.chats_per_s,
        100.0 * summary.rows_used,
        100.0 * busiest.utilisation,
        busiest.wait_p50_ms,
        busiest.wait_p99_ms,
        summary.calls_per_chat,
        summary.tokens_per_frame,
        max(deviations, default=None),
        summary.starved_tenants,
        summary.guaranteed,
        summary.broken,
        summary.deaths,
        summary.broken_by_death,
    )
