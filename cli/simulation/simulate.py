"""`fairlane simulate`: runs the real scheduler in virtual time over a request trace; prints tables, writes JSON and
plots."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console
from rich.progress import Progress

from fairlane.cli.client import CommandError
from fairlane.cli.simulation import fleet
from fairlane.cli.simulation import simulate_report as report
from fairlane.cli.simulation.inputs import cut, print_left_out, read_file, read_workers, refusals, resized, usage_errors
from fairlane.scheduler.simulation.scenario import Scenario, check_load
from fairlane.scheduler.simulation.synthetic_tenants import SyntheticTenants, lane_tiers

app = typer.Typer(add_completion=False)
Option = typer.Option

BadRowPolicy = Annotated[Literal["fail", "skip"], Option("--bad-rows", help="Unusable rows: fail, or name and skip.")]
Tenants = Annotated[int, Option(help="Number of tenants.")]
Zipf = Annotated[float, Option(help="Zipf exponent of the tenants' shares; 0 for equal shares.")]
LatencyShare = Annotated[float, Option(help="Fraction of requests in the latency lane, 0 to 1.")]
Slice = Annotated[str | None, Option("--slice", metavar="START:DURATION", help="Part of the trace, in seconds.")]
Seed = Annotated[int, Option(help="Seed of tenants, lanes and noise.")]
HardwareName = Annotated[str | None, Option("--hardware", help="Preset, such as h100-8b; see docs/simulation.md.")]
Costs = Annotated[Path | None, Option(metavar="FILE", help="Calibration of a worker, in JSON; --calibrate writes it.")]


@app.command()
def simulate(
    trace: Annotated[
        Path | None,
        Option(
            metavar="FILE",
            help="Output of `fairlane record`; CSV: arrival_s,prompt_tokens,output_tokens; or Mooncake's format.",
        ),
    ] = None,
    workers: Annotated[
        int, Option(help="Number of workers, 1 to 1000 (10000 in a fleet); several share the global queue.")
    ] = 1,
    tenants: Tenants = 8,
    zipf: Zipf = 1.0,
    latency_share: LatencyShare = 0.3,
    ttft_limit: Annotated[
        float | None,
        Option(help="TTFT deadline in seconds that latency requests state; they are refused if it cannot be met."),
    ] = None,
    load: Annotated[list[float] | None, Option(help="Relative speed; repeat to compare. [default: 1]")] = None,
    part: Slice = None,
    seed: Seed = 0,
    bad_rows: BadRowPolicy = "fail",
    hardware: HardwareName = None,
    costs: Costs = None,
    calibrate: Annotated[str | None, Option(metavar="URL", help="Calibrate from a worker's metrics port.")] = None,
    blocks: Annotated[int | None, Option(help="KV blocks per worker.")] = None,
    host_slots: Annotated[int | None, Option(help="Blocks that each worker can swap out.")] = None,
    max_sequences: Annotated[int | None, Option(help="Maximum sequences per step of a worker.")] = None,
    gateways: fleet.GatewayCount = None,
    shards: fleet.Shards = None,
    store_us: fleet.StoreUs = None,
    link_ms: fleet.LinkMs = None,
    workers_as: fleet.WorkersAs = None,
    worker_deaths: fleet.WorkerDeaths = None,
    copies: fleet.Copies = None,
    weights: fleet.Weights = None,
    json_file: Annotated[Path | None, Option("--json", metavar="FILE", help="Write all figures to this file.")] = None,
    plots: Annotated[Path | None, Option(metavar="DIR", help="Directory for plots.")] = None,
    plots_as: Annotated[Literal["png", "svg"], Option("--plots-as", help="Format of the plots.")] = "png",
) -> None:
    """Run the real scheduler in virtual time over a request trace.

    Tenants, lanes and stated limits are drawn from the seed; the same seed gives the same run. Admission, global queue
    and planner are the code that serves. With --gateways or --shards, the store's calls take time too, and workers have
    rows and fixed steps instead of planners, so that thousands run at once."""
    with usage_errors():
        calibration = read_workers(costs, calibrate, hardware)
        if trace is None:
            if calibrate is None or costs is None:
                raise CommandError("name a trace to run (--trace FILE), or a file to calibrate (--calibrate, --costs)")
            return
        sizes = {"blocks": blocks, "host_slots": host_slots, "max_sequences": max_sequences}
        calibration = resized(calibration, sizes)
        kv_tokens = calibration.kv_tokens if workers_as is None else None
        read = read_file(trace, kv_tokens, bad_rows)
        rows = cut(trace, read, part)
        with refusals():
            shape = fleet.shape_of(
                calibration,
                rows,
                workers,
                gateways,
                shards,
                store_us=store_us,
                link_ms=link_ms,
                workers_as=workers_as,
                worker_deaths=worker_deaths,
                copies=copies,
            )
            loads = [check_load(each) for each in load or [1.0]]
            limit_ms = None if ttft_limit is None else 1e3 * ttft_limit
            stream_ms = calibration.single_stream_ms if shape is None else shape.kind.step_ms
            tiers = lane_tiers(latency_share, limit_ms, single_stream_ms=stream_ms)
            overlay = SyntheticTenants(
                tenants=tenants,
                zipf=zipf,
                tiers=tiers,
                seed=seed,
                kv_tokens=kv_tokens,
                weights={**fleet.drawn_weights(weights, tenants), **read.weights},
            )
        print_left_out(read, rows, part)
        if shape is not None:
            if plots is not None:
                raise CommandError("--plots draws nothing of a fleet: use --json")
            fleet.run(rows, overlay, shape, loads, copies=copies, seed=seed, trace=trace.name, json_file=json_file)
            return
        with refusals():
            scenario = Scenario(rows=rows, overlay=overlay, calibration=calibration, workers=workers, seed=seed)
        report.check(json_file, plots)
        runs = _run(scenario, loads)
        report.write(scenario, trace.name, runs, json_file, plots, plots_as)
        report.show(runs)


def _run(scenario: Scenario, loads: Sequence[float]) -> list[report.SimulatedLoad]:
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        runs = []
        for load in loads:
            task = progress.add_task(f"load {load:g}", total=len(scenario.rows))
            runs.append(report.SimulatedLoad(load, scenario.run(load, partial(progress.advance, task))))
        return runs
