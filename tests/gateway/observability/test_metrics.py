"""What every request adds to, as Prometheus reads it."""

import re
from functools import partial

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

from fairlane.gateway.insight.fleet_metrics.recorder import Ended
from fairlane.gateway.insight.telemetry.collectors import Distribution, FastCounter
from fairlane.gateway.insight.telemetry.metrics import Telemetry
from fairlane.scheduler.protocol.lanes import DEFAULT_LANES

UNITS = {"_seconds": "second", "_ratio": "ratio", "_bytes": "bytes"}
"""What the help of a metric says, by how its name ends; all others are numbers."""


def lines(registry: CollectorRegistry, prefix: str = "") -> list[str]:
    """The samples, without the comments."""
    told = generate_latest(registry).decode().splitlines()
    return [line for line in told if line.startswith(prefix) and not line.startswith("#")]


def ended(telemetry: Telemetry, code: str = "ok", *, tenant: str = "acme", first_token_s: float | None = 0.2) -> None:
    """A request of the latency lane that took half a second."""
    request = Ended(tenant, "latency", code, first_token_s, None, None)
    telemetry.ended(request, endpoint="/v1/completions", model="tiny", is_refusal=code != "ok", took_s=0.5)


def test_a_counter_counts_by_its_labels() -> None:
    registry = CollectorRegistry()
    tokens = FastCounter(partial(CounterMetricFamily, "tokens", "Tokens", labels=("tenant", "kind")), registry)

    tokens.add("acme", "prompt", by=5)
    tokens.add("acme", "prompt", by=2)
    tokens.add("acme", "output")

    assert lines(registry) == [
        'tokens_total{kind="prompt",tenant="acme"} 7.0',
        'tokens_total{kind="output",tenant="acme"} 1.0',
    ]


def test_a_gauge_goes_up_and_down() -> None:
    registry = CollectorRegistry()
    in_flight = FastCounter(partial(GaugeMetricFamily, "in_flight", "In job", labels=("lane",)), registry)

    for by in (1, 1, -1):
        in_flight.add("latency", by=by)

    assert lines(registry) == ['in_flight{lane="latency"} 1.0']


def test_a_figure_belongs_to_the_first_bound_that_it_does_not_pass() -> None:
    registry = CollectorRegistry()
    seconds = Distribution(partial(HistogramMetricFamily, "seconds", "Seconds", labels=("lane",)), (0.5, 1.0), registry)

    for figure in (0.25, 0.5, 0.75, 3.0):
        seconds.series("latency").observe(figure)

    assert lines(registry) == [
        'seconds_bucket{lane="latency",le="0.5"} 2.0',
        'seconds_bucket{lane="latency",le="1.0"} 3.0',
        'seconds_bucket{lane="latency",le="+Inf"} 4.0',
        'seconds_count{lane="latency"} 4.0',
        'seconds_sum{lane="latency"} 4.5',
    ]


def test_a_metric_without_figures_is_announced_all_the_same() -> None:
    registry = CollectorRegistry()
    FastCounter(partial(CounterMetricFamily, "tokens", "Tokens", labels=("tenant",)), registry)

    assert b"# TYPE tokens_total counter" in generate_latest(registry)


def test_a_refusal_is_counted_by_its_code_and_is_in_no_latency() -> None:
    telemetry = Telemetry(max_tenants=1)

    ended(telemetry, "rate_limit_exceeded", first_token_s=None)
    ended(telemetry, "invalid_api_key", tenant="", first_token_s=None)
    ended(telemetry, "rate_limit_exceeded", tenant="another", first_token_s=None)

    assert lines(telemetry.registry, "fairlane_gateway_refusals_total") == [
        'fairlane_gateway_refusals_total{code="rate_limit_exceeded",tenant="acme"} 1.0',
        'fairlane_gateway_refusals_total{code="invalid_api_key",tenant="none"} 1.0',
        'fairlane_gateway_refusals_total{code="rate_limit_exceeded",tenant="other"} 1.0',
    ]
    assert not [line for line in lines(telemetry.registry) if "_seconds_" in line and line.startswith("fairlane")]


def test_a_stream_that_broke_after_its_first_token_counts_for_latencies_and_refusals() -> None:
    telemetry = Telemetry()

    ended(telemetry, "deadline_exceeded")

    shown = lines(telemetry.registry)
    assert 'fairlane_gateway_refusals_total{code="deadline_exceeded"} 1.0' in shown
    assert 'fairlane_gateway_time_to_first_token_seconds_sum{lane="latency",model="tiny"} 0.2' in shown
    assert 'fairlane_gateway_request_duration_seconds_sum{lane="latency",model="tiny"} 0.5' in shown


def test_nothing_tells_when_counting_began_and_the_process_tells_of_itself() -> None:
    telemetry = Telemetry()
    ended(telemetry)

    shown = lines(telemetry.registry)

    assert not [line for line in shown if "_created" in line]
    assert [line for line in shown if line.startswith("process_resident_memory_bytes")]
    assert [
        line for line in shown if re.match(r'fairlane_gateway_build_info\{python="3[^"]+",version="[^"]+"\} 1', line)
    ]


def test_a_lanes_targets_are_within_the_bounds_of_the_histograms() -> None:
    """Else no percentile would ever be seen beyond them."""
    telemetry = Telemetry()
    for lane in DEFAULT_LANES.values():
        ended(telemetry, first_token_s=lane.ttft_ms / 1e3)
        telemetry.generated("latency", "tiny", "acme", queued_s=None, pace_s=lane.tpot_ms / 1e3)

    for name in ("time_to_first_token", "time_per_output_token"):
        *_, last, infinite = lines(telemetry.registry, f"fairlane_gateway_{name}_seconds_bucket")
        assert last.rsplit(" ", 1)[1] == infinite.rsplit(" ", 1)[1] == "2.0"


def test_every_help_is_a_sentence_with_its_unit() -> None:
    for family in Telemetry().registry.collect():
        if not family.name.startswith("fairlane"):
            continue
        said = family.documentation
        assert re.match(r"[A-Z1].*\.$", said), family.name
        units = [unit for ending, unit in UNITS.items() if family.name.endswith(ending)]
        assert any(unit in said for unit in units or ["Number of", "Maximum number of", "1 while", "1, with"]), (
            family.name
        )
