"""OpenTelemetry's environment variables for exporting spans and metrics, read alike by gateway and worker: endpoint
and protocol (`http/protobuf` or `grpc`) of each signal or of both, and OTEL_METRICS_EXPORTER, with which metrics are
pushed. The exporters themselves read all other variables (headers, certificates, timeouts, batches, intervals)."""

from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal, cast

from fairlane.common.settings_error import SettingsError

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics.export import MetricExporter
    from opentelemetry.sdk.trace.export import SpanExporter

Signal = Literal["TRACES", "METRICS"]
METRICS_EXPORTER = "OTEL_METRICS_EXPORTER"
INTERVAL = "OTEL_METRIC_EXPORT_INTERVAL"
MOST_INTERVAL_MS = 86_400_000
HTTP, GRPC = "http/protobuf", "grpc"


def check_exports(environ: Mapping[str, str]) -> None:
    """Raise SettingsError if spans or metrics are to be exported in a way that is not available."""
    if _has_endpoint(environ, "TRACES"):
        _protocol(environ, "TRACES")
    if sends_metrics(environ):
        _protocol(environ, "METRICS")


def span_exporter(environ: Mapping[str, str]) -> "SpanExporter | None":
    """Return the span exporter, or None without an endpoint. Raises SettingsError as `check_exports` does."""
    if not _has_endpoint(environ, "TRACES"):
        return None
    return cast("SpanExporter", _exporter_module(environ, "TRACES").OTLPSpanExporter())


def metric_exporter(environ: Mapping[str, str]) -> "MetricExporter | None":
    """Return the metric exporter, or None if metrics are only scraped. Raises SettingsError as `check_exports` does."""
    if not sends_metrics(environ):
        return None
    return cast("MetricExporter", _exporter_module(environ, "METRICS").OTLPMetricExporter())


def _exporter_module(environ: Mapping[str, str], signal: Signal) -> Any:  # noqa: ANN401 - imported by its name
    protocol = "grpc" if _protocol(environ, signal) == GRPC else "http"
    return import_module(f"opentelemetry.exporter.otlp.proto.{protocol}.{signal.lower().removesuffix('s')}_exporter")


def sends_metrics(environ: Mapping[str, str]) -> bool:
    """Return whether metrics are pushed. Raises SettingsError as `check_exports` does."""
    exporter = environ.get(METRICS_EXPORTER) or "none"
    if exporter not in ("otlp", "prometheus", "none"):
        raise SettingsError(f"{METRICS_EXPORTER}: expected otlp, prometheus or none, not {exporter[:40]!r}")
    if exporter != "otlp":
        return False
    if not _has_endpoint(environ, "METRICS"):
        raise SettingsError(f"{METRICS_EXPORTER}: otlp needs OTEL_EXPORTER_OTLP_ENDPOINT")
    metric_interval_s(environ)
    return True


def metric_interval_s(environ: Mapping[str, str]) -> float:
    """Return the seconds between two exports of metrics. Raises SettingsError."""
    interval = environ.get(INTERVAL) or "60000"
    if not (interval.isdecimal() and 1 <= int(interval) <= MOST_INTERVAL_MS):
        raise SettingsError(f"{INTERVAL}: expected 1 to {MOST_INTERVAL_MS:,} milliseconds, not {interval[:40]!r}")
    return int(interval) / 1e3


def _has_endpoint(environ: Mapping[str, str], signal: Signal) -> bool:
    return any(environ.get(name) for name in (f"OTEL_EXPORTER_OTLP_{signal}_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"))


def _protocol(environ: Mapping[str, str], signal: Signal) -> str:
    names = (f"OTEL_EXPORTER_OTLP_{signal}_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
    name = next((name for name in names if environ.get(name)), names[1])
    protocol = environ.get(name) or HTTP
    if protocol not in (HTTP, GRPC):
        raise SettingsError(f"{name}: expected {HTTP} or {GRPC}, not {protocol[:40]!r}")
    if protocol == GRPC and find_spec("grpc") is None:
        raise SettingsError(f"{name}: {GRPC} needs fairlane[otlp-grpc]")
    return protocol
