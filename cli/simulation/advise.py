"""`fairlane advise`: from a trace and a worker's calibration, finds how many workers are needed, which targets could be
tighter, how near tenants are to their limits, and what other settings would change, with simulated evidence."""

import multiprocessing
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress, TaskID

from fairlane.cli.client import CommandError
from fairlane.cli.printer import Output, OutputCommand, OutputForm
from fairlane.cli.simulation import advise_report as report
from fairlane.cli.simulation.fleet import StoreUs
from fairlane.cli.simulation.inputs import cut, print_left_out, read_file, read_workers, refusals, usage_errors
from fairlane.cli.simulation.simulate import BadRowPolicy, Costs, HardwareName, LatencyShare, Seed, Slice, Tenants, Zipf
from fairlane.scheduler.protocol.lanes import LaneName
from fairlane.scheduler.simulation.advice import Case, PlayAll, Question, advise, play
from fairlane.scheduler.simulation.fleet.ceiling import StoreLoad
from fairlane.scheduler.simulation.fleet.store_cores import StoreTimes
from fairlane.scheduler.simulation.scenario import Stretch, busiest, check_load
from fairlane.scheduler.simulation.sizing import ATTAINMENT, Verdict, alone_kept
from fairlane.scheduler.simulation.synthetic_tenants import Tier, lane_tiers
from fairlane.scheduler.simulation.trace import TraceRow, scale_load

MOST_PROCESSES = 8
MOST_MS = 1e9

app = typer.Typer(add_completion=False)
Option = typer.Option


@app.command(cls=OutputCommand)
def advise_command(
    trace: Annotated[Path, Option("--trace", metavar="FILE", help="A recorded trace, or one that `simulate` reads.")],
    hardware: HardwareName = None,
    costs: Costs = None,
    workers_costs: Annotated[
        str | None, Option("--workers-costs", metavar="URL", help="Calibrate from a running worker's metrics port.")
    ] = None,
    load: Annotated[float, Option(help="Speed relative to the recording.")] = 1.0,
    part: Slice = None,
    requests: Annotated[int, Option(min=0, help="Requests to simulate, of the busiest stretch; 0 for all.")] = 2_000,
    ttft_s: Annotated[float | None, Option("--ttft-s", help="TTFT target of the latency lane; defaults to 1.")] = None,
    tpot_ms: Annotated[
        float | None,
        Option(
            "--tpot-ms", help="TPOT target of the latency lane; defaults to 3 times a single stream's, at most 100."
        ),
    ] = None,
    tenants: Tenants = 8,
    zipf: Zipf = 1.0,
    latency_share: LatencyShare = 0.3,
    seed: Seed = 0,
    bad_rows: BadRowPolicy = "fail",
    store_us: StoreUs = None,
    knobs: Annotated[bool, Option("--knobs/--no-knobs", help="Also try tighter targets and other settings.")] = True,
    processes: Annotated[int | None, Option(min=1, max=64, help="Parallel simulations. [default: processors]")] = None,
    output: Output = OutputForm.TABLE,
) -> None:
    """Advise how many workers a trace needs, and what other settings would change, with the simulations as evidence.

    A number of workers is enough if 99 % of the latency lane's requests keep its TTFT target, 99 % its TPOT target, 99
    % of the throughput lane's requests keep their TTFT target, and that lane's backlog drains."""
    with usage_errors():
        calibration = read_workers(costs, workers_costs, hardware)
        read = read_file(trace, calibration.kv_tokens, bad_rows)
        rows = cut(trace, read, part)
        with refusals():
            times = StoreTimes() if store_us is None else StoreTimes.parse(store_us)
            rows = [*scale_load(rows, check_load(load))]
            targets = lane_tiers(latency_share, single_stream_ms=calibration.single_stream_ms)
            tiers = tuple(_with_targets(tier, ttft_s, tpot_ms) for tier in targets)
            stretch = busiest(rows, requests or len(rows), calibration)
            recorded = replace(stretch, from_s=load * stretch.from_s, to_s=load * stretch.to_s)
            question = Question(
                rows=stretch.rows,
                calibration=calibration,
                tiers=tiers,
                tenants=tenants,
                zipf=zipf,
                weights=read.weights,
                seed=seed,
            )
        _check_attainable(rows, question)
        print_left_out(read, rows, part)
        at_once = processes or min(MOST_PROCESSES, os.cpu_count() or 1)
        with players(question, at_once) as play_all:
            advice = advise(question, play_all, at_once=at_once, with_knobs=knobs)
        store = _store_load(stretch, advice.sizing.workers, times)
        report.present(trace.name, load, rows, read, recorded, question, advice, store, output)


def _store_load(stretch: Stretch, workers: int | None, times: StoreTimes) -> StoreLoad | None:
    """Return what the advised workers' requests are to the store, or None if no number of workers is enough."""
    seconds = max(1.0, stretch.to_s - stretch.from_s)
    return None if workers is None else StoreLoad(chats_per_s=len(stretch.rows) / seconds, workers=workers, times=times)


def _with_targets(tier: Tier, ttft_s: float | None, tpot_ms: float | None) -> Tier:
    if tier.lane is not LaneName.LATENCY:
        return tier
    tier = tier if ttft_s is None else replace(tier, ttft_ms=_checked("ttft_s", ttft_s) * 1e3)
    return tier if tpot_ms is None else replace(tier, tpot_ms=_checked("tpot_ms", tpot_ms))


def _checked(name: str, value: float) -> float:
    if not 0.0 < value <= MOST_MS:
        raise ValueError(f"{name} must be above 0 and at most {MOST_MS:g}, not {value:g}")
    return value


def _check_attainable(rows: Sequence[TraceRow], question: Question) -> None:
    """Raise CommandError if prompts take too long even on an idle worker, so that more workers do not help."""
    tier = question.tier(LaneName.LATENCY)
    ttft_ms, unnamed = tier.ttft_ms, tier.share > 0.0
    asked = [row for row in rows if row.lane is LaneName.LATENCY or (row.lane is None and unnamed)]
    share = alone_kept(asked, question.calibration, ttft_ms) if asked else 1.0
    if share < ATTAINMENT:
        raise CommandError(
            f"on one idle worker of this kind, {100.0 * share:.1f} % of the latency lane's requests have their first "
            f"token within {ttft_ms / 1e3:g} s: more workers do not help (use a longer --ttft-s, or other hardware)"
        )


@contextmanager
def players(question: Question, processes: int) -> Iterator[PlayAll]:
    """Yield a function that simulates cases in processes, under a progress bar on a terminal. Raises CommandError."""
    console = Console(stderr=True)
    context = multiprocessing.get_context("spawn")  # the progress bar's threads must not be forked
    with (
        ProcessPoolExecutor(processes, mp_context=context, initializer=_begin, initargs=(question,)) as pool,
        Progress(console=console, transient=True, disable=not console.is_terminal) as progress,
    ):
        task = progress.add_task("simulating", total=0)
        try:
            yield lambda cases: _play_all(pool, progress, task, cases)
        except BrokenProcessPool:
            raise CommandError("a simulation was killed, possibly for its memory: use fewer --requests") from None


def _play_all(pool: ProcessPoolExecutor, progress: Progress, task: TaskID, cases: Sequence[Case]) -> list[Verdict]:
    progress.update(task, total=(progress.tasks[task].total or 0) + len(cases))
    found = []
    for verdict in pool.map(_play, cases):
        found.append(verdict)
        progress.advance(task)
    return found


# The question that this process plays cases of.
_question: list[Question] = []


def _begin(question: Question) -> None:
    _question[:] = [question]


def _play(case: Case) -> Verdict:
    return play(_question[0], case)
