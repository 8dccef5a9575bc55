"""Pictures of the scheduler's proof, as SVG: service per tenant over time, goodput over load, latency in each lane.

The worlds are those of lines 1, 5 and 7. The same figures give the same bytes. Needs matplotlib, an extra.
"""

import io
from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, LogLocator, NullLocator, StrMethodFormatter

from benchmarks.common.line import Effort
from benchmarks.scheduling.lines import fairness, gauntlet, overload
from benchmarks.scheduling.lines.world import A10G, OURS, World
from fairlane.scheduler.protocol.lanes import LaneName
from fairlane.scheduler.simulation.results import ServiceMeter, Spread, spread

BACKGROUND, INK = "#f8fafc", "#334155"
"""As in `docs/architecture.svg`: a light card on any page."""
COLOURS = {
    OURS: "#2563eb",
    "vtc": "#d97706",
    "bands": "#059669",
    "niyama": "#dc2626",
    "edf": "#7c3aed",
    "clairvoyant": "#0891b2",
    "fcfs-sarathi": "#64748b",
}
STYLE = {
    "svg.hashsalt": "fairlane",
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 10,
    "text.color": INK,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.facecolor": BACKGROUND,
    "xtick.color": INK,
    "ytick.color": INK,
    "figure.facecolor": BACKGROUND,
    "savefig.facecolor": BACKGROUND,
    "legend.frameon": False,
}
CURVE_POINTS = 60
LEADS = (3, 4, 5, 6)
"""Powers of ten that are marked, from where the scale is no longer linear."""
FAIR, PROMPT = (OURS, "vtc", "fcfs-sarathi"), (OURS, "vtc", "bands", "niyama", "fcfs-sarathi")
"""Policies in the pictures of service and of latency."""
PERCENTILES = {"p50": "50", "p95": "95", "p99": "99", "p999": "99.9"}
SEEDS = 2
"""At most so many: these are pictures, the figures are the lines'."""

Curves = Mapping[str, Sequence[float]]
"""Service in each stretch of time, by tenant."""


class Latencies(NamedTuple):
    """Of one lane: to the first token, and between tokens."""

    ttft_ms: Spread
    tpot_ms: Spread


def served(case: fairness.Case) -> Curves:
    """What each tenant had of VTC's two-client overload."""
    meter = ServiceMeter(bucket_ms=case.duration_s * 1e3 / CURVE_POINTS)
    world, arrivals = World(hardware=A10G, kv_tokens=case.pool, max_step_tokens=1024), case.arrivals()
    world.simulation(case.policy, arrivals, observers=[meter], until_ms=case.duration_s * 1e3).run()
    return dict(sorted(meter.curve.items()))


def latencies(case: "Everything") -> Mapping[LaneName, Latencies]:
    """How long requests of each lane waited where everything comes at once; each is played to its end."""
    arrivals = [one for one in gauntlet.Case(case.policy, case.seed).arrivals() if one.at_ms < case.duration_s * 1e3]
    records = gauntlet.WORLD.simulation(case.policy, arrivals).run().values()
    found = {}
    for lane in LaneName:
        own = [record for record in records if record.arrival.lane is lane]
        ttft_ms = spread(record.ttft_ms for record in own if record.ttft_ms is not None)
        tpot_ms = spread(record.tpot_ms for record in own if record.tpot_ms is not None)
        if ttft_ms and tpot_ms:
            found[lane] = Latencies(ttft_ms, tpot_ms)
    return found


class Everything(NamedTuple):
    """The first part of line 7's world."""

    policy: str
    seed: int
    duration_s: float


def draw(effort: Effort, directory: Path) -> list[Path]:
    """Play what is shown, then write every picture; where they are."""
    pictures = {"service": _service(effort), "goodput": _goodput(effort), "latency": _latency(effort)}
    directory.mkdir(parents=True, exist_ok=True)
    files = [directory / f"{name}.svg" for name in pictures]
    for file, picture in zip(files, pictures.values(), strict=True):
        file.write_bytes(picture)
    return files


def _service(effort: Effort) -> bytes:
    duration_s = 30.0 if effort.quick else 600.0
    cases = [fairness.Case(name, fairness.EQUAL, fairness.POOL, effort.seeds[0], duration_s) for name in FAIR]
    found = effort.each("service", served, cases)
    return service(dict(zip(FAIR, found, strict=True)), duration_s)


def _goodput(effort: Effort) -> bytes:
    loads, part_s = ((0.5, 4.0), 4.0) if effort.quick else (overload.LOADS, 40.0)
    seeds, found = effort.seeds[:SEEDS], {}
    for name in (OURS, *overload.PEERS):
        cases = [overload.Case(name, (load,), seed, part_s) for load in loads for seed in seeds]
        played = [one.goodput for one in effort.each(f"goodput, {name}", overload.play, cases)]
        found[name] = [fmean(played[place : place + len(seeds)]) for place in range(0, len(played), len(seeds))]
    return goodput(found, loads)


def _latency(effort: Effort) -> bytes:
    duration_s = 15.0 if effort.quick else gauntlet.DURATION_S
    cases = [Everything(name, effort.seeds[0], duration_s) for name in PROMPT]
    return latency(dict(zip(PROMPT, effort.each("latency", latencies, cases), strict=True)))


def service(found: Mapping[str, Curves], duration_s: float) -> bytes:
    """Accumulated service of two tenants over time under each policy, and how far one is ahead of the other."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(9.0, 5.6), layout="constrained")
        grid = figure.add_gridspec(2, len(found))
        apart, first = figure.add_subplot(grid[1, :]), figure.add_subplot(grid[0, 0])
        others = [figure.add_subplot(grid[0, place], sharey=first) for place in range(1, len(found))]
        for axes, (name, curves) in zip([first, *others], found.items(), strict=True):
            totals = {tenant: list(accumulate(curve, initial=0.0)) for tenant, curve in curves.items()}
            for (tenant, total), line in zip(totals.items(), ("-", "--"), strict=True):
                axes.plot(_times(total, duration_s), total, line, color=COLOURS[name], label=tenant)
            gap = [large - small for large, small in zip(*totals.values(), strict=False)]
            apart.plot(_times(gap, duration_s), gap, color=COLOURS[name], label=name)
            _finish(axes, name, "seconds", "weighted tokens" if name == OURS else "")
            axes.legend()
        apart.set_yscale("symlog", linthresh=1_000.0)
        apart.yaxis.set_major_locator(FixedLocator([0.0, *(sign * 10**power for power in LEADS for sign in (-1, 1))]))
        _finish(apart, "", "seconds", "lead of the large one")
        apart.legend()
        return _svg(figure, "Accumulated service of two clients in overload")


def goodput(found: Mapping[str, Sequence[float]], loads: Sequence[float]) -> bytes:
    """Output tokens in time, by policy, over load."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(7.0, 3.6), layout="constrained")
        axes = figure.subplots()
        for name, values in found.items():
            axes.plot(loads, values, marker="o", markersize=4, color=COLOURS[name], label=name)
        axes.set_xscale("log")
        axes.set_xticks(loads, [f"{load:g}" for load in loads])
        axes.minorticks_off()
        axes.set_ylim(bottom=0.0)
        _finish(axes, "", "load, in parts of what the worker can serve", "goodput, output tokens/s")
        axes.legend()
        return _svg(figure, "Goodput over load")


def latency(found: Mapping[str, Mapping[LaneName, Latencies]]) -> bytes:
    """Percentiles of TTFT and TPOT in each lane, by policy."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(9.0, 6.0), layout="constrained")
        panels = figure.subplots(len(LaneName), len(Latencies._fields))
        for row, lane in zip(panels, LaneName, strict=True):
            for axes, attribute in zip(row, Latencies._fields, strict=True):
                for name, lanes in found.items():
                    if lane in lanes:
                        values = [getattr(getattr(lanes[lane], attribute), each) for each in PERCENTILES]
                        style = {"marker": "o", "markersize": 4, "color": COLOURS[name], "label": name}
                        axes.plot(list(PERCENTILES.values()), values, **style)
                axes.set_yscale("log")
                axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
                axes.yaxis.set_minor_locator(NullLocator())
                _finish(axes, f"{attribute.removesuffix('_ms').upper()}, {lane} lane", "percentile", "ms")
        panels[0][0].legend()
        return _svg(figure, "Latency where everything comes at once")


def _times(curve: Sequence[float], duration_s: float) -> list[float]:
    """Seconds at which the points of a curve stand."""
    return [duration_s / CURVE_POINTS * place for place in range(len(curve))]


def _finish(axes: Axes, title: str, below: str, beside: str) -> None:
    axes.set_title(title, fontsize="medium")
    axes.set_xlabel(below)
    axes.set_ylabel(beside)
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)


def _svg(figure: Figure, title: str) -> bytes:
    content = io.BytesIO()
    figure.savefig(content, format="svg", metadata={"Date": None, "Title": title})
    return content.getvalue()
