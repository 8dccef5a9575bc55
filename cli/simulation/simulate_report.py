"""Output of `fairlane simulate`: tables, one JSON document, plots as PNG or SVG.

Plots need matplotlib, an extra (`pip install fairlane[plots]`) that is slow to import and imported only when needed."""

import io
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import typer

from fairlane.cli.client import CommandError, check_writable, make_directory, write_whole
from fairlane.cli.printer import show_table
from fairlane.scheduler.simulation.results import Group, Spread, Summary
from fairlane.scheduler.simulation.scenario import Scenario

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

GROUP_COLUMNS = (
    "requests", "kept %", "ttft p50", "p95", "p99 ms", "tpot p50", "p95", "p99 ms", "late output tokens %",
    "cached prompt tokens %", "preempted",
)  # fmt: skip
RUN_COLUMNS = (
    "load", "seconds", "kept %", "goodput requests/s", "goodput output tokens/s", "output tokens/s",
    "prompt+output tokens/s", "cached prompt tokens %", "preemption tax %", "service gap weighted tokens"
)  # fmt: skip
PERCENTILES = {"p50": "50", "p95": "95", "p99": "99", "p999": "99.9"}
# Curves in one plot, of the tenants with the most service.
MOST_TENANTS = 10
SIZE_INCHES = (10.0, 4.5)


@dataclass(frozen=True, slots=True)
class SimulatedLoad:
    """One load and its results."""

    load: float
    summary: Summary


def check(json_file: Path | None, plots: Path | None) -> None:
    """Check beforehand that the files can be written, since a run takes long. Raises CommandError."""
    if json_file is not None:
        check_writable(json_file)
    if plots is not None:
        try:
            import matplotlib.figure  # noqa: F401 - checks that it is installed
        except ImportError:
            raise CommandError("plots need matplotlib: pip install 'fairlane[plots]'") from None
        make_directory(plots)


def write(
    scenario: Scenario, trace: str, runs: Sequence[SimulatedLoad], json_file: Path | None, plots: Path | None, form: str
) -> None:
    """Write the requested files, once all plots are drawn. Raises CommandError."""
    files: dict[Path, bytes] = {}
    if plots is not None:
        files = {plots / f"{name}.{form}": picture for name, picture in draw(runs, form).items()}
    if json_file is not None:
        document = msgspec.json.encode(_document(scenario, trace, runs))
        files[json_file] = msgspec.json.format(document, indent=2) + b"\n"
    for file, content in files.items():
        write_whole(file, [content])


def show(runs: Sequence[SimulatedLoad]) -> None:
    """Print each run by lane and by tenant, then all runs side by side."""
    for run in runs:
        for kind, groups in (("lane", run.summary.lanes), ("tenant", run.summary.tenants)):
            typer.echo(f"load {run.load:g}, by {kind}")
            show_table((kind, *GROUP_COLUMNS), [(name, *group_figures(group)) for name, group in groups.items()])
            typer.echo()
    show_table(RUN_COLUMNS, [_line(run) for run in runs])


def group_figures(group: Group) -> tuple[object, ...]:
    """Return a group's cells of GROUP_COLUMNS."""
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


def draw(runs: Sequence[SimulatedLoad], form: str) -> dict[str, bytes]:
    """Draw every plot, by name. The same runs give the same bytes."""
    by_load = sorted(runs, key=lambda run: run.load)
    figures = {"latency": _latency(runs), "goodput": _goodput(by_load), "service": _service(runs[-1])}
    return {name: _picture(figure, form) for name, figure in figures.items()}


def _latency(runs: Sequence[SimulatedLoad]) -> "Figure":
    figure = _blank_figure()
    for place, (title, attribute) in enumerate((("TTFT", "ttft_ms"), ("TPOT", "tpot_ms")), 1):
        axes = figure.add_subplot(1, 2, place, title=title, xlabel="percentile", ylabel="ms", yscale="log")
        for run in runs:
            for lane, group in run.summary.lanes.items():
                figures: Spread | None = getattr(group, attribute)
                if figures is not None:
                    values = [getattr(figures, name) for name in PERCENTILES]
                    axes.plot(list(PERCENTILES.values()), values, marker="o", label=f"{lane}, load {run.load:g}")
        _finish(axes)
    return figure


def _goodput(runs: Sequence[SimulatedLoad]) -> "Figure":
    figure = _blank_figure()
    axes = figure.add_subplot(title="Output", xlabel="load", ylabel="output tokens / s")
    loads = [run.load for run in runs]
    axes.plot(loads, [run.summary.output_tokens_per_s for run in runs], marker="o", label="all")
    axes.plot(loads, [run.summary.goodput_tokens_per_s for run in runs], marker="o", label="promise kept")
    axes.set_ylim(bottom=0.0)
    _finish(axes)
    return figure


def _service(run: SimulatedLoad) -> "Figure":
    figure = _blank_figure()
    axes = figure.add_subplot(
        title=f"Service at load {run.load:g}", xlabel="s", ylabel="service: prompt tokens computed + 2 x output tokens"
    )
    summary = run.summary
    bucket_s = summary.curve_bucket_s or 1.0
    most = sorted(summary.service, key=lambda tenant: -summary.service[tenant])[:MOST_TENANTS]
    for tenant in most:
        served = list(accumulate(summary.service_curve[tenant], initial=0.0))
        axes.plot([bucket_s * bucket for bucket in range(len(served))], served, label=tenant)
    _finish(axes)
    return figure


def _blank_figure() -> "Figure":
    from matplotlib.figure import Figure

    return Figure(figsize=SIZE_INCHES, layout="constrained")


def _finish(axes: "Axes") -> None:
    axes.grid(alpha=0.3)
    if axes.lines:
        axes.legend(fontsize="small")


def _picture(figure: "Figure", form: str) -> bytes:
    import matplotlib as mpl

    content = io.BytesIO()
    with mpl.rc_context({"svg.hashsalt": "fairlane", "svg.fonttype": "none"}):
        figure.savefig(content, format=form, metadata={"Date": None} if form == "svg" else None)
    return content.getvalue()
