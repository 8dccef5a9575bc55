"""Pictures of simulated runs, as PNG or SVG. Needs matplotlib: `pip install fairlane[plots]`."""

import io
from collections.abc import Sequence
from itertools import accumulate

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fairlane.scheduler.simulation.results import Spread, Summary

PERCENTILES = {"p50": "50", "p95": "95", "p99": "99", "p999": "99.9"}
MOST_TENANTS = 10
"""Curves in one picture: those of the tenants that were served most."""
SIZE_INCHES = (10.0, 4.5)

Runs = Sequence[tuple[float, Summary]]
"""Loads, and what came of each."""


def draw(runs: Runs, form: str = "png") -> dict[str, bytes]:
    """Every picture, by name. The same runs give the same bytes."""
    figures = {
        "latency": _latency(runs),
        "goodput": _goodput(sorted(runs, key=lambda run: run[0])),
        "service": _service(*runs[-1]),
    }
    return {name: _picture(figure, form) for name, figure in figures.items()}


def _latency(runs: Runs) -> Figure:
    """TTFT and TPOT by lane, at each percentile."""
    figure = Figure(figsize=SIZE_INCHES, layout="constrained")
    for place, (title, attribute) in enumerate((("TTFT", "ttft_ms"), ("TPOT", "tpot_ms")), 1):
        axes = figure.add_subplot(1, 2, place, title=title, xlabel="percentile", ylabel="ms", yscale="log")
        for load, summary in runs:
            for lane, group in summary.lanes.items():
                figures: Spread | None = getattr(group, attribute)
                if figures is not None:
                    values = [getattr(figures, name) for name in PERCENTILES]
                    axes.plot(list(PERCENTILES.values()), values, marker="o", label=f"{lane}, load {load:g}")
        _finish(axes)
    return figure


def _goodput(runs: Runs) -> Figure:
    """Output tokens per second over load: all, and those of requests that kept their promise."""
    figure = Figure(figsize=SIZE_INCHES, layout="constrained")
    axes = figure.add_subplot(title="Output", xlabel="load", ylabel="output tokens / s")
    loads = [load for load, _ in runs]
    axes.plot(loads, [summary.output_tokens_per_s for _, summary in runs], marker="o", label="all")
    axes.plot(loads, [summary.goodput_tokens_per_s for _, summary in runs], marker="o", label="promise kept")
    axes.set_ylim(bottom=0.0)
    _finish(axes)
    return figure


def _service(load: float, summary: Summary) -> Figure:
    """What each tenant has had, in weighted tokens, as time goes by."""
    figure = Figure(figsize=SIZE_INCHES, layout="constrained")
    axes = figure.add_subplot(
        title=f"Service at load {load:g}", xlabel="s", ylabel="service: prompt tokens computed + 2 x output tokens"
    )
    bucket_s = summary.curve_bucket_s or 1.0
    most = sorted(summary.service, key=lambda tenant: -summary.service[tenant])[:MOST_TENANTS]
    for tenant in most:
        served = list(accumulate(summary.service_curve[tenant], initial=0.0))
        axes.plot([bucket_s * bucket for bucket in range(len(served))], served, label=tenant)
    _finish(axes)
    return figure


def _finish(axes: Axes) -> None:
    axes.grid(alpha=0.3)
    if axes.lines:
        axes.legend(fontsize="small")


def _picture(figure: Figure, form: str) -> bytes:
    content = io.BytesIO()
    with mpl.rc_context({"svg.hashsalt": "fairlane", "svg.fonttype": "none"}):
        figure.savefig(content, format=form, metadata={"Date": None} if form == "svg" else None)
    return content.getvalue()
