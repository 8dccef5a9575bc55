"""Where spans go: by OpenTelemetry's own variables, over HTTP or gRPC."""

from concurrent import futures

import pytest
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor

from fairlane.common.otlp import check_exports, span_exporter
from fairlane.common.settings_error import SettingsError

THERE = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4317"}


def test_without_an_endpoint_there_is_no_exporter_and_nothing_is_checked() -> None:
    assert span_exporter({}) is None
    check_exports({"OTEL_EXPORTER_OTLP_PROTOCOL": "carrier pigeon"})


@pytest.mark.parametrize("protocol", [{}, {"OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}])
def test_http_is_what_is_spoken_unless_something_else_is_said(protocol: dict[str, str]) -> None:
    exporter = span_exporter(THERE | protocol)

    assert isinstance(exporter, OTLPSpanExporter)
    exporter.shutdown()  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("name", ["OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"])
def test_spans_go_where_either_endpoint_is_named(name: str) -> None:
    exporter = span_exporter({name: "http://127.0.0.1:4318"})

    assert isinstance(exporter, OTLPSpanExporter)
    exporter.shutdown()  # type: ignore[no-untyped-call]
    assert span_exporter({name: ""}) is None


@pytest.mark.parametrize("name", ["OTEL_EXPORTER_OTLP_PROTOCOL", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"])
def test_a_protocol_that_is_none_of_ours_stops_the_start(name: str) -> None:
    with pytest.raises(SettingsError, match=f"{name}: expected http/protobuf or grpc, not 'http/json'"):
        check_exports(THERE | {name: "http/json"})


def test_grpc_without_its_package_says_which_extra_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fairlane.common.otlp.find_spec", lambda _: None)

    with pytest.raises(SettingsError, match=r"grpc needs fairlane\[otlp-grpc\]"):
        check_exports(THERE | {"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"})


@pytest.mark.slow
def test_spans_arrive_over_grpc(monkeypatch: pytest.MonkeyPatch) -> None:
    grpc = pytest.importorskip("grpc", reason="no grpcio here: pip install '.[otlp-grpc]'")
    from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as messages
    from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as services

    came: list[str] = []

    class Collector(services.TraceServiceServicer):
        def Export(self, request: messages.ExportTraceServiceRequest, _: object) -> object:  # noqa: N802 - gRPC's name
            came.extend(s.name for each in request.resource_spans for scope in each.scope_spans for s in scope.spans)
            return messages.ExportTraceServiceResponse()

    server = grpc.server(futures.ThreadPoolExecutor(1))
    services.add_TraceServiceServicer_to_server(Collector(), server)  # type: ignore[no-untyped-call]
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    environ = {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{port}", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    exporter = span_exporter(environ)
    assert exporter is not None
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    with provider.get_tracer("test").start_as_current_span("sent"):
        pass
    provider.shutdown()
    server.stop(None)

    assert came == ["sent"]
