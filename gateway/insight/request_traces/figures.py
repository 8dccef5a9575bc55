"""The result of a simulation, as published in OpenAPI: figures by lane and tenant, and data for plots.

Names carry the units; shares are 0 to 1."""

import math
from collections.abc import Iterable, Sequence
from itertools import accumulate

from typing_extensions import TypedDict  # pydantic reads its own kind only, before Python 3.12

from fairlane.common.views import view_of
from fairlane.scheduler.protocol.lanes import LaneName
from fairlane.scheduler.simulation.results import Group, Spread, Summary
from fairlane.scheduler.simulation.synthetic_tenants import Tier

# Tenants with the most service.
MOST_TENANTS = 20
# Points of one line; the backlog after a trace may be many times as long as the trace.
MOST_POINTS = 400
PERCENTILES = {"p50": 50.0, "p95": 95.0, "p99": 99.0, "p999": 99.9}


class PercentilesView(TypedDict):
    """Percentiles of a time."""

    p50: float
    p95: float
    p99: float


class SimulatedLaneView(TypedDict):
    """One lane of a simulated run."""

    lane: str
    requests: int
    outcomes: dict[str, int]
    ttft_target_ms: float
    tpot_target_ms: float
    ttft_ms: PercentilesView | None
    tpot_ms: PercentilesView | None
    goodput: float
    output_tokens_per_s: float
    goodput_tokens_per_s: float
    prompt_tokens: int
    cached_tokens: int
    preemptions: int


class SimulatedTenantView(TypedDict):
    """One tenant of a simulated run."""

    tenant: str
    requests: int
    ttft_ms: PercentilesView | None
    tpot_ms: PercentilesView | None
    goodput: float
    service: float


class ServiceSeriesView(TypedDict):
    """A tenant's cumulative service at the end of each time step, starting at 0."""

    tenant: str
    values: list[float]


class LatencySeriesView(TypedDict):
    """A lane's latencies at each percentile of the plot."""

    lane: str
    ttft_ms: list[float] | None
    tpot_ms: list[float] | None


class RunPlotsView(TypedDict):
    """Data for the plots of one run."""

    percentiles: list[float]
    latency: list[LatencySeriesView]
    service_step_s: float
    service: list[ServiceSeriesView]


class SimulatedRunView(TypedDict):
    """The run of one load."""

    load: float
    requests: int
    duration_s: float
    goodput: float
    goodput_requests_per_s: float
    goodput_tokens_per_s: float
    output_tokens_per_s: float
    tokens_per_s: float
    preemptions: int
    preemption_tax: float
    max_service_gap: float
    lanes: list[SimulatedLaneView]
    tenants: list[SimulatedTenantView]
    plots: RunPlotsView


class LoadPlotView(TypedDict):
    """Output by load, in the order of the runs."""

    loads: list[float]
    output_tokens_per_s: list[float]
    goodput_tokens_per_s: list[float]


class SimulationView(TypedDict):
    """The result of a trace on simulated workers."""

    trace: str
    requests: int
    played: int
    from_s: float
    to_s: float
    bad_rows: int
    bad_rows_named: list[str]
    workers: int
    hardware: str
    runs: list[SimulatedRunView]
    output: LoadPlotView


def run_view(load: float, summary: Summary, tiers: Iterable[Tier]) -> SimulatedRunView:
    """Return the figures of one load."""
    targets = {tier.lane: tier for tier in tiers}
    most = sorted(summary.service, key=lambda tenant: -summary.service[tenant])[:MOST_TENANTS]
    return view_of(
        SimulatedRunView,
        summary,
        load=load,
        requests=summary.total.requests,
        goodput=summary.total.attained,
        preemptions=summary.total.preemptions,
        preemption_tax=summary.preemption_tax or 0.0,
        max_service_gap=summary.max_service_gap or 0.0,
        lanes=[
            _lane(name, group, targets[LaneName(name)], summary.duration_s) for name, group in summary.lanes.items()
        ],
        tenants=[_tenant(name, summary.tenants[name], summary.service[name]) for name in most],
        plots=_plots(summary, most),
    )


def load_plot(runs: Sequence[SimulatedRunView]) -> LoadPlotView:
    """Return the output of all loads."""
    return {
        "loads": [run["load"] for run in runs],
        "output_tokens_per_s": [run["output_tokens_per_s"] for run in runs],
        "goodput_tokens_per_s": [run["goodput_tokens_per_s"] for run in runs],
    }


def _lane(name: str, group: Group, tier: Tier, duration_s: float) -> SimulatedLaneView:
    per_s = 1.0 / duration_s if duration_s else 0.0
    return view_of(
        SimulatedLaneView,
        group,
        lane=name,
        ttft_target_ms=tier.ttft_ms,
        tpot_target_ms=tier.tpot_ms,
        ttft_ms=_percentiles(group.ttft_ms),
        tpot_ms=_percentiles(group.tpot_ms),
        goodput=group.attained,
        output_tokens_per_s=group.output_tokens * per_s,
        goodput_tokens_per_s=group.attained_tokens * per_s,
    )


def _tenant(name: str, group: Group, service: float) -> SimulatedTenantView:
    times = {"ttft_ms": _percentiles(group.ttft_ms), "tpot_ms": _percentiles(group.tpot_ms)}
    return view_of(SimulatedTenantView, group, tenant=name, goodput=group.attained, service=service, **times)


def _percentiles(spread: Spread | None) -> PercentilesView | None:
    return None if spread is None else view_of(PercentilesView, spread)


def _plots(summary: Summary, tenants: Sequence[str]) -> RunPlotsView:
    points = max((len(summary.service_curve[tenant]) for tenant in tenants), default=0)
    stride = max(1, math.ceil(points / MOST_POINTS))
    return {
        "percentiles": [*PERCENTILES.values()],
        "latency": [
            {"lane": name, "ttft_ms": _curve(group.ttft_ms), "tpot_ms": _curve(group.tpot_ms)}
            for name, group in summary.lanes.items()
        ],
        "service_step_s": (summary.curve_bucket_s or 1.0) * stride,
        "service": [
            {"tenant": tenant, "values": _thinned(summary.service_curve[tenant], stride)} for tenant in tenants
        ],
    }


def _thinned(curve: Sequence[float], stride: int) -> list[float]:
    """Return the cumulative sum at every `stride` steps and at the end."""
    values = [*accumulate(curve, initial=0.0)]
    return values[::stride] if len(values) % stride == 1 or stride == 1 else [*values[::stride], values[-1]]


def _curve(spread: Spread | None) -> list[float] | None:
    return None if spread is None else [getattr(spread, name) for name in PERCENTILES]
