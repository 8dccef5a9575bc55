"""What a Prometheus registry holds, as an OTLP endpoint gets it."""

import pytest
from opentelemetry.proto.metrics.v1.metrics_pb2 import AggregationTemporality, Metric
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.registry import Collector as PrometheusCollector

from fairlane.common.otlp import metric_exporter
from fairlane.common.otlp_metrics import exported_over_otlp
from fairlane.common.settings_error import SettingsError
from tests.support.system.otlp import Collector, receiving

ENDPOINT = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318"}


def told(registry: CollectorRegistry, monkeypatch: pytest.MonkeyPatch) -> tuple[Collector, dict[str, Metric]]:
    """What comes of a process that ends before its first interval has."""
    with receiving() as collector:
        environ = {"OTEL_METRICS_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_ENDPOINT": collector.endpoint}
        for name, value in environ.items():
            monkeypatch.setenv(name, value)
        with exported_over_otlp(registry, environ, service="fairlane-worker", version="1.2.3", instance="w1"):
            pass
        metrics = [metric for each in collector.metrics for scope in each.scope_metrics for metric in scope.metrics]
        return collector, {metric.name: metric for metric in metrics}


def test_counters_gauges_and_histograms_keep_names_labels_and_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    registry = CollectorRegistry()
    Counter("requests", "Requests, as a number.", ["lane"], registry=registry).labels("latency").inc(3)
    Gauge("kv_usage_ratio", "Share of KV blocks in use.", registry=registry).set(0.25)
    waits = Histogram("wait_seconds", "Waits, in seconds.", ["lane"], buckets=(0.1, 1.0), registry=registry)
    for lane, wait_s in (("latency", 0.05), ("latency", 0.5), ("latency", 7.0), ("throughput", 0.5)):
        waits.labels(lane).observe(wait_s)

    collector, metrics = told(registry, monkeypatch)

    about = {each.key: each.value.string_value for each in collector.metrics[0].resource.attributes}
    assert (about["service.name"], about["service.version"]) == ("fairlane-worker", "1.2.3")
    assert about["service.instance.id"] == "w1"
    [requests] = metrics["requests"].sum.data_points
    assert (requests.as_double, requests.attributes[0].value.string_value) == (3.0, "latency")
    assert metrics["requests"].sum.is_monotonic
    assert requests.start_time_unix_nano <= requests.time_unix_nano
    [usage] = metrics["kv_usage_ratio"].gauge.data_points
    assert (usage.as_double, metrics["kv_usage_ratio"].unit) == (0.25, "1")
    histogram = metrics["wait_seconds"].histogram
    assert histogram.aggregation_temporality == AggregationTemporality.AGGREGATION_TEMPORALITY_CUMULATIVE
    points = {each.attributes[0].value.string_value: each for each in histogram.data_points}
    assert list(points["latency"].explicit_bounds) == [0.1, 1.0]
    assert list(points["latency"].bucket_counts) == [1, 1, 1]
    assert list(points["throughput"].bucket_counts) == [0, 1, 0]
    assert (points["latency"].count, points["latency"].sum) == (3, 7.55)
    assert not points["latency"].HasField("min")


def test_a_collector_that_fails_is_logged_and_the_process_goes_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(PrometheusCollector):
        def collect(self) -> list[object]:  # type: ignore[override]
            raise ValueError("broken")

        def describe(self) -> list[object]:
            return []

    registry = CollectorRegistry()
    registry.register(Broken())

    collector, metrics = told(registry, monkeypatch)

    assert (collector.metrics, metrics) == ([], {})
    assert "metrics were not sent" in caplog.text


@pytest.mark.parametrize("exporter", ["", "none", "prometheus"])
def test_metrics_are_only_scraped_unless_otlp_is_asked_for(exporter: str) -> None:
    assert metric_exporter(ENDPOINT | {"OTEL_METRICS_EXPORTER": exporter}) is None


@pytest.mark.parametrize(
    ("environ", "says"),
    [
        (ENDPOINT | {"OTEL_METRICS_EXPORTER": "statsd"}, "OTEL_METRICS_EXPORTER: expected otlp, prometheus or none"),
        ({"OTEL_METRICS_EXPORTER": "otlp"}, "OTEL_METRICS_EXPORTER: otlp needs OTEL_EXPORTER_OTLP_ENDPOINT"),
        (
            ENDPOINT | {"OTEL_METRICS_EXPORTER": "otlp", "OTEL_METRIC_EXPORT_INTERVAL": "0"},
            "OTEL_METRIC_EXPORT_INTERVAL: expected 1 to 86,400,000 milliseconds, not '0'",
        ),
        (
            ENDPOINT | {"OTEL_METRICS_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_METRICS_PROTOCOL": "http/json"},
            "OTEL_EXPORTER_OTLP_METRICS_PROTOCOL: expected http/protobuf or grpc",
        ),
    ],
)
def test_what_cannot_be_sent_stops_the_start_with_a_sentence(environ: dict[str, str], says: str) -> None:
    with pytest.raises(SettingsError, match=says):
        metric_exporter(environ)
