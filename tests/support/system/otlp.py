"""An OTLP endpoint on loopback that keeps what is exported to it."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.metrics.v1.metrics_pb2 import ResourceMetrics
from opentelemetry.proto.trace.v1.trace_pb2 import Span

TIMEOUT_S = 30.0


class Collector:
    """All spans and metrics that came in."""

    def __init__(self) -> None:
        self.endpoint = ""
        """Where they are sent."""
        self.spans: list[Span] = []
        self.metrics: list[ResourceMetrics] = []
        self._changed = threading.Condition()

    def add(self, path: str, body: bytes) -> None:
        """Take in one export."""
        with self._changed:
            if path == "/v1/metrics":
                self.metrics += ExportMetricsServiceRequest.FromString(body).resource_metrics
            else:
                for group in ExportTraceServiceRequest.FromString(body).resource_spans:
                    for scope in group.scope_spans:
                        self.spans += scope.spans
            self._changed.notify_all()

    def wait_until(self, enough: Callable[[list[Span]], bool]) -> list[Span]:
        """The spans, once there are enough. Raises TimeoutError."""
        with self._changed:
            if not self._changed.wait_for(lambda: enough(self.spans), TIMEOUT_S):
                raise TimeoutError(f"only {sorted(span.name for span in self.spans)} came")
            return list(self.spans)

    def wait_for_metrics(self, enough: Callable[[list[ResourceMetrics]], bool]) -> list[ResourceMetrics]:
        """All exports of metrics, once there are enough. Raises TimeoutError."""
        with self._changed:
            if not self._changed.wait_for(lambda: enough(self.metrics), TIMEOUT_S):
                raise TimeoutError(f"only {len(self.metrics)} exports of metrics came")
            return list(self.metrics)


@contextmanager
def receiving() -> Iterator[Collector]:
    """A collector that can be reached."""
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            collector.add(self.path, self.rfile.read(int(self.headers["content-length"])))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Stay quiet."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as receiver:
        threading.Thread(target=receiver.serve_forever, daemon=True).start()
        collector.endpoint = f"http://127.0.0.1:{receiver.server_port}"
        yield collector
        receiver.shutdown()
