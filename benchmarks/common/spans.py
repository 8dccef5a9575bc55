"""An OTLP endpoint on loopback that keeps the spans which are exported to it."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

TIMEOUT_S = 30.0


class SpanCollector:
    """All spans that came in."""

    def __init__(self) -> None:
        self._spans: list[Span] = []
        self._changed = threading.Condition()

    def add(self, body: bytes) -> None:
        """Take in one export."""
        exported = ExportTraceServiceRequest.FromString(body)
        with self._changed:
            for group in exported.resource_spans:
                for scope in group.scope_spans:
                    self._spans += scope.spans
            self._changed.notify_all()

    def wait_until(self, enough: Callable[[list[Span]], bool]) -> list[Span]:
        """The spans, once there are enough. Raises TimeoutError."""
        with self._changed:
            if not self._changed.wait_for(lambda: enough(self._spans), TIMEOUT_S):
                raise TimeoutError(f"only {len(self._spans)} spans came")
            return list(self._spans)


@contextmanager
def collecting() -> Iterator[tuple[str, SpanCollector]]:
    """The endpoint, and the collector that it feeds."""
    collector = SpanCollector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            collector.add(self.rfile.read(int(self.headers["content-length"])))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Stay quiet."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as receiver:
        threading.Thread(target=receiver.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{receiver.server_port}", collector
        receiver.shutdown()
