"""Metrics over OTLP, of a gateway and a worker that were told to send them."""

import pytest
from opentelemetry.proto.metrics.v1.metrics_pb2 import ResourceMetrics

from tests.support.system.harness import MODEL, Server
from tests.support.system.otlp import Collector

pytestmark = [pytest.mark.system, pytest.mark.thorough]


def test_gateway_and_worker_send_what_they_count(server: Server, collector: Collector) -> None:
    with server.sdk(server.tenant("counted")) as client:
        client.completions.create(model=MODEL, prompt="Count me", max_tokens=4, extra_body={"ignore_eos": True})

    exports = collector.wait_for_metrics(
        lambda came: (
            counted(came, "fairlane-gateway", "fairlane_gateway_tokens") > 0
            and counted(came, "fairlane-worker", "fairlane_worker_tokens") > 0
        )
    )

    assert not any("fairlane_worker" in name for name in names(exports, "fairlane-gateway"))
    assert "fairlane_gateway_time_to_first_token_seconds" in names(exports, "fairlane-gateway")


def of(exports: list[ResourceMetrics], service: str) -> list[ResourceMetrics]:
    """What one of our services sent."""
    return [each for each in exports if any(one.value.string_value == service for one in each.resource.attributes)]


def names(exports: list[ResourceMetrics], service: str) -> set[str]:
    """Of all metrics that it sent."""
    return {metric.name for each in of(exports, service) for scope in each.scope_metrics for metric in scope.metrics}


def counted(exports: list[ResourceMetrics], service: str, name: str) -> float:
    """The most that any export of its says of a counter, over all labels."""
    return max(
        [
            sum(point.as_double for point in metric.sum.data_points)
            for each in of(exports, service)
            for scope in each.scope_metrics
            for metric in scope.metrics
            if metric.name == name
        ],
        default=0.0,
    )
