"""What every request adds to, as Prometheus reads it."""

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from fairlane.gateway.observability.metrics import Distribution, FastCounter


def lines(registry: CollectorRegistry) -> list[str]:
    """The samples, without the comments."""
    return [line for line in generate_latest(registry).decode().splitlines() if not line.startswith("#")]


def test_a_counter_counts_by_its_labels() -> None:
    registry = CollectorRegistry()
    tokens = FastCounter(CounterMetricFamily, "tokens", "Tokens", ("tenant", "kind"), registry)

    tokens.add("acme", "prompt", by=5)
    tokens.add("acme", "prompt", by=2)
    tokens.add("acme", "output")

    assert lines(registry) == [
        'tokens_total{kind="prompt",tenant="acme"} 7.0',
        'tokens_total{kind="output",tenant="acme"} 1.0',
    ]


def test_a_gauge_goes_up_and_down() -> None:
    registry = CollectorRegistry()
    in_flight = FastCounter(GaugeMetricFamily, "in_flight", "In job", ("lane",), registry)

    for by in (1, 1, -1):
        in_flight.add("latency", by=by)

    assert lines(registry) == ['in_flight{lane="latency"} 1.0']


def test_a_figure_belongs_to_the_first_bound_that_it_does_not_pass() -> None:
    registry = CollectorRegistry()
    seconds = Distribution("seconds", "Seconds", (0.5, 1.0), registry)

    for figure in (0.25, 0.5, 0.75, 3.0):
        seconds.observe("latency", figure)

    assert lines(registry) == [
        'seconds_bucket{lane="latency",le="0.5"} 2.0',
        'seconds_bucket{lane="latency",le="1.0"} 3.0',
        'seconds_bucket{lane="latency",le="+Inf"} 4.0',
        'seconds_count{lane="latency"} 4.0',
        'seconds_sum{lane="latency"} 4.5',
    ]


def test_a_metric_without_figures_is_announced_all_the_same() -> None:
    registry = CollectorRegistry()
    FastCounter(CounterMetricFamily, "tokens", "Tokens", ("tenant",), registry)

    assert b"# TYPE tokens_total counter" in generate_latest(registry)
