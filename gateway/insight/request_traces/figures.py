"""The result of a simulation, as published in OpenAPI: figures by lane and tenant, and data for plots.

Names carry the units; shares are 0 to 1."""

import math
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Annotated

from typing_extensions import TypedDict  # before Python 3.12, pydantic supports only this TypedDict

from fairlane.common.views import about, view_of
from fairlane.scheduler.protocol.lanes import LaneName
from fairlane.scheduler.simulation.results import Group, Spread, Summary
from fairlane.scheduler.simulation.synthetic_tenants import Tier

MOST_TENANTS = 20
MOST_POINTS = 400
PERCENTILES = {"p50": 50.0, "p95": 95.0, "p99": 99.0, "p999": 99.9}


class PercentilesView(TypedDict):
    """Percentiles of a time, in milliseconds."""

    p50: Annotated[float, about("Median in milliseconds")]
    p95: Annotated[float, about("95th percentile in milliseconds")]
    p99: Annotated[float, about("99th percentile in milliseconds")]


class SimulatedLaneView(TypedDict):
    """One lane of a simulated run."""

    lane: Annotated[str, about("Name of the lane")]
    requests: Annotated[int, about("Offered requests, admitted or not")]
    outcomes: Annotated[dict[str, int], about("Number of requests by outcome")]
    ttft_target_ms: Annotated[float, about("The lane's target for it")]
    tpot_target_ms: Annotated[float, about("The lane's target for it")]
    ttft_ms: Annotated[PercentilesView | None, about("Time to the first token; null: no request had a token")]
    tpot_ms: Annotated[PercentilesView | None, about("Mean time per output token; null: no request had two tokens")]
    goodput: Annotated[float, about("Share of the requests that met both targets, 0 to 1")]
    output_tokens_per_s: Annotated[float, about("All output tokens, per second of the run")]
    goodput_tokens_per_s: Annotated[float, about("Output tokens of those, per second of the run")]
    prompt_tokens: Annotated[int, about("Prompt tokens of requests that got a token")]
    cached_tokens: Annotated[int, about("Prompt tokens that were in the prefix cache")]
    preemptions: Annotated[int, about("Number of preemptions")]


class SimulatedTenantView(TypedDict):
    """One tenant of a simulated run."""

    tenant: Annotated[str, about("Name of the tenant; a pseudonym in a recorded trace")]
    requests: Annotated[int, about("Offered requests")]
    ttft_ms: Annotated[PercentilesView | None, about("Time to the first token; null: no request had a token")]
    tpot_ms: Annotated[PercentilesView | None, about("Mean time per output token; null: no request had two tokens")]
    goodput: Annotated[float, about("Share of its requests that met their targets, 0 to 1")]
    service: Annotated[float, about("Its computed prompt tokens plus twice its output tokens")]


class ServiceSeriesView(TypedDict):
    """A tenant's cumulative service at the end of each time step, starting at 0."""

    tenant: Annotated[str, about("Name of the tenant")]
    values: Annotated[list[float], about("Cumulative service from 0: computed prompt tokens plus twice the output")]


class LatencySeriesView(TypedDict):
    """A lane's latencies at each percentile of the plot."""

    lane: Annotated[str, about("Name of the lane")]
    ttft_ms: Annotated[list[float] | None, about("Time to the first token; null: no request had a token")]
    tpot_ms: Annotated[list[float] | None, about("Mean time per output token; null: no request had two tokens")]


class RunPlotsView(TypedDict):
    """Data for the plots of one run."""

    percentiles: Annotated[list[float], about("Percentiles of the latencies, 0 to 100")]
    latency: Annotated[list[LatencySeriesView], about("One line for each lane")]
    service_step_s: Annotated[float, about("Seconds between two values of a tenant's line")]
    service: Annotated[list[ServiceSeriesView], about("One line for each of the tenants with the most service")]


class SimulatedRunView(TypedDict):
    """The run of one load."""

    load: Annotated[float, about("Speed-up factor over the recorded arrival times")]
    requests: Annotated[int, about("Offered requests")]
    duration_s: Annotated[float, about("From the first arrival to the last end, in virtual seconds")]
    goodput: Annotated[float, about("Share of the requests that met their targets, 0 to 1")]
    goodput_requests_per_s: Annotated[float, about("Requests that met their targets, per second")]
    goodput_tokens_per_s: Annotated[float, about("Output tokens of those, per second")]
    output_tokens_per_s: Annotated[float, about("All output tokens, per second")]
    tokens_per_s: Annotated[float, about("Prompt and output tokens, each counted once, per second")]
    preemptions: Annotated[int, about("Number of preemptions")]
    preemption_tax: Annotated[float, about("Share of the workers' time that preemption cost, 0 to 1")]
    max_service_gap: Annotated[float, about("Largest difference in service of two tenants while both had waiting work")]
    lanes: Annotated[list[SimulatedLaneView], about("Figures by lane")]
    tenants: Annotated[list[SimulatedTenantView], about("The tenants with the most service")]
    plots: Annotated[RunPlotsView, about("Data for this load's plots")]


class LoadPlotView(TypedDict):
    """Output by load, in the order of the runs."""

    loads: Annotated[list[float], about("The loads, in the order of the runs")]
    output_tokens_per_s: Annotated[list[float], about("All output tokens per second, by load")]
    goodput_tokens_per_s: Annotated[list[float], about("Output tokens per second of requests that met their targets")]


class SimulationView(TypedDict):
    """The result of a trace on simulated workers."""

    trace: Annotated[str, about("Name of the trace")]
    requests: Annotated[int, about("Requests of the trace, without those that a limit of their tenant refused")]
    played: Annotated[int, about("Simulated requests; if not all, those in a row with the most work for their time")]
    from_s: Annotated[float, about("Start of the simulated stretch in the trace, in seconds")]
    to_s: Annotated[float, about("End of the simulated stretch in the trace, in seconds")]
    bad_rows: Annotated[int, about("Invalid rows of the trace that were skipped")]
    bad_rows_named: Annotated[list[str], about("Some of them, each with its line and column")]
    workers: Annotated[int, about("Number of simulated workers")]
    hardware: Annotated[str, about("Name of the calibration, or `fleet`: as measured by a live worker")]
    runs: Annotated[list[SimulatedRunView], about("One for each load")]
    output: Annotated[LoadPlotView, about("Output by load")]


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
        lanes=[_lane(name, each, targets[LaneName(name)], summary.duration_s) for name, each in summary.lanes.items()],
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
    values = [*accumulate(curve, initial=0.0)]
    return values[::stride] if len(values) % stride == 1 or stride == 1 else [*values[::stride], values[-1]]


def _curve(spread: Spread | None) -> list[float] | None:
    return None if spread is None else [getattr(spread, name) for name in PERCENTILES]
