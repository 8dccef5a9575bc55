"""What `fairlane simulate` shows and writes of its runs: tables, one JSON document, plots."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import typer

from fairlane.cli.client import CommandError, check_directory, check_writable, make_directory, show_table, write_whole
from fairlane.cli.simulated_run import Scenario
from fairlane.scheduler.simulation.results import Group, Spread, Summary

GROUP_COLUMNS = (
    "requests", "kept %", "ttft p50", "p95", "p99 ms", "tpot p50", "p95", "p99 ms", "late output tokens %",
    "cached prompt tokens %", "preempted",
)  # fmt: skip
RUN_COLUMNS = (
    "load", "seconds", "kept %", "goodput requests/s", "goodput output tokens/s", "output tokens/s",
    "prompt+output tokens/s", "cached prompt tokens %", "preemption tax %", "service gap weighted tokens"
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class SimulatedLoad:
    """One load and what came of it."""

    load: float
    summary: Summary


def check(json_file: Path | None, plots: Path | None) -> None:
    """Whatever can be known to fail after a long run fails before it. Raises CommandError."""
    if json_file is not None:
        check_writable(json_file)
    if plots is not None:
        check_directory(plots)
        _drawing()


def write(
    scenario: Scenario, trace: str, runs: Sequence[SimulatedLoad], json_file: Path | None, plots: Path | None, form: str
) -> None:
    """The files that were asked for, once all are drawn. Raises CommandError."""
    files: dict[Path, bytes] = {}
    if plots is not None:
        drawn = _drawing()([(run.load, run.summary) for run in runs], form)
        files = {plots / f"{name}.{form}": picture for name, picture in drawn.items()}
        make_directory(plots)
    if json_file is not None:
        document = msgspec.json.encode(_document(scenario, trace, runs))
        files[json_file] = msgspec.json.format(document, indent=2) + b"\n"
    for file, content in files.items():
        write_whole(file, content)


def show(runs: Sequence[SimulatedLoad]) -> None:
    """Each run by lane and by tenant, then all runs side by side."""
    for run in runs:
        for kind, groups in (("lane", run.summary.lanes), ("tenant", run.summary.tenants)):
            typer.echo(f"load {run.load:g}, by {kind}")
            show_table((kind, *GROUP_COLUMNS), [(name, *_figures(group)) for name, group in groups.items()])
            typer.echo()
    show_table(RUN_COLUMNS, [_line(run) for run in runs])


def _drawing() -> Callable[[Sequence[tuple[float, Summary]], str], dict[str, bytes]]:
    """matplotlib is an extra, and slow to import: only who asks for plots needs it."""
    try:
        from fairlane.cli.simulate_plots import draw
    except ImportError:
        raise CommandError("plots need matplotlib: pip install 'fairlane[plots]'") from None
    return draw


def _figures(group: Group) -> tuple[object, ...]:
    return (
        group.requests,
        100.0 * group.attained,
        *_three(group.ttft_ms),
        *_three(group.tpot_ms),
        100.0 * group.late_tokens,
        _cached(group),
        group.preemptions,
    )


def _cached(group: Group) -> float:
    """The prefix cache's hit rate: percent of prompt tokens that nobody computed."""
    return 100.0 * group.cached_tokens / group.prompt_tokens if group.prompt_tokens else 0.0


def _three(figures: Spread | None) -> tuple[object, object, object]:
    return (None, None, None) if figures is None else (figures.p50, figures.p95, figures.p99)


def _line(run: SimulatedLoad) -> tuple[object, ...]:
    summary = run.summary
    return (
        f"{run.load:g}",
        summary.duration_s,
        100.0 * summary.total.attained,
        summary.goodput_requests_per_s,
        summary.goodput_tokens_per_s,
        summary.output_tokens_per_s,
        summary.tokens_per_s,
        _cached(summary.total),
        100.0 * (summary.preemption_tax or 0.0),
        summary.max_service_gap,
    )


def _document(scenario: Scenario, trace: str, runs: Sequence[SimulatedLoad]) -> dict[str, object]:
    overlay = scenario.overlay
    return {
        "trace": trace,
        "requests": len(scenario.rows),
        "workers": scenario.workers,
        "seed": scenario.seed,
        "tenants": overlay.tenants,
        "zipf": overlay.zipf,
        "tiers": overlay.tiers,
        "prefix_cache": scenario.prefix_cache,
        "calibration": scenario.calibration,
        "runs": runs,
    }
