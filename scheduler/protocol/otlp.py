"""Where spans go, by OpenTelemetry's own environment variables: gateway and worker read them alike.

    OTEL_EXPORTER_OTLP_ENDPOINT, OTEL_EXPORTER_OTLP_TRACES_ENDPOINT   none: nobody makes spans
    OTEL_EXPORTER_OTLP_PROTOCOL, OTEL_EXPORTER_OTLP_TRACES_PROTOCOL   `http/protobuf` (as without one) or `grpc`

All others (headers, certificates, timeouts, batches) the exporters read themselves.
"""

from collections.abc import Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING

from fairlane.scheduler.protocol.settings import SettingsError

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanExporter

ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
"""The more special one first."""
HTTP, GRPC = "http/protobuf", "grpc"


def sends_traces(environ: Mapping[str, str]) -> bool:
    """There is somebody to send them to; else nobody makes any."""
    return any(environ.get(name) for name in ENDPOINTS)


def check_traces(environ: Mapping[str, str]) -> None:
    """Raises SettingsError where spans are to go a way that is not there."""
    if sends_traces(environ):
        _protocol(environ)


def _protocol(environ: Mapping[str, str]) -> str:
    name = next((name for name in PROTOCOLS if environ.get(name)), PROTOCOLS[1])
    protocol = environ.get(name) or HTTP
    if protocol not in (HTTP, GRPC):
        raise SettingsError(f"{name}: expected {HTTP} or {GRPC}, not {protocol[:40]!r}")
    if protocol == GRPC and find_spec("grpc") is None:
        raise SettingsError(f"{name}: {GRPC} needs fairlane[otlp-grpc]")
    return protocol


def span_exporter(environ: Mapping[str, str]) -> "SpanExporter | None":
    """None where no endpoint is named. Raises SettingsError as `check_traces`."""
    if not sends_traces(environ):
        return None
    if _protocol(environ) == GRPC:
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcSpanExporter

        by_grpc: SpanExporter = GrpcSpanExporter()
        return by_grpc
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    return OTLPSpanExporter()
